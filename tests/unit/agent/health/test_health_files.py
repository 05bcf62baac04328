# SPDX-License-Identifier: Apache-2.0
"""The two files: what is written is read, what is damaged is said, and two commands at once both count."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.health.conditions import Condition, GpuHealth
from agent.health.health_files import (
    CORDON,
    HEALTH,
    Cordon,
    GpuRecord,
    Report,
    change_cordons,
    read_cordons,
    read_report,
    write_report,
)
from gigaslice.core.errors import StateError, StorageError
from tests.fakes.nodes import uuid

ROOT = Path(__file__).resolve().parents[4]


def test_what_was_never_written_is_nothing(tmp_path):
    assert read_cordons(tmp_path) == {}
    assert read_report(tmp_path) is None


def test_cordons_are_read_as_they_were_written(tmp_path):
    wanted = {uuid(0): Cordon("fan", 5.0), uuid(1): Cordon("", 6.5)}
    change_cordons(tmp_path, lambda before: {**before, **wanted})
    assert read_cordons(tmp_path) == wanted
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [CORDON]


def test_a_report_is_read_as_it_was_written(tmp_path):
    health = GpuHealth((Condition("lost", "gone"),), 1.0, 2.0, 3, 0.5, 4)
    gpu = GpuRecord(uuid(0), 0, "NVIDIA L4", 24, False, True, "gone", 1.0)
    wanted = Report("boot", (gpu,), {uuid(0): health, uuid(1): GpuHealth()})
    write_report(tmp_path, wanted)
    assert read_report(tmp_path) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": "1"}',
        '{"version": 1, "cordons": 3}',
        '{"version": 1, "cordons": {"a": 3}}',
    ],
)
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / CORDON).write_text(text)
    with pytest.raises(StateError, match=CORDON):
        read_cordons(tmp_path)


@pytest.mark.parametrize("content", [{}, {"boot": "", "gpus": [{"uuid": "x"}], "health": {}}])
def test_a_damaged_report_is_named(tmp_path, content):
    (tmp_path / HEALTH).write_text(json.dumps({"version": 1, **content}))
    with pytest.raises(StateError, match=HEALTH):
        read_report(tmp_path)


def test_what_a_later_agent_adds_to_its_report_is_left_out(tmp_path):
    report = Report("boot", (GpuRecord(uuid(0), 0, "L4", 24, True, False),), {uuid(0): GpuHealth()})
    write_report(tmp_path, report)
    document = json.loads((tmp_path / HEALTH).read_text())
    for part in (document, document["gpus"][0], document["health"][uuid(0)]):
        part["later"] = 1
    (tmp_path / HEALTH).write_text(json.dumps(document))
    assert read_report(tmp_path) == report


def test_a_newer_version_is_refused_and_kept(tmp_path):
    text = '{"version": 2, "cordons": {}}'
    (tmp_path / CORDON).write_text(text)
    with pytest.raises(StateError, match="version 2"):
        change_cordons(tmp_path, lambda before: before)
    assert (tmp_path / CORDON).read_text() == text


def test_a_directory_that_is_not_there_is_said(tmp_path):
    with pytest.raises(StorageError, match="--state-dir"):
        change_cordons(tmp_path / "x", lambda before: before)


def test_commands_at_the_same_time_all_count(tmp_path):
    write_report(
        tmp_path, Report("", tuple(GpuRecord(uuid(n), n, "L4", 24, True, False) for n in range(4)), {})
    )
    run = [sys.executable, "-m", "gigaslice_cli", "cordon", "--state-dir", str(tmp_path)]
    started = [subprocess.Popen([*run, str(n)], cwd=ROOT, stdout=subprocess.DEVNULL) for n in range(4)]
    assert [one.wait(60) for one in started] == [0] * 4
    assert set(read_cordons(tmp_path)) == {uuid(n) for n in range(4)}
