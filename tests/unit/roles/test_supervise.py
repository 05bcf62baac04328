import asyncio
import subprocess
import sys
import time

import pytest

from agent.roles.supervise import run_together


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
    """As grpc does with the calls of a channel that somebody else closes."""
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
from agent.roles.supervise import leave_within
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
from agent.cli import main
from agent.discovery.static import StaticSource
from agent.roles import node
node._LEAVE_SECONDS = 0.5
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
