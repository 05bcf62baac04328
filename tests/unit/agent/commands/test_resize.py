# SPDX-License-Identifier: Apache-2.0
"""`gigaslice resize` and the socket it speaks to: what goes over it, and what people read."""

import asyncio
import stat
import tempfile
import threading
import time
from pathlib import Path

import pytest

from agent.commands import resize
from agent.control.messages import GpuLimits, ResizeAnswer
from agent.control.server import ControlServer, decode_change
from gigaslice.core.errors import ConfigError, ControlError
from gigaslice.runtime.local_protocol import ask
from gigaslice_cli import frame
from tests.unit.agent.limits.test_manager import GIB, Node, uuid


@pytest.fixture
def node():
    """In a directory whose path leaves room for the name of a unix socket, which tmp_path may not."""
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as directory:
        made = Node(Path(directory))
        yield made
        made.store.close()


@pytest.fixture
def served(node):
    """The control socket of NODE, in a thread with a loop of its own."""
    loops = []

    async def serve():
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        task = asyncio.create_task(ControlServer(node.store, node.manager).run())
        await stop.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    while not (node.store.state_dir / "control.sock").exists():
        assert thread.is_alive()
        time.sleep(0.01)
    yield node
    loop, stop = loops[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    assert not (node.store.state_dir / "control.sock").exists()


@pytest.fixture
def run(capsys, node):
    def _run(*arguments):
        code = frame.main(["resize", *arguments, "--state-dir", str(node.store.state_dir)])
        out, err = capsys.readouterr()
        said = [line for line in out.splitlines() if "GPU-" in line and "part=" not in line]
        return code, said, [line for line in err.splitlines() if line.startswith("gigaslice resize: ")]

    return _run


def test_a_change_is_made_and_said(served, run):
    one = served.admit("a", range(8))
    code, out, err = run("a", "--memory", "12GiB", "--cores", "30")
    assert (code, err) == (0, [])
    assert out == [f"default/a/c0 {uuid(0)}: 8 GiB -> 12 GiB, cores 0% -> 30%"]
    assert served.page(one) == (12, 30)
    assert served.store.table.find(one).quota() == {uuid(0): 12 * GIB}


def test_an_allocation_is_named_by_its_id(served, run):
    one = served.admit("a", range(4))
    code, out, err = run("--allocation", one[:8], "--memory", "6GiB")
    assert (code, out, err) == (0, [f"default/a/c0 {uuid(0)}: 4 GiB -> 6 GiB"], [])
    other = served.admit("b", range(4, 8))
    code, out, err = run("--allocation", other, "--memory", "6GiB")
    assert (code, out, err) == (0, [f"default/b/c0 {uuid(0)}: 4 GiB -> 6 GiB"], [])
    code, _, err = run("--allocation", "f" * 32, "--memory", "6GiB")
    assert code == 1 and f"allocation {'f' * 32} holds no slices of this node" in err[0]
    assert one[:8] == other[:8]
    code, _, err = run("--allocation", one[:8], "--memory", "6GiB")
    assert (code, len(err)) == (2, 1) and "may be one of 2; write more of its id" in err[0]


def test_a_refusal_is_one_line_and_code_1(served, run):
    served.admit("a", range(8))
    served.admit("b", range(8, 24))
    code, out, err = run("default/a", "--memory", "9GiB")
    assert (code, out, len(err)) == (1, [], 1)
    assert "0 B are free" in err[0] and "default/b/c0 has 16 GiB" in err[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a",), "--memory SIZE or --cores PERCENT"),
        (("--memory", "1GiB"), "POD, or --allocation ID"),
        (("a", "--allocation", "0" * 32, "--memory", "1GiB"), "POD, or --allocation ID"),
        (("--allocation", "0" * 7, "--memory", "1GiB"), "first 8 or more digits"),
        (("--allocation", "../../etc/x", "--memory", "1GiB"), "first 8 or more digits"),
        (("a", "--memory", "12GB"), '--memory "12GB"'),
        (("a", "--cores", "many"), '--cores "many"'),
        (("a", "--cores", "101"), "0 to 100"),
        (("n/a", "--namespace", "m", "--cores", "1"), "contradict"),
        (("a", "--memory", "25GiB"), "24 GiB in all"),
        (("a", "--memory", "1GiB", "--gpu", "GPU-x"), "has no slices of GPU-x"),
        (("a", "--memroy=1GiB"), "did you mean --memory?"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(served, run, arguments, words):
    served.admit("a", range(8))
    code, _, err = run(*arguments)
    assert (code, len(err)) == (2, 1)
    assert words in err[0]


def test_without_an_agent_it_says_so_with_code_3(run, node):
    code, _, err = run("a", "--memory", "1GiB")
    assert (code, len(err)) == (3, 1)
    assert "control.sock" in err[0]


def test_only_its_owner_may_use_the_socket(served):
    mode = (served.store.state_dir / "control.sock").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_a_socket_left_behind_is_replaced(node, run):
    import socket

    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(node.store.state_dir / "control.sock"))
    code, _, err = run("a", "--memory", "1GiB")
    assert (code, len(err)) == (3, 1)
    assert "no agent answers" in err[0]


def test_names_of_others_act_on_no_terminal():
    limit = GpuLimits("GPU-1\x1b[31m", GIB, GIB, 0, 0, used=0)
    line = resize.describe(ResizeAnswer("a\u202eb\x00\rc", (limit,)))
    assert line.isprintable()
    assert line.endswith(": 1 GiB")


@pytest.mark.parametrize("amount", ["12", 1.5, -1, True, None, 1 << 63, [8]])
@pytest.mark.parametrize("name", ["memory", "cores"])
def test_an_amount_that_is_none_is_refused_and_not_left_out(name, amount):
    with pytest.raises(ConfigError, match=f"^{name} must be a whole number"):
        decode_change({"pod": "a", name: amount})


def test_a_request_of_a_later_command_is_understood_as_far_as_it_is_known(served):
    served.admit("a", range(8))
    change = {"pod": "a", "memory": 12 * GIB, "later": [1]}
    answer = ask(served.store.state_dir / "control.sock", "agent", {"resize": change, "later": {}})
    assert answer["limits"][0]["memory_after"] == 12 * GIB
    assert ResizeAnswer.decode({**answer, "later": 1}).limits[0].memory_before == 8 * GIB


def test_another_command_is_refused(served):
    with pytest.raises(ControlError, match="does not know this command"):
        ask(served.store.state_dir / "control.sock", "agent", {"later": {}})
