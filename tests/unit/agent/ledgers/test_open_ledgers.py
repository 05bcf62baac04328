# SPDX-License-Identifier: Apache-2.0
"""Ledgers that are held open: no lease, no execution, no growth. Real files; children play the container."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import subprocess
import sys
import threading
import time

import pytest

import vcuda
from agent.ledgers.open_ledgers import OpenLedgers
from tests.fakes.descriptors import open_below
from tests.fakes.nodes import GIB, uuid

SIZE = vcuda.ledger_file_bytes()
LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("granted", flush=True)
    sys.stdin.read()
except OSError as error:
    print(error.errno, flush=True)
"""


@pytest.fixture
def path(tmp_path):
    ledger = tmp_path / "ledger"
    vcuda.create_ledger(ledger, bytes(16), [vcuda.GpuLimit(uuid(0), GIB)])
    return ledger


@pytest.fixture
def ledgers():
    made = OpenLedgers()
    yield made
    made.close()


def lease(path):
    """A process that asks for a lease, and its answer."""
    child = subprocess.Popen(
        [sys.executable, "-c", LEASE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return child, child.stdout.readline().strip()


def until(what):
    """Waits for what must come; the test's own limit ends a wait in vain."""
    while not what():
        time.sleep(0.005)


@pytest.fixture
def leased(path):
    child, answer = lease(path)
    if answer != "granted":
        pytest.fail(f"this file system gives no leases ({os.strerror(int(answer))}); use another --basetemp")
    yield child
    child.kill()
    child.communicate()


def test_no_process_gets_a_lease_of_a_ledger_that_is_held(path, ledgers):
    ledgers.hold("a", path)
    assert ledgers.held("a")
    child, answer = lease(path)
    child.communicate()
    assert int(answer) == errno.EAGAIN


def test_no_process_executes_a_ledger_that_is_held(path, ledgers):
    ledgers.hold("a", path)
    path.chmod(0o755)
    with pytest.raises(OSError) as caught:
        subprocess.run([path], check=False)
    assert caught.value.errno == errno.ETXTBSY


def test_an_open_under_a_lease_does_not_wait_and_comes_when_it_ends(path, ledgers, leased):
    """The lease is given up as soon as the kernel asks, which the child ignores; its end ends it."""
    with pytest.raises(vcuda.errors.BusyError):
        vcuda.read_ledger(path)
    ledgers.hold("a", path)
    assert not ledgers.held("a")
    leased.kill()
    until(lambda: ledgers.held("a"))
    assert vcuda.read_ledger(path).version == 1


def test_while_an_open_waits_no_process_takes_a_lease_anew(path, ledgers, leased):
    ledgers.hold("a", path)
    until(lambda: any(thread.name == "lease" for thread in threading.enumerate()))
    leased.communicate()  # ends
    until(lambda: ledgers.held("a"))
    child, answer = lease(path)
    child.communicate()
    assert int(answer) == errno.EAGAIN


def test_an_allocation_that_ends_while_its_open_waits_leaves_nothing_open(path, ledgers, leased):
    ledgers.hold("a", path)
    ledgers.release("a")
    leased.kill()
    until(lambda: not any(thread.name == "lease" for thread in threading.enumerate()))
    assert not ledgers.held("a")
    assert open_below(path.parent) == []
    ledgers.hold("a", path)
    assert open_below(path.parent) == [str(path)]


def grow(path, how):
    """In the way HOW, or in length where the file system knows no such way."""
    fd = os.open(path, os.O_RDWR)
    try:
        if how == "data":
            os.pwrite(fd, b"x" * (1 << 20), SIZE)
        elif how == "attribute":
            os.setxattr(fd, "user.much", b"x" * 2000)
        elif how == "space" and reserve(fd, 64 << 20) != 0:
            how = "length"
    except OSError as error:
        assert error.errno == errno.ENOTSUP
        how = "length"
    finally:
        if how == "length":
            os.ftruncate(fd, 1 << 30)
        os.close(fd)


def reserve(fd, size):
    """Takes SIZE bytes of the disk for a file whose length stays as it is."""
    keep_size, offset = 1, ctypes.c_int64
    return ctypes.CDLL(None).fallocate(fd, keep_size, offset(0), offset(size))


def is_small(path):
    found = path.stat()
    return (
        found.st_size == SIZE
        and found.st_blocks * 512 < SIZE + (1 << 20)
        and not [name for name in os.listxattr(path) if name.startswith("user.")]
    )


WAYS = ["length", "data", "space", "attribute"]


@pytest.mark.parametrize("how", WAYS)
def test_what_grew_is_given_back(path, ledgers, how):
    ledgers.hold("a", path)
    ledgers.cut()
    assert ledgers.cuts == 0 and ledgers.take_grown() == {}
    grow(path, how)
    assert not is_small(path)
    ledgers.cut()
    assert is_small(path)
    assert ledgers.cuts == 1
    assert ledgers.take_grown().keys() == {"a"} and ledgers.take_grown() == {}
    assert vcuda.read_ledger(path).version == 1


@pytest.mark.parametrize("how", WAYS)
def test_a_watched_ledger_is_cut_without_being_asked(path, ledgers, how):
    async def run():
        ledgers.hold("a", path)
        task = asyncio.create_task(ledgers.run())
        await asyncio.sleep(0.01)
        for _ in range(3):
            grow(path, how)
            while not is_small(path):
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert ledgers.cuts


def test_one_that_is_held_later_is_watched_too_and_a_released_one_no_more(path, ledgers):
    async def run():
        task = asyncio.create_task(ledgers.run())
        await asyncio.sleep(0.01)
        ledgers.hold("a", path)
        grow(path, "length")
        while not is_small(path):
            await asyncio.sleep(0.001)
        ledgers.release("a")
        grow(path, "length")
        ledgers.cut()
        await asyncio.sleep(0.05)
        task.cancel()

    asyncio.run(run())
    assert path.stat().st_size == 1 << 30


def test_stores_through_a_mapping_wake_no_thread(path, ledgers):
    import mmap

    async def run():
        ledgers.hold("a", path)
        task = asyncio.create_task(ledgers.run())
        await asyncio.sleep(0.01)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[8000:8008] = b"12345678"
        assert ledgers._changed() == set()
        os.utime(path)
        assert ledgers._changed() == {"a"}
        task.cancel()

    asyncio.run(run())


def test_the_agents_own_thread_does_not_wait_for_a_cut(path, ledgers, monkeypatch):
    """A container that writes all the time holds the file's lock; the thread that cuts it waits."""
    free = threading.Event()
    monkeypatch.setattr(vcuda, "trim_open_ledger", lambda fd: free.wait() and False)

    async def run():
        ledgers.hold("a", path)
        task = asyncio.create_task(ledgers.run())
        await asyncio.sleep(0.01)
        os.utime(path)
        for _ in range(20):
            await asyncio.sleep(0.001)
        free.set()
        task.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["fifo", "directory", "symlink", "nothing"])
def test_what_is_no_ledger_is_not_held_and_blocks_no_thread(tmp_path, path, ledgers, kind):
    path.rename(tmp_path / "real")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "symlink":
        path.symlink_to(tmp_path / "real")
    ledgers.hold("a", path)
    assert not ledgers.held("a")
    ledgers.cut()


def test_more_ledgers_than_the_soft_limit_of_descriptors(path, tmp_path):
    code = """
import resource, sys
from pathlib import Path
from agent.ledgers.open_ledgers import OpenLedgers
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
ledgers = OpenLedgers()
for number in range(100):
    ledgers.hold(str(number), Path(sys.argv[1]))
assert all(ledgers.held(str(number)) for number in range(100))
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
