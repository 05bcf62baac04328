"""Whether the state directory can take another allocation: room on its file system, and permission to write there.

An allocation that cannot be recorded must be refused, and the kubelet fails that pod for good. So a directory that is
full or has become read-only is noticed before, and all slices are shown as not to be had meanwhile: pods go to other
nodes or wait in the scheduler. Nothing is written to find out. Tests: tests/unit/state/test_room.py, and with a real
file system tests/integration/agent/test_disk.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent import units
from agent.telemetry.logs import get_logger

__all__ = ["ENOUGH_BYTES", "Room"]

ENOUGH_BYTES = 4 << 20
"""Room for some ten allocations of 340 KiB, and the checkpoint besides."""
_ENOUGH_FILES = 64
_LOOK_SECONDS = 2.0


class Room:
    """Looks at DIRECTORY, and awaits CHANGED with whether it can be used when that is another answer than before."""

    def __init__(
        self,
        directory: Path,
        changed: Callable[[bool], Awaitable[None]],
        look: Callable[[Path], os.statvfs_result] = os.statvfs,
        interval: float = _LOOK_SECONDS,
    ) -> None:
        self.problem = ""
        self._directory = directory
        self._changed = changed
        self._look = look
        self._interval = interval
        self._log = get_logger("state")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval)

    async def look(self) -> None:
        """Looks once."""
        before, self.problem = self.problem, self._judge()
        if self.problem and not before:
            self._log.error("state directory cannot be used; no new allocations", detail=self.problem)
        elif before and not self.problem:
            self._log.warning("state directory can be used again")
        if bool(before) != bool(self.problem):
            await self._changed(not self.problem)

    def _judge(self) -> str:
        try:
            found = self._look(self._directory)
        except OSError as error:
            return f"{self._directory}: {error.strerror}"
        if found.f_flag & os.ST_RDONLY:
            return f"{self._directory} is read-only; see dmesg, and mount it writable again"
        free = (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize
        if free < ENOUGH_BYTES:
            size, enough = units.format_bytes(free), units.format_bytes(ENOUGH_BYTES)
            return f"{self._directory} has {size} free; {enough} are needed"
        if found.f_files and found.f_ffree < _ENOUGH_FILES:
            return f"{self._directory} has room for {found.f_ffree} more files; {_ENOUGH_FILES} are needed"
        return ""
