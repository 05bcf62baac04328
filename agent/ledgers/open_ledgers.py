# SPDX-License-Identifier: Apache-2.0
"""Holds the ledger of every allocation open, and cuts one that grows as soon as it does.

A container must be able to write its ledger, a file on the node's disk. So it can also make the file grow until the
disk is full, and can keep the agent from opening it: by a lease, which delays every open by up to 45 seconds, or by
executing it, which forbids to open it for writing. A descriptor that is open for writing prevents both (fcntl(2): a
lease needs the only open descriptor), so the agent keeps one from the moment it creates a ledger. Between two agents a
container may take a lease all the same. Then the open waits in a thread of its own, and succeeds: while it waits, the
kernel gives no new lease.

inotify reports every write(2), truncation and allocation of space, but no stores through a mapping, which are all that
honest processes make. So the agent checks the file's size within milliseconds, at no cost meanwhile. It truncates what
the file has beyond its size: length, space reserved beyond its end, extended attributes. Truncation waits for a process
that writes the file at that moment, and so never runs in the agent's own thread.

This does not prevent growth: only a file system with quotas does, or one of its own for the state directory
(docs/adr/0046-a-ledger-is-held-open-and-cut.md). Tests: tests/unit/agent/ledgers/test_open_ledgers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import vcuda
from gigaslice.runtime.inotify import ATTRIBUTES, MODIFIED, OVERFLOW, Inotify
from gigaslice.runtime.logs import get_logger

__all__ = ["OpenLedgers"]

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY
_CUTTERS = 4  # threads: one container that keeps its file busy must not delay the others' truncation
_PAUSE, _CHECK_ALL = 0.005, 2.0
"""Seconds between two truncations of a ledger that keeps growing, and between two checks of all ledgers."""


class OpenLedgers:
    """The open ledgers by allocation. One thread calls `hold` and `release`; others may call `cut` and `take_grown`."""

    def __init__(self) -> None:
        self.cuts = 0
        """How many times a ledger was truncated."""
        self._files: dict[str, int] = {}
        self._watches: dict[int, str] = {}  # allocations by watch
        self._waiting: dict[str, object] = {}  # allocations whose ledgers are under a lease
        self._grown: dict[str, int] = {}
        self._lock = threading.Lock()  # over the dictionaries, for moments only
        self._notify: Inotify | None = None
        self._log = get_logger("ledgers")

    def hold(self, allocation_id: str, path: Path) -> None:
        """Opens the ledger at PATH and watches it. Where that fails, the memory monitor reports the ledger."""
        self.release(allocation_id)
        try:
            self._keep(allocation_id, _open(path, os.O_NONBLOCK))
        except BlockingIOError:
            self._log.warning("ledger leased", allocation=allocation_id, detail="opened when that ends")
            self._wait_for(allocation_id, path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._log.warning("ledger not held open", allocation=allocation_id, detail=error.strerror)

    def release(self, allocation_id: str) -> None:
        """Closes the ledger of an allocation that ends."""
        with self._lock:
            self._waiting.pop(allocation_id, None)
            fd = self._files.pop(allocation_id, None)
            ended = [watch for watch, key in self._watches.items() if key == allocation_id]
            for watch in ended:
                del self._watches[watch]
        for watch in ended:
            if self._notify is not None:
                self._notify.remove(watch)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Closes them all."""
        for allocation_id in {*self._files, *self._waiting}:
            self.release(allocation_id)
        if self._notify is not None:
            self._notify.close()
            self._notify = None

    def held(self, allocation_id: str) -> bool:
        """Whether the ledger of that allocation is open."""
        return allocation_id in self._files

    def cut(self, allocation_ids: Iterable[str] | None = None) -> None:
        """Truncates these ledgers (default: all) to their size. May wait for a process that writes one."""
        for allocation_id in tuple(self._files) if allocation_ids is None else allocation_ids:
            with self._lock:
                file = self._files.get(allocation_id)
                fd = (
                    os.dup(file) if file is not None else -1
                )  # after a release its number may be another file's
            if fd < 0:
                continue
            try:
                count = _cut(fd)
            except (OSError, vcuda.VcudaError) as error:
                self._log.warning("ledger not truncated", allocation=allocation_id, detail=str(error))
                continue
            finally:
                os.close(fd)
            if count:
                with self._lock:
                    self.cuts += 1
                    self._grown[allocation_id] = max(count, self._grown.get(allocation_id, 0))

    def take_grown(self) -> dict[str, int]:
        """The most bytes that were cut from a ledger at once since the previous call, by allocation."""
        with self._lock:
            grown, self._grown = self._grown, {}
        return grown

    async def run(self) -> None:
        """Truncates until cancelled: at once what inotify reports, and all ledgers every other second."""
        self._watch_all()
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        cutters = _Cutters(self.cut)
        if self._notify is not None:
            loop.add_reader(self._notify, woken.set)
        try:
            checked_at = loop.time()
            while True:
                timer = loop.call_at(checked_at + _CHECK_ALL, woken.set)
                try:
                    await woken.wait()
                finally:
                    timer.cancel()
                woken.clear()
                cutters.send(self._changed())
                if loop.time() - checked_at >= _CHECK_ALL:
                    checked_at = loop.time()
                    cutters.send(tuple(self._files))
                await asyncio.sleep(_PAUSE)
        finally:
            if self._notify is not None:
                loop.remove_reader(self._notify)
            cutters.close()

    def _keep(self, allocation_id: str, fd: int) -> None:
        with self._lock:
            self._files[allocation_id] = fd
        self._watch(allocation_id, fd)

    def _watch_all(self) -> None:
        """Begins to watch all ledgers."""
        try:
            self._notify = self._notify or Inotify()
        except OSError as error:
            self._log.warning("ledger not watched", detail=error.strerror)
            return
        with self._lock:
            files = dict(self._files)
        for allocation_id, fd in files.items():
            self._watch(allocation_id, fd)

    def _watch(self, allocation_id: str, fd: int) -> None:
        if self._notify is None:
            return
        try:
            watch = self._notify.add(f"/proc/self/fd/{fd}", MODIFIED | ATTRIBUTES)
        except OSError as error:
            self._log.warning("ledger not watched", allocation=allocation_id, detail=error.strerror)
            return
        with self._lock:
            self._watches[watch] = allocation_id

    def _changed(self) -> set[str]:
        """The allocations whose ledgers were written since the previous call; all, after too many events."""
        written: set[str] = set()
        for event in self._notify.read() if self._notify is not None else ():
            if event.mask & OVERFLOW:
                written.update(self._files)
            elif event.watch in self._watches:
                written.add(self._watches[event.watch])
        return written

    def _wait_for(self, allocation_id: str, path: Path) -> None:
        request = object()
        with self._lock:
            self._waiting[allocation_id] = request

        def wait() -> None:
            try:
                fd = _open(path, 0)
            except OSError as error:
                self._log.warning("ledger not held open", allocation=allocation_id, detail=error.strerror)
                return
            with self._lock:
                current = self._waiting.get(allocation_id) is request
                if current:
                    del self._waiting[allocation_id]
                    self._files[allocation_id] = fd
            if current:
                self._watch(allocation_id, fd)
                self._log.info("ledger held open", allocation=allocation_id)
            else:
                os.close(fd)

        threading.Thread(target=wait, name="lease", daemon=True).start()


class _Cutters:
    """Threads that call CUT: for each ledger one at a time, and again when it was sent meanwhile."""

    def __init__(self, cut: Callable[[Iterable[str]], None]) -> None:
        self._cut = cut
        self._pool = ThreadPoolExecutor(_CUTTERS, "cut")
        self._again: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def send(self, allocation_ids: Iterable[str]) -> None:
        """These may have grown."""
        for key in allocation_ids:
            self._again.add(key)
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._cut_while_sent(key))

    def close(self) -> None:
        """Starts no more work; a thread that waits for a container ends when the container lets it."""
        for task in self._tasks.values():
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _cut_while_sent(self, key: str) -> None:
        try:
            while key in self._again:
                self._again.discard(key)
                await asyncio.get_running_loop().run_in_executor(self._pool, self._cut, (key,))
                await asyncio.sleep(_PAUSE)
        finally:
            self._tasks.pop(key, None)


def _open(path: Path, more: int) -> int:
    """Opens a regular file, and nothing else. Without O_NONBLOCK in MORE it waits for the end of a lease."""
    if not stat.S_ISREG(os.lstat(path).st_mode):  # opening a FIFO or a device has side effects
        raise OSError(errno.EINVAL, "not a regular file")
    try:
        fd = os.open(path, _FLAGS | more)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == hard:
            raise
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        fd = os.open(path, _FLAGS | more)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def _cut(fd: int) -> int:
    """Truncates the open ledger to its size; returns how many bytes it had beyond."""
    before = os.fstat(fd)
    cut = vcuda.trim_open_ledger(fd)
    with contextlib.suppress(OSError):  # a file system without attributes
        for name in os.listxattr(fd):
            if name.startswith("user."):
                os.removexattr(fd, name)
                cut = True
    if not cut:
        return 0
    after = os.fstat(fd)
    return max(1, before.st_size - after.st_size, (before.st_blocks - after.st_blocks) * 512)
