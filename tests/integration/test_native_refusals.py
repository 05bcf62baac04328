# SPDX-License-Identifier: Apache-2.0
"""What a program is told when it gets no memory: one line, when it counts, to nobody but people."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakedriver.env import write_machine
from tests.native.container import Container
from tests.native.refused import ONE_CARD, OWN, PROGRAM
from tests.native.running import CONTEXT, GIB, MIB, Place

FULL_CARD = 23 * GIB


def refused(place: Place, script: str, limit: str = "1GiB", **extra: str) -> list[str]:
    """The lines on stderr of a program that has taken 728 of the 924 MiB that a context of 100 leaves of 1 GiB."""
    done = place.run(
        sys.executable,
        "-c",
        PROGRAM + "assert take(728)\n" + script,
        limit=limit,
        **{"VCUDA_REFUSALS": "", **extra},
    )
    assert (done.returncode, done.stdout) == (0, ""), done
    return done.stderr.splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A machine with one card of 24 GiB."""
    return Place(tmp_path, write_machine(tmp_path, ONE_CARD, context_memory="100MiB"))


@pytest.fixture
def neighbour(place: Place) -> Iterator[None]:
    """Another program without a limit, which has 23 of the card's 24 GiB, less its context."""
    with place.client() as client:
        client.ready()
        assert client.do("alloc a", FULL_CARD - CONTEXT).code == 0
        yield


# --- when it is said --------------------------------------------------------------------------------------------------


def test_the_second_refusal_in_a_row_says_that_the_quota_is_used_up(place):
    said = refused(place, "take(512); mark('first'); take(512); mark('second'); take(512)")
    assert [said[0], said[2]] == ["first", "second"] and len(said) == 3
    assert said[1] == f"{OWN} vcuda run --memory or VCUDA_MEMORY_LIMIT"


def test_a_success_between_them_is_no_second_one(place):
    script = """
for _ in range(3):
    assert take(512) is None
    address = take(8)
    give(address)
"""
    assert refused(place, script) == []


def test_neither_freeing_nor_asking_is_a_success(place):
    script = """
address = take(8)
assert take(512) is None
give(address)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
assert take(512) is None
mark('end')
"""
    first, last = refused(place, script)
    assert first.startswith(OWN) and last == "end"


@pytest.mark.parametrize(
    "exit_", ["sys.exit(0)", "ctypes.CDLL(None).exit(0)", "in_thread(ctypes.CDLL(None).exit, 0)"]
)
def test_one_refusal_is_told_at_the_exit(place, exit_):
    first, last = refused(place, f"take(512); mark('end'); {exit_}")
    assert first == "end" and last.startswith(OWN)


def test_the_exit_says_nothing_of_what_a_success_has_followed(place):
    assert refused(place, "take(512); assert take(8)") == []


def test_a_process_that_ends_at_once_says_nothing(place):
    assert refused(place, "take(512); os._exit(0)") == []


def test_refusals_in_a_row_are_those_of_one_thread(place):
    script = "take(512); in_thread(take, 512); mark('end'); os._exit(0)"
    assert refused(place, script) == ["end"]
    script = "take(512); in_thread(take, 8); take(512); mark('end')"
    first, last = refused(place, script)
    assert "are used up (836 MiB in use, 512 MiB asked)" in first and last == "end"


def test_the_exit_tells_what_a_thread_was_refused_that_has_ended(place):
    script = "take(700); in_thread(take, 512); assert take(8); mark('end')"
    first, last = refused(place, script)
    assert first == "end" and last.startswith(OWN)


def test_more_threads_than_wait_at_once(place):
    script = "\n".join(["for _ in range(30): in_thread(take, 512)", "mark('end')"])
    first, last = refused(place, script)
    assert first == "end" and last.startswith(OWN)


@pytest.mark.parametrize(
    "call",
    [
        "cuda.cuMemAllocAsync(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(512 * MIB), None)",
        "cuda.cuMemAllocManaged(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(512 * MIB), 1)",
        "cuda.cuMemAllocPitch_v2(ctypes.byref(ctypes.c_uint64()), ctypes.byref(ctypes.c_size_t()), "
        "ctypes.c_size_t(MIB), ctypes.c_size_t(512), 4)",
        "cuda.cuCtxSetLimit(2, ctypes.c_size_t(512 * MIB))",
    ],
    ids=["async", "managed", "pitch", "limit"],
)
def test_every_kind_of_memory_counts_one_refusal_a_call(place, call):
    first, *rest = refused(place, f"cuda.cuCtxSetCurrent(context); {call}; mark('one'); {call}; mark('two')")
    assert first == "one" and rest[1:] == ["two"]
    assert rest[0].startswith("vcuda: this program's 1 GiB are used up (828 MiB in use, 5")


# --- whose it is ------------------------------------------------------------------------------------------------------


def test_a_full_card_names_how_many_others_have_it(place, neighbour):
    said = refused(place, "take(512); mark('one'); take(512); mark('two')", limit="8GiB")
    assert said[0::2] == ["one", "two"]
    assert said[1] == (
        "vcuda: the card is full: 1 other holds 23 GiB (this program has 828 MiB of its 8 GiB, 512 MiB asked); end one "
        "of them or use less: vcuda ps and nvidia-smi show who has it"
    )


def test_a_full_card_at_the_exit(place, neighbour):
    first, last = refused(place, "take(512); mark('end')", limit="8GiB")
    assert first == "end" and "the card is full: 1 other holds 23 GiB" in last


def test_a_quota_that_others_use_too(place):
    with place.client("1GiB") as other:
        other.ready()
        script = "take(512); take(512)"
        (said,) = refused(place, script.replace("512", "200"))
    assert said.startswith(
        "vcuda: the 1 GiB that this program shares with 1 other are used up (928 MiB in use, 200 MiB asked); use less"
    )


def test_what_no_quota_could_have_is_not_called_used_up(place):
    (said,) = refused(place, "take(9000); take(9000)", limit="8GiB")
    assert said.startswith("vcuda: this program's 8 GiB are too few (828 MiB in use, 8.8 GiB asked)")


def test_what_neither_the_gpu_nor_the_host_can_hold_alone(place):
    """Of 3 GiB 1 is the GPU's: 2.1 GiB are less than what is free, and more than the host's part."""
    script = PROGRAM + "take(2148); take(2148); mark('one'); assert take(2000)"
    done = place.run(
        sys.executable, "-c", script, limit="3GiB", VCUDA_PHYSICAL_LIMIT="1GiB", VCUDA_REFUSALS="on"
    )
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "vcuda: this program's 3 GiB, 1 GiB of them on the GPU, have no room for it on the GPU alone nor on the host "
        "alone (100 MiB in use, 2.1 GiB asked); ask for smaller pieces, or give it more, with vcuda run --memory or "
        "VCUDA_MEMORY_LIMIT",
        "one",
    ]


def test_which_gpu_where_there_are_several(tmp_path):
    place = Place(tmp_path)  # with two
    (said,) = refused(place, "take(512); take(512)")
    assert re.match(r"vcuda: this program's 1 GiB of GPU-[0-9a-f-]{36} are used up \(", said)


def test_a_container_reads_of_itself_alone(place):
    container = Container(place)
    script = PROGRAM + "take(728); take(512); take(512)"
    done = container.run(sys.executable, "-c", script, VCUDA_REFUSALS="on")
    assert done.stderr == (
        "vcuda: this container's 1 GiB are used up (828 MiB in use, 512 MiB asked); use less, or ask for more GPU "
        "memory in the pod's limits\n"
    )
    with place.client() as neighbour_:
        neighbour_.ready()
        assert neighbour_.do("alloc a", 24 * GIB - 700 * MIB).code == 0
        done = container.run(sys.executable, "-c", PROGRAM + "take(728); take(728)", VCUDA_REFUSALS="on")
    assert done.stderr == (
        "vcuda: the card is full, or the driver bounds this pod (this container has 100 MiB of its 1 GiB, 728 MiB "
        "asked); use less, or ask the operator: gigaslice status shows who has the rest\n"
    )
    off = container.run(sys.executable, "-c", script, VCUDA_REFUSALS="off")
    assert (off.returncode, off.stderr) == (0, "")


# --- where it is written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", [{"VCUDA_REFUSALS": "off"}, {"VCUDA_LOG": "none"}])
def test_it_can_be_switched_off(place, variable):
    assert refused(place, "take(512); take(512)", **variable) == []


def test_another_value_is_told_and_is_on(place):
    first, second = refused(place, "take(512); take(512)", VCUDA_REFUSALS="nope")
    assert first == 'vcuda: VCUDA_REFUSALS is "nope", which is neither on nor off; continuing with on'
    assert second.startswith(OWN)


def program(place: Place, script: str, stderr: int) -> subprocess.Popen[str]:
    env = place.env("1GiB", VCUDA_REFUSALS="on")
    command = [sys.executable, "-c", PROGRAM + "assert take(728)\n" + script]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True)


def test_it_comes_later_once_stderr_is_back(place):
    script = "saved = os.dup(2); os.dup2(os.open('/dev/null', os.O_WRONLY), 2); take(512), take(512); os.dup2(saved, 2)"
    (said,) = refused(place, script)
    assert said.startswith(OWN)


def test_a_full_pipe_is_not_waited_for(place):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    room = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * room)
    os.set_blocking(writing, True)
    running = program(place, "take(512); take(512); print('on', flush=True); sys.stdin.read()", writing)
    try:
        assert running.stdout is not None and running.stdout.readline() == "on\n"
        assert running.wait(30) == 0  # nor at the exit
        os.set_blocking(reading, False)
        assert os.read(reading, 1 << 16) == b"x" * room
    finally:
        running.kill()
        running.communicate()
        os.close(reading)
        os.close(writing)


def test_nobody_reads_the_pipe(place):
    """Python ignores SIGPIPE; the program gets the default back, with which a write would end it."""
    reading, writing = os.pipe()
    script = "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); take(512); take(512); print('on')"
    running = program(place, "sys.stdout.readline if 0 else None\n" + script, writing)
    os.close(reading)
    os.close(writing)
    assert running.communicate(timeout=60)[0] == "on\n"
    assert running.returncode == 0


def test_a_socket_as_under_systemd(place):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    running = program(place, "take(512); take(512)", theirs.fileno())
    theirs.close()
    running.communicate(timeout=60)
    assert running.returncode == 0 and ours.recv(4096).decode().startswith(OWN)
    ours.close()


def test_a_full_socket_is_not_waited_for(place):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            theirs.send(b"x" * 65536)
    theirs.setblocking(True)
    running = program(place, "take(512); take(512); print('on')", theirs.fileno())
    theirs.close()
    assert running.communicate(timeout=60)[0] == "on\n"
    ours.close()


def test_a_terminal(place):
    ours, theirs = pty.openpty()
    running = program(place, "take(512); take(512)", theirs)
    os.close(theirs)
    running.communicate(timeout=60)
    assert os.read(ours, 4096).decode().startswith(OWN)
    os.close(ours)


def test_a_file_is_one_write(place, tmp_path):
    target = tmp_path / "errors"
    with target.open("w") as file:
        running = program(place, "take(512); take(512)", file.fileno())
        running.communicate(timeout=60)
    assert target.read_text().startswith(OWN) and target.read_text().count("\n") == 1


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_forked_child_has_been_refused_nothing(place):
    script = """
take(512)
if os.fork() == 0:
    sys.exit(0)
os.wait()
mark('end')
"""
    first, last = refused(place, script)
    assert first == "end" and last.startswith(OWN)


def test_what_is_counted_does_not_depend_on_the_line(place):
    import vcuda

    script = f"""
take(512); take(512); take(512)
import subprocess
os.environ.pop('LD_PRELOAD')
sys.path.insert(0, {str(Path.cwd())!r})
import vcuda
usage = vcuda.read_ledger({str(place.quota / "ledger")!r})
assert [process.refused for process in usage.processes] == [3], usage
"""
    assert refused(place, script, VCUDA_REFUSALS="off") == []
    assert vcuda.read_limits(place.quota / "limits").gpus
