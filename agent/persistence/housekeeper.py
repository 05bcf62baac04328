# SPDX-License-Identifier: Apache-2.0
"""The work on the state directory that takes a disk long: done in another thread, where it holds up no call.

After a change of the allocation table the files of the next allocations are made, since the next request usually
follows at once. Then what was recorded is synced and what has ended is removed; from time to time that is done again,
for what could not be written.
"""

from __future__ import annotations

import asyncio
import time

from agent.persistence.store import Store
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.errors import GigasliceError
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.wakeup import Alarm

__all__ = ["Housekeeper"]

_AFTER_CHANGE = 0.005  # seconds until files for the next allocation are made
_SYNC_SECONDS = 0.2  # after a change, until it is synced: changes come in bursts


class Housekeeper:
    """Keeps house in the state directory of STORE; every INTERVAL seconds at least."""

    def __init__(self, store: Store, interval: float) -> None:
        self._store = store
        self._interval = interval
        self._alarm = Alarm()
        self._synced: AllocationTable | None = None
        self._reported = LogOnce()
        self._log = get_logger("state")

    async def run(self) -> None:
        """Works until cancelled."""
        self._store.watchers.append(self._alarm.ring)
        due = time.monotonic()
        try:
            while True:
                if await self._alarm.wait(due - time.monotonic()):
                    await asyncio.sleep(_AFTER_CHANGE)
                    await asyncio.to_thread(self._store.make_ahead)
                    due = min(due, time.monotonic() + _SYNC_SECONDS)
                if time.monotonic() >= due:
                    due = time.monotonic() + self._interval
                    await self.keep()
        finally:
            self._store.watchers.remove(self._alarm.ring)

    async def keep(self) -> None:
        """Syncs and tidies once."""
        try:
            await asyncio.to_thread(self._sync_and_tidy)
            self._reported.over("failed")
        except GigasliceError as error:
            if self._reported.new("failed", str(error)):
                self._log.error("state directory not synced", detail=str(error))

    def _sync_and_tidy(self) -> None:
        table = self._store.table
        if table is not self._synced:
            self._store.sync()  # first: what is tidied away may be all that a power failure would leave
            self._synced = table
        self._store.tidy()
