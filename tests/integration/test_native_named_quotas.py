# SPDX-License-Identifier: Apache-2.0
"""VCUDA_QUOTA names a quota, which programs with different heads join."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.heads import PYTHON, TAKE, Stage, answer, finish, kill, staged
from tests.native.running import CONTEXT, GIB, MIB, NOT_READY, OUT_OF_MEMORY, SUCCESS, Client
from vcuda import GpuLimit, quotas, read_limits, set_memory_limit


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as stage:
        yield stage


def test_a_name_joins(stage: Stage) -> None:
    first, second = stage.take(2500, VCUDA_QUOTA="nb"), stage.take(2500, VCUDA_QUOTA="nb", limit="4096MiB")
    assert sorted([answer(first)[3], answer(second)[3]]) == ["0", str(OUT_OF_MEMORY)]
    other = stage.take(2500, VCUDA_QUOTA="another")
    assert answer(other)[1:] == ["4096", "0", "0"]
    third = stage.take(VCUDA_QUOTA="nb", limit=None)
    assert answer(third)[1:] == ["4096", "0", "0"]
    assert finish(first, second, other, third) == [""] * 4
    assert stage.names() == ["quota-another", "quota-nb"]


def test_a_name_with_another_value_is_refused_while_it_is_used(stage: Stage) -> None:
    first = stage.take(VCUDA_QUOTA="nb")
    answer(first)
    second = stage.take(VCUDA_QUOTA="nb", limit="2GiB")
    assert answer(second)[2] == str(NOT_READY)
    (line,) = finish(second)
    for part in (
        str(stage.base / "quota-nb"),
        "gives it 4GiB",
        " 2GiB, but ",
        "set VCUDA_QUOTA to another name",
    ):
        assert part in line
    kill(first)
    third = stage.take(VCUDA_QUOTA="nb", limit="2GiB")
    assert answer(third)[1:] == ["2048", "0", "0"], "its user was killed: it is made anew"
    assert finish(third) == [""]


def test_a_name_is_used_by_a_process_that_names_it(stage: Stage) -> None:
    """It has used no CUDA yet. One that wants the same as the caller is no reason to refuse the caller."""
    finish(*[stage.take(VCUDA_QUOTA="nb")])
    sleeper = stage.start("cat", VCUDA_QUOTA="nb")
    while not Path(f"/proc/{sleeper.pid}/cmdline").read_bytes().startswith(b"cat"):
        pass
    second = stage.take(VCUDA_QUOTA="nb", limit="2GiB")
    assert answer(second)[2] == str(NOT_READY)
    finish(second, sleeper)
    done = stage.run("sh", "-c", '"$0" -c "$1" 1; true', PYTHON, TAKE, VCUDA_QUOTA="nb", limit="2GiB")
    assert done.stdout.split()[1:] == ["2048", "0", "0"], done.stderr


def test_a_name_whose_user_only_looks(stage: Stage) -> None:
    """It has attached and holds no slot of the ledger."""
    with Client(stage.env(VCUDA_QUOTA="nb")) as client:
        assert client.do("init").code == SUCCESS
        assert client.do("total a", 0).first == 4 * GIB
        assert [process.alive for process in quotas.read_quota(stage.base / "quota-nb").usage.processes] == []
        assert stage.run(PYTHON, "-c", TAKE, "1", limit="2GiB", VCUDA_QUOTA="nb").stdout.split()[2] == str(
            NOT_READY
        )


def test_many_that_want_another_value_of_a_dead_name_agree(stage: Stage) -> None:
    for limit, mib in (("2GiB", "2048"), ("3GiB", "3072"), ("2GiB", "2048"), ("4GiB", "4096")):
        programs = [stage.take(100, VCUDA_QUOTA="nb", limit=limit) for _ in range(6)]
        assert [answer(program)[1:] for program in programs] == [[mib, "0", "0"]] * 6
        usage = quotas.read_quota(stage.base / "quota-nb").usage
        assert sorted(process.pid for process in usage.processes if process.alive) == sorted(
            program.pid for program in programs
        )
        finish(*programs)


def test_two_values_for_a_dead_name_at_once(stage: Stage) -> None:
    """One of them wins, and the other is told; never two quotas, never none."""
    for _ in range(6):
        programs = [stage.take(100, VCUDA_QUOTA="nb", limit=limit) for limit in ("2GiB", "3GiB")]
        answers = [answer(program) for program in programs]
        page = read_limits(stage.base / "quota-nb" / "limits")
        for words, mib in zip(answers, (2048, 3072), strict=True):
            expected = (
                [str(mib), "0", "0"] if page.gpus[0].memory_bytes == mib << 20 else ["0", str(NOT_READY)]
            )
            assert words[1 : 1 + len(expected)] == expected
        assert "0" in {words[2] for words in answers} or all(words[2] == str(NOT_READY) for words in answers)
        finish(*programs)


def test_a_name_that_was_changed_live_is_not_compared(stage: Stage) -> None:
    first = stage.take(VCUDA_QUOTA="nb")
    answer(first)
    page = stage.base / "quota-nb" / "limits"
    for gpu in read_limits(page).gpus:
        set_memory_limit(page, gpu.uuid, 3 * GIB)
    second = stage.take(VCUDA_QUOTA="nb")
    assert answer(second)[1:] == ["3072", "0", "0"]
    finish(first, second)


@pytest.mark.parametrize("broken", ["limits", "ledger"])
def test_a_name_whose_files_are_damaged(stage: Stage, broken: str) -> None:
    directory = quotas.open_named(
        quotas.private_base(stage.base) / "quota-nb",
        [GpuLimit("GPU-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f", GIB)],
    )
    (directory / broken).write_bytes(b"garbage")
    done = stage.run(PYTHON, "-c", TAKE, "1", VCUDA_QUOTA="nb")
    assert done.stdout.split()[1:] == ["4096", "0", "0"], "nobody uses it"


def test_a_name_without_a_limit_and_without_a_quota(stage: Stage) -> None:
    done = stage.run(PYTHON, "-c", TAKE, "1", limit=None, VCUDA_QUOTA="nb")
    assert done.stdout.split()[2] == str(NOT_READY)
    assert "set VCUDA_MEMORY_LIMIT too" in done.stderr and str(stage.base / "quota-nb") in done.stderr


def test_a_lock_that_is_never_given_back(stage: Stage) -> None:
    """One line after some seconds instead of a program that hangs."""
    quotas.private_base(stage.base)
    lock = os.open(stage.base, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = stage.run(PYTHON, "-c", TAKE, "1")
    os.close(lock)
    assert done.stdout.split()[2] == str(NOT_READY)
    assert "keeps it locked" in done.stderr


def test_the_memory_of_all_is_one_sum(stage: Stage) -> None:
    """Exact to the byte, as with a directory of the user's."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Client(stage.env("1GiB", VCUDA_QUOTA="nb"))).ready()
        second = stack.enter_context(Client(stage.env("1GiB", VCUDA_QUOTA="nb"))).ready()
        assert first.do("alloc a", GIB - 2 * CONTEXT - MIB).code == SUCCESS
        assert second.do("alloc a", MIB + 1).code == OUT_OF_MEMORY
        assert second.do("alloc a", MIB).code == SUCCESS
        assert first.free() == second.free() == 0


def test_signals_reach_a_program_that_waits(stage: Stage) -> None:
    """The head's own start is no different: it ends by what ends it."""
    program = stage.take()
    answer(program)
    program.send_signal(signal.SIGTERM)
    assert program.wait() == -signal.SIGTERM
