# SPDX-License-Identifier: Apache-2.0
"""Whether the state directory can take another allocation: room, permission, and a disk that takes what is written.

An allocation that cannot be recorded must be refused, and the kubelet fails that pod for good. So a directory that is
full or has become read-only is noticed before, and all slices are shown as not to be had meanwhile: pods go to other
nodes or wait in the scheduler. What a file system does not say of itself (a quota that is used up, a disk that fails)
is found out by writing as much as an allocation needs, now and then; a write of the agent that fails withdraws the
slices at once, until such a trial succeeds. Tests: tests/unit/agent/persistence/test_room.py, and with a real file
system tests/integration/agent/test_disk.py.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from gigaslice.core import units
from gigaslice.core.errors import StorageError
from gigaslice.runtime.files import remedy
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.wakeup import Alarm

__all__ = ["ENOUGH_BYTES", "Room"]

ENOUGH_BYTES = 4 << 20
"""Room for some ten allocations of 340 KiB, and the checkpoint besides."""
_ENOUGH_FILES = 64
_LOOK_SECONDS = 2.0
_TRY_SECONDS = 15.0  # between two trials while all is well
_PATIENCE = 30.0  # for a trial


class Room:
    """Looks at DIRECTORY, and calls CHANGED with whether it can be used when that is another answer than before.

    PROBE writes as an allocation would, in another thread, and raises StorageError. FAILURES has a function called with
    the reason whenever a write of the agent has failed.
    """

    def __init__(
        self,
        directory: Path,
        changed: Callable[[bool], None],
        look: Callable[[Path], os.statvfs_result] = os.statvfs,
        interval: float = _LOOK_SECONDS,
        *,
        probe: Callable[[], None] = lambda: None,
        patience: float = _PATIENCE,
        failures: Callable[[Callable[[str], None]], None] = lambda told: None,
    ) -> None:
        self.problem = ""
        self._directory = directory
        self._changed = changed
        self._look = look
        self._interval = interval
        self._probe = probe
        self._patience = patience
        self._trial: asyncio.Future[None] | None = None
        self._tried_at = -math.inf  # an agent before this one may have known more
        self._failure = ""  # of a write
        self._fresh = False  # it was told of, and not looked at yet
        self._alarm = Alarm()
        self._log = get_logger("state")
        failures(self.write_failed)

    def write_failed(self, why: str) -> None:
        """A write of the agent has failed: the slices are withdrawn at once. Called in the agent's own thread."""
        self._failure, self._fresh = why, True
        self._alarm.ring()

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self.check()
            await self._alarm.wait(self._interval)

    async def check(self) -> None:
        """Looks once."""
        before, self.problem = self.problem, self._judge() or await self._written()
        if self.problem and not before:
            self._log.error("state directory unusable; no new allocations", detail=self.problem)
        elif before and not self.problem:
            self._log.warning("state directory usable again")
        if bool(before) != bool(self.problem):
            self._changed(not self.problem)

    async def _written(self) -> str:
        """Why nothing can be written; empty when a trial has just succeeded, or is not due yet."""
        if self._fresh:
            self._fresh = False
            return self._failure
        if not self._failure and time.monotonic() - self._tried_at < _TRY_SECONDS:
            return ""
        if self._trial is None:
            self._trial = asyncio.ensure_future(asyncio.to_thread(self._probe))
        done, _ = await asyncio.wait({self._trial}, timeout=self._patience)
        if not done:
            self._failure = (
                f"{self._directory}: the disk has not answered for {self._patience:g} seconds; see dmesg"
            )
            return self._failure
        trial, self._trial, self._tried_at = self._trial, None, time.monotonic()
        if self._fresh:  # a real write has failed meanwhile
            return await self._written()
        try:
            self._failure = ""
            trial.result()
        except StorageError as error:
            self._failure = str(error)
        return self._failure

    def _judge(self) -> str:
        try:
            filesystem = self._look(self._directory)
        except OSError as error:
            return f"{self._directory}: {error.strerror}; {remedy(error)}"
        if filesystem.f_flag & os.ST_RDONLY:
            return f"{self._directory} is read-only; see dmesg, and mount it writable again"
        free = (filesystem.f_bfree if os.geteuid() == 0 else filesystem.f_bavail) * filesystem.f_frsize
        if free < ENOUGH_BYTES:
            size, enough = units.format_bytes(free), units.format_bytes(ENOUGH_BYTES)
            return f"{self._directory} has {size} free; {enough} are needed"
        if filesystem.f_files and filesystem.f_ffree < _ENOUGH_FILES:
            return (
                f"{self._directory} has room for {filesystem.f_ffree} more files; {_ENOUGH_FILES} are needed"
            )
        return ""
