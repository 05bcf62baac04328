# SPDX-License-Identifier: Apache-2.0
"""The driver's counters of page faults: as drivers write them, and as they never should."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inventory import page_faults
from agent.inventory.page_faults import Paging, counters_are_on, parse, read
from tests.fakes.nodes import uuid

PAGE = os.sysconf("SC_PAGE_SIZE")
NOW = """replayable_faults      446
duplicates             12
faults_by_access_type:
  prefetch             0
  read                 40
  write                406
  atomic               0
migrations:
  num_pages_in         1024 (4 MB)
  num_pages_out        512 (2 MB)
replays:
  start                22
  start_ack_all        0
non_replayable_faults  3
faults_by_access_type:
  read                 3
  write                0
  atomic               0
faults_by_addressing:
  virtual              3
  physical             0
migrations:
  num_pages_in         6 (0 MB)
  num_pages_out        0 (0 MB)
"""
OLD = "faults_by_access_type:\n  read 1\nmigrations:\n  num_pages_in   7 (0 MB)\n  num_pages_out   2 (0 MB)\n"


def test_both_kinds_of_faults_count():
    assert parse(NOW, 4096) == Paging(449, 1030 * 4096, 512 * 4096)
    assert parse(OLD, 4096) == Paging(0, 7 * 4096, 2 * 4096)
    assert Paging(0, 3, 4).moved == 7


@pytest.mark.parametrize(
    "text",
    ["", "replayable_faults 4\n", "num_pages_in 5\n", "num_pages_in x\nnum_pages_out -1\n", "\0" * 100000],
)
def test_what_is_not_there_is_no_counter(text):
    assert parse(text, 4096) is None


@given(st.text(alphabet=" \n0123456789_abcdefilmnoprstu()", max_size=400), st.integers(1, 1 << 16))
def test_any_text_is_answered(text, page):
    found = parse(text + NOW[: len(text)], page)
    assert found is None or min(found.faults, found.bytes_in, found.bytes_out) >= 0


@pytest.mark.parametrize("prefix", ["UVM-", ""])
def test_a_gpu_has_a_directory_under_either_name(tmp_path, prefix):
    folder = tmp_path / f"{prefix}{uuid(0)}"
    folder.mkdir()
    assert read(uuid(0), tmp_path) is None, "the file is there while managed memory is used"
    (folder / "fault_stats").write_text(NOW)
    assert read(uuid(0), tmp_path) == Paging(449, 1030 * PAGE, 512 * PAGE)
    assert read(uuid(1), tmp_path) is None


def test_a_name_that_is_no_gpu_is_not_looked_for(tmp_path):
    (tmp_path / "fault_stats").write_text(NOW)
    assert read("UVM-/..", tmp_path) is None
    assert read("..", tmp_path / "x") is None
    (tmp_path / f"UVM-{uuid(0)}").write_text("a file")
    assert read(uuid(0), tmp_path) is None


def test_whether_the_driver_was_told_to_count(tmp_path):
    parameter = tmp_path / "uvm_enable_debug_procfs"
    assert counters_are_on(parameter) is None
    for text, told in (("1\n", True), ("0\n", False), ("", False)):
        parameter.write_text(text)
        assert counters_are_on(parameter) is told
    assert page_faults.PARAMETER.name == parameter.name
