# SPDX-License-Identifier: Apache-2.0
"""The quota of a program that has its limit from the environment: its own, as its head, and what accidents make of it.

VCUDA_DIR is in test_native_config.py, what a head starts in test_native_head_children.py, VCUDA_QUOTA in
test_native_named_quotas.py.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.heads import PYTHON, TAKE, Stage, answer, finish, kill, staged
from tests.native.running import CLIENTS, GIB, LIBRARY, NOT_READY
from vcuda import quotas


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as stage:
        yield stage


def test_two_programs_have_two_quotas(stage: Stage) -> None:
    """Two notebooks on one card, with the same value."""
    first, second = stage.take(3000), stage.take(3000)
    answers = [answer(first), answer(second)]
    assert [words[1:] for words in answers] == [["4096", "0", "0"]] * 2
    assert {words[0] for words in answers} == {str(head) for head in stage.heads()}
    assert len(stage.heads()) == 2
    assert finish(first, second) == ["", ""]


def test_two_heads_at_once_with_different_values(stage: Stage) -> None:
    programs = [stage.take(limit=limit) for limit in ("2GiB", "3GiB", "4GiB")]
    assert [answer(program)[1:] for program in programs] == [
        [mib, "0", "0"] for mib in ("2048", "3072", "4096")
    ]
    assert finish(*programs) == ["", "", ""]


def test_the_next_day_another_value(stage: Stage) -> None:
    for limit, mib in (("4GiB", "4096"), ("2GiB", "2048")):
        program = stage.take(limit=limit)
        assert answer(program)[1:] == [mib, "0", "0"]
        assert finish(program) == [""]
        assert len(stage.heads()) == 1, "what the one before has left is swept"


def test_a_directory_of_a_head_is_like_one_of_vcuda_run(stage: Stage) -> None:
    program = stage.take(5)
    answer(program)
    (head,) = stage.heads()
    record = json.loads((head / "command.json").read_text())
    assert head.name.split("-")[1] == str(program.pid)
    assert (record["pid"], record["launcher"], record["version"]) == (program.pid, program.pid, 1)
    assert abs(record["start"] - time.time()) < 60
    assert record["command"][-1] == "5"
    quota = quotas.read_quota(head)
    assert quota.kind == "command"
    assert [process.pid for process in quota.usage.processes] == [program.pid]
    assert quotas.sweep(stage.base) == 0
    assert (
        head.stat().st_mode & 0o777
        == stage.base.stat().st_mode & 0o777
        == (0o711 if os.geteuid() == 0 else 0o700)
    )
    kill(program)
    assert quotas.sweep(stage.base) == 1
    assert stage.names() == []


def test_a_program_that_does_not_use_cuda_leaves_nothing(stage: Stage) -> None:
    done = stage.run("sh", "-c", "echo $VCUDA_DIR; ls")
    assert done.stdout.startswith(f"{stage.base}/env-")
    assert not stage.base.exists()


def test_words_that_json_would_trip_over(stage: Stage) -> None:
    done = stage.run(PYTHON, "-c", TAKE, "1", '"\\', "ä\n\t", "x" * 5000)
    assert done.stdout.split()[1:] == ["4096", "0", "0"]
    (head,) = stage.heads()
    assert json.loads((head / "command.json").read_text())["command"][4:6] == ['"\\', "????"]


# --- accidents -------------------------------------------------------------------------------------------------------


def test_another_process_with_the_number_of_a_dead_head(stage: Stage) -> None:
    """Its quota has another name, and keeps the old one no longer than until it ends."""
    first = stage.take()
    answer(first)
    (old,) = stage.heads()
    kill(first)
    record = json.loads((old / "command.json").read_text())
    for pid, start in ((os.getpid(), record["launcher_start"]), (os.getpid(), 0)):
        record.update(launcher=pid, launcher_start=start)
        (old / "command.json").write_text(json.dumps(record))
        assert quotas._start_time(pid) != start
    second = stage.take(limit="2GiB")
    assert answer(second)[1:] == ["2048", "0", "0"]
    assert old not in stage.heads(), "the process of that number started at another time"
    finish(second)


def test_heads_that_are_killed_at_any_instant(stage: Stage) -> None:
    """What is left is swept; nobody finds half a directory, and the next one starts."""
    program = f"import sys; sys.argv = ['', '1']\n{TAKE}"
    for delay in range(24):
        victim = stage.start(PYTHON, "-S", "-c", program)
        time.sleep(0.005 * delay)
        victim.kill()
        victim.communicate()
        for head in stage.heads():
            assert quotas.read_quota(head).limits.gpus[0].memory_bytes == 4 * GIB
    survivor = stage.take()
    assert answer(survivor)[1:] == ["4096", "0", "0"]
    assert stage.names() == [stage.heads()[0].name]
    finish(survivor)


def test_a_family_of_which_some_are_killed_while_they_start(stage: Stage) -> None:
    """The first to use CUDA make the directory at the same time, some die in it: all others are in one quota."""
    program = """
import os, random, signal, subprocess, sys, time
take = [sys.executable, "-S", "-c", sys.argv[1], "200"]
children = [subprocess.Popen(take, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(12)]
for child in children[::3]:
    time.sleep(random.random() / 20)
    child.kill()
for child in children: print(child.stdout.readline().strip() or "-")
for child in children: child.communicate()
"""
    for _ in range(3):
        done = stage.run(PYTHON, "-c", program, TAKE)
        lines = [line.split() for line in done.stdout.splitlines() if line != "-"]
        assert len(lines) >= 8, done.stderr
        assert {tuple(line[1:]) for line in lines} == {("4096", "0", "0")}
        assert len({line[0] for line in lines}) == 1
        assert done.stderr == ""


def test_many_heads_that_sweep_at_once(stage: Stage) -> None:
    """Each removes what is dead and nothing of the living."""

    def once(number: int) -> list[str]:
        program = stage.take(limit=f"{2 + number % 2}GiB")
        words = answer(program)
        inside = stage.take(VCUDA_DIR=words[0], limit=f"{2 + number % 2}GiB")
        inner = answer(inside)
        finish(inside, program)
        return [*words[1:], *inner[1:]]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(once, range(16)))
    assert answers == [[str(2048 + 1024 * (number % 2)), "0", "0"] * 2 for number in range(16)]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to become another user"
)
def test_a_program_that_becomes_another_user(stage: Stage, tmp_path: Path) -> None:
    """Before the quota was made it has one of its own under the same name; afterwards it joins."""
    for path in [tmp_path, *tmp_path.parents][:-2]:
        path.chmod(path.stat().st_mode | 0o055)
    become = "setpriv --reuid=65533 --regid=65533 --clear-groups"
    environment = {
        "LD_PRELOAD": str(tmp_path / "libvcuda.so"),
        "FAKEDRIVER_STATE": str(tmp_path / "open" / "state"),
        "LD_LIBRARY_PATH": str(tmp_path / "driver"),
    }
    shutil.copy(LIBRARY, tmp_path / "libvcuda.so")
    shutil.copytree(
        CLIENTS.parents[1] / "fakedriver", tmp_path / "driver", ignore=shutil.ignore_patterns("objects")
    )
    shutil.copy(CLIENTS / "client", tmp_path / "client")
    shutil.copy(stage.env()["FAKEDRIVER_MACHINE"], tmp_path / "machine.txt")
    environment["FAKEDRIVER_MACHINE"] = str(tmp_path / "machine.txt")
    (tmp_path / "driver").chmod(0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    commands = "printf 'init\\ntotal a 0\\n' | "
    script = f"umask 0; {commands} {become} {tmp_path}/client dlsym; {commands} {tmp_path}/client dlsym"
    other = Path("/tmp/vcuda-65533")
    try:
        done = stage.run("sh", "-c", script, **environment)
        assert done.stdout.split()[:5:3] == ["0", "0"], done.stderr
        assert [line.split()[1] for line in done.stdout.splitlines()[1::2]] == [str(4 * GIB)] * 2
        assert [entry.name for entry in other.glob("env-*")] == [head.name for head in stage.heads()]
    finally:
        shutil.rmtree(other, ignore_errors=True)
    done = stage.run(
        "sh",
        "-c",
        f"umask 0; {commands} {tmp_path}/client dlsym; {commands} {become} {tmp_path}/client dlsym",
        **environment,
    )
    assert [line.split()[1] for line in done.stdout.splitlines()[1::2]] == [str(4 * GIB)] * 2, done.stderr
    assert not other.exists()


def test_a_base_that_others_can_write_to_is_refused(stage: Stage) -> None:
    stage.base.mkdir(parents=True)
    stage.base.chmod(0o777)
    for variables in ({}, {"VCUDA_QUOTA": "nb"}):
        done = stage.run(PYTHON, "-c", TAKE, "1", **variables)
        assert done.stdout.split()[2] == str(NOT_READY)
        assert "another user can write to it" in done.stderr
    assert stage.names() == []


def test_a_base_that_cannot_be_made(stage: Stage) -> None:
    stage.base.write_text("a file")
    done = stage.run(PYTHON, "-c", TAKE, "1")
    assert done.stdout.split()[2] == str(NOT_READY)
    assert str(stage.base) in done.stderr and "set XDG_RUNTIME_DIR or VCUDA_DIR" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_path_that_is_too_long(stage: Stage, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100) / ("y" * 100)
    long.mkdir(parents=True)
    long.chmod(0o711)
    done = stage.run(PYTHON, "-c", TAKE, "1", XDG_RUNTIME_DIR=str(long))
    assert done.stdout.split()[2] == str(NOT_READY)
    assert "too long" in done.stderr
