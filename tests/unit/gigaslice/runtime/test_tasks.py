# SPDX-License-Identifier: Apache-2.0
import asyncio
import subprocess
import sys
import time

import pytest

from agent.health.controller import HealthController
from agent.limits.compute_manager import ComputeManager
from gigaslice.runtime import tasks
from gigaslice.runtime.tasks import lasting, run_together


@pytest.fixture
def ended():
    """Names of those that were cancelled and have cleaned up."""
    return []


async def forever(ended, name):
    try:
        await asyncio.sleep(3600)
    finally:
        ended.append(name)


async def returns():
    await asyncio.sleep(0)


async def fails():
    raise ValueError("why")


async def is_called_off():
    """As grpc does with the calls of a channel that another task closes."""
    await asyncio.sleep(0)
    raise asyncio.CancelledError


def test_when_the_one_that_leads_is_done_the_others_end_and_clean_up(ended):
    parts = {"a": forever(ended, "a"), "lead": returns(), "b": forever(ended, "b")}
    asyncio.run(run_together("lead", parts))
    assert sorted(ended) == ["a", "b"]


def test_a_failure_reaches_the_caller_and_ends_the_others(ended):
    with pytest.raises(ValueError, match="why"):
        asyncio.run(run_together("a", {"a": forever(ended, "a"), "b": fails()}))
    assert ended == ["a"]


def test_a_second_failure_is_not_lost(ended, capsys):
    async def fails_as_it_ends():
        try:
            await asyncio.sleep(3600)
        finally:
            raise KeyError("second")

    with pytest.raises(ValueError, match="why"):
        asyncio.run(run_together("a", {"a": forever(ended, "a"), "z": fails_as_it_ends(), "b": fails()}))
    said = capsys.readouterr().out
    assert "component failed while stopping" in said and "KeyError" in said and "second" in said


def test_being_cancelled_cancels_all(ended):
    async def main():
        task = asyncio.create_task(run_together("a", {"a": forever(ended, "a"), "b": forever(ended, "b")}))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert sorted(ended) == ["a", "b"]


@pytest.mark.parametrize(("lead", "ends"), [("a", is_called_off), ("a", returns), ("poller", is_called_off)])
def test_a_part_that_ends_by_itself_has_failed(ended, lead, ends):
    with pytest.raises(RuntimeError, match="by itself: poller"):
        asyncio.run(run_together(lead, {"a": forever(ended, "a"), "poller": ends()}))
    assert ended == ["a"]


LEAVES = """
import asyncio, sys, threading
from gigaslice.runtime.tasks import leave_within
async def main():
    if sys.argv[1] == "hangs":
        hanging = asyncio.create_task(asyncio.to_thread(threading.Event().wait))
        await asyncio.sleep(0)
        hanging.cancel()
    leave_within(float(sys.argv[2]), sys.argv[3])
asyncio.run(main())
"""


@pytest.mark.parametrize(("failure", "code"), [("", 0), ("RuntimeError: why", 1)])
def test_a_thread_that_hangs_in_the_driver_keeps_no_process(failure, code):
    command = [sys.executable, "-c", LEAVES, "hangs", "0.2", failure]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert failure in done.stdout + done.stderr


def test_whoever_ends_by_himself_is_not_waited_for():
    begin = time.monotonic()
    command = [sys.executable, "-c", LEAVES, "ends", "3600", "RuntimeError: why"]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
    assert time.monotonic() - begin < 50


HANGS = """
import sys, threading
from gigaslice_cli.frame import main
from agent.inventory.static import StaticSource
from agent.roles import node
node.LEAVE_SECONDS = 0.5
def process_memory(self):
    print("hangs", flush=True)
    threading.Event().wait()
StaticSource.process_memory = process_memory
sys.exit(main(sys.argv[1:]))
"""


def test_an_agent_whose_driver_hangs_ends_when_it_is_asked_to(short_dir):
    (short_dir / "inventory.yaml").write_text(
        "gpus:\n  - uuid: GPU-00000000-0000-4000-8000-000000000001\n    model: L4\n    memory: 8GiB\n"
    )
    (short_dir / "k").mkdir()
    command = [sys.executable, "-c", HANGS, "node", "--state-dir", str(short_dir / "state")]
    command += ["--kubelet-dir", str(short_dir / "k"), "--pod-resources", str(short_dir / "none.sock")]
    command += ["--inventory", str(short_dir / "inventory.yaml"), "--measure-interval", "100ms"]
    command += ["--metrics-address", "off", "--kube-api", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as agent:
        try:
            assert agent.stdout is not None
            said = []
            while said[-1:] != ["hangs\n"]:
                said.append(agent.stdout.readline())
                assert said[-1], said
            agent.terminate()
            assert agent.wait(timeout=30) == 0
        finally:
            agent.kill()


# --- parts that the others can do without ---------------------------------------------------------------------------


def test_a_part_that_fails_is_started_again_and_the_others_go_on(ended, capsys):
    attempts, failures = [], []

    async def part():
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("why")
        if len(attempts) == 2:
            await is_called_off()
        if len(attempts) > 3:
            done.set()
            await forever(ended, "part")

    async def leads():
        await asyncio.wait_for(done.wait(), 60)

    async def main():
        parts = {
            "lead": leads(),
            "p": lasting("p", part, failures.append, pause=0.001),
            "b": forever(ended, "b"),
        }
        await run_together("lead", parts)

    done = asyncio.Event()
    asyncio.run(main())
    assert len(attempts) == 4 and failures == ["p"] * 3
    assert sorted(ended) == ["b", "part"], "each was cancelled by us, once"
    said = "".join(capsys.readouterr())
    assert "ValueError" in said and "why" in said and "ended by itself" in said


def test_pauses_grow_and_end_at_a_minute(monkeypatch):
    pauses = []

    async def rest(seconds):
        pauses.append(seconds)
        if len(pauses) == 9:
            raise asyncio.CancelledError

    monkeypatch.setattr(tasks.asyncio, "sleep", rest)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(lasting("p", _fails_at_once))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


async def _fails_at_once():
    raise RuntimeError("always")


class _Pair:
    """Of a part's two halves the first fails and the second goes on."""

    def __init__(self):
        self.going_on = 0

    async def half(self):
        raise ValueError("why")

    async def other(self):
        self.going_on += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.going_on -= 1


@pytest.mark.parametrize(
    ("kind", "halves"),
    [
        (HealthController, ("_keep_examining", "_keep_reviewing")),
        (ComputeManager, ("_keep_looking", "_keep_asking")),
    ],
)
def test_a_part_of_two_halves_leaves_none_behind_when_it_is_started_again(kind, halves):
    pair = _Pair()
    part = object.__new__(kind)
    for name, half in zip(halves, (pair.half, pair.other), strict=True):
        setattr(part, name, half)

    async def main():
        failures = []
        task = asyncio.create_task(lasting("p", part.run, failures.append, pause=0.001))
        while len(failures) < 3:
            await asyncio.sleep(0.001)
        assert pair.going_on <= 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert pair.going_on == 0

    asyncio.run(asyncio.wait_for(main(), 60))
