# SPDX-License-Identifier: Apache-2.0
"""Where the library writes: into what is for people, and never into a file that got descriptor 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakedriver.env import write_machine
from tests.native.refused import ONE_CARD, OWN
from tests.native.running import Place

# What the program does before it uses CUDA for the first time comes between these two.
BEGIN = """
import ctypes, fcntl, os, subprocess, sys, termios
log, data = sys.argv[1:3]

def use_cuda():
    cuda = ctypes.CDLL("libcuda.so.1")
    if cuda.cuInit(0) != 0:
        return
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    cuda.cuCtxSetCurrent(context)
    for mebibytes in (728, 512, 512):
        code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mebibytes << 20))
        assert (code == 0) == (mebibytes == 728), code

"""
END = "\nuse_cuda()\n"
WRITERS = {"1GiB": OWN, "8GB": 'vcuda: VCUDA_MEMORY_LIMIT: "8GB"'}
"""A limit of which a refusal is told, and one of which an error is, with the beginnings of the lines."""
CLOSED = ("sh", "-c", 'exec "$@" 2>&-', "sh")
UNTOUCHED = b"the program's own"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A machine with one card of 24 GiB."""
    return Place(tmp_path, write_machine(tmp_path, ONE_CARD, context_memory="100MiB"))


@pytest.fixture(params=WRITERS)
def limit(request) -> str:
    """Each writer in turn."""
    return request.param


def run(
    place: Place, limit: str, script: str, *start: str, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Runs the whole program SCRIPT with a log and with data, which it finds untouched; START: what starts it."""
    (place.directory / "data").write_bytes(UNTOUCHED)
    files = [str(place.directory / name) for name in ("log", "data")]
    done = subprocess.run(
        [*start, sys.executable, "-c", BEGIN + script, *files],
        env=place.env(limit, VCUDA_REFUSALS="on"),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done
    return done


def log_of(place: Place) -> str:
    return (place.directory / "log").read_text()


def is_untouched(place: Place) -> bool:
    return (place.directory / "data").read_bytes() == UNTOUCHED


# --- what is the program's own -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "opened",
    [
        "os.open(data, os.O_RDWR)",
        "os.open(data, os.O_WRONLY | os.O_APPEND)",
        "ctypes.CDLL(None).open(data.encode(), os.O_RDWR)",
        "ctypes.CDLL(None).open(data.encode(), os.O_WRONLY)",
    ],
)
def test_a_file_that_got_the_number_before_cuda_was_used(place, limit, opened):
    done = run(place, limit, f"os.close(2); assert ({opened}) == 2" + END)
    assert is_untouched(place) and done.stderr == ""


def test_a_socket_that_got_the_number(place, limit):
    script = """
import socket
os.close(2)
ours, theirs = socket.socketpair()
if ours.fileno() != 2:
    os.dup2(ours.fileno(), 2)
use_cuda()
theirs.setblocking(False)
try:
    print(theirs.recv(100))
except BlockingIOError:
    pass
"""
    done = run(place, limit, script)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_file_that_got_the_number_after_cuda_was_used(place):
    script = "ctypes.CDLL('libcuda.so.1').cuInit(0); os.close(2); "
    script += "assert ctypes.CDLL(None).open(data.encode(), os.O_WRONLY | os.O_APPEND) == 2"
    assert run(place, "1GiB", script + END).stderr == "" and is_untouched(place)


@pytest.mark.parametrize("how", ["os.O_RDWR", "os.O_WRONLY | os.O_APPEND"])
def test_nothing_is_written_where_stderr_was_closed_from_the_beginning(place, limit, how):
    """Also where it is as inheritable as a redirection."""
    script = f"os.dup2(os.open(data, {how}), 2)"
    run(place, limit, script + END, *CLOSED)
    assert is_untouched(place)


def test_the_drivers_file_where_stderr_was_closed_from_the_beginning(place):
    """It gets the number."""
    run(place, "1GiB", END, *CLOSED)
    assert b"vcuda: " not in (place.directory / "machine").read_bytes()


def test_a_terminal_that_is_not_the_programs_own(place, limit):
    """A serial line is one, too, and what hangs on it takes every byte for an order."""
    script = """
ours, theirs = os.openpty()
os.dup2(theirs, 2)
use_cuda()
os.set_blocking(ours, False)
try:
    print(os.read(ours, 100))
except BlockingIOError:
    pass
"""
    assert run(place, limit, script).stdout == ""


# --- what is for people ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "redirect",
    [
        "os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)",
        "out = open(log, 'a+'); os.dup2(out.fileno(), 2)",
        "out = open(log, 'w'); os.dup2(out.fileno(), 1); os.dup2(out.fileno(), 2)",
        "libc = ctypes.CDLL(None); libc.freopen.restype = ctypes.c_void_p; "
        "assert libc.freopen(log.encode(), b'a', ctypes.c_void_p.in_dll(libc, 'stderr'))",
        "os.close(0); os.close(1); os.close(2); os.open(os.devnull, os.O_RDWR); "
        "os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)",
    ],
    ids=["append", "append-and-read", "both", "freopen", "daemon"],
)
def test_a_log_that_a_daemon_redirects_to(place, limit, redirect):
    assert run(place, limit, redirect + END).stderr == ""
    assert log_of(place).startswith(WRITERS[limit]) and log_of(place).count("\n") == 1


def test_a_pipe_as_a_notebooks_kernel_makes_it(place, limit):
    script = "reading, writing = os.pipe(); os.dup2(writing, 2); use_cuda(); print(os.read(reading, 4096).decode())"
    assert run(place, limit, script).stdout.startswith(WRITERS[limit])


def test_a_pipe_that_takes_the_place_afterwards(place):
    script = """
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
reading, writing = os.pipe()
os.dup2(writing, 2)
os.set_blocking(reading, False)
use_cuda()
try:
    print(os.read(reading, 100))
except BlockingIOError:
    pass
"""
    assert run(place, "1GiB", script).stdout == ""


def test_the_programs_own_terminal(place, limit):
    script = """
ours, theirs = os.openpty()
if os.fork() == 0:
    os.setsid()
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    os.dup2(theirs, 2)
    use_cuda()
    os._exit(0)
os.wait()
print(os.read(ours, 4096).decode())
"""
    assert run(place, limit, script).stdout.startswith(WRITERS[limit])


def test_a_file_that_was_stderr_at_the_start(place, limit, tmp_path):
    """However it was opened: tempfile opens for reading, too."""
    with (tmp_path / "errors").open("w+b") as errors:
        run(place, limit, END, stderr=errors.fileno())
        errors.seek(0)
        assert errors.read().decode().startswith(WRITERS[limit])


# --- other processes ---------------------------------------------------------------------------------------------


def test_a_forked_child_redirects_as_a_daemon(place, limit):
    script = """
if os.fork() == 0:
    os.setsid()
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    use_cuda()
    os._exit(0)
assert os.wait()[1] == 0
"""
    assert run(place, limit, script).stderr == ""
    assert log_of(place).startswith(WRITERS[limit])


def test_a_forked_child_has_no_stderr_where_its_parent_had_none(place, limit):
    script = """
if os.fork() == 0:
    os.dup2(os.open(data, os.O_WRONLY | os.O_APPEND), 2)
    use_cuda()
    os._exit(0)
assert os.wait()[1] == 0
"""
    run(place, limit, script, *CLOSED)
    assert is_untouched(place)


def test_a_program_that_is_executed_has_what_it_was_given(place, limit):
    """Its loader looks anew: a file that the last program has put there is its stderr."""
    run(place, limit, END, "sh", "-c", f'exec 2>&-; exec 2>"{place.directory}/log"; exec "$@"', "sh")
    assert log_of(place).startswith(WRITERS[limit])
