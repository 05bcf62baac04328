"""The inventory holder: scans the hardware at intervals, holds the last inventory, and passes on every change.

A scan may block in the driver, so it runs in a thread. A scan that fails changes nothing: a driver that is being
replaced or a file that is being edited must not cost the node its devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agent.inventory.source import Inventory, Source, merge
from gigaslice.errors import GigasliceError
from gigaslice.runtime.logs import get_logger

__all__ = ["Scanner"]


class Scanner:
    """Scans SOURCE every INTERVAL seconds; begins with PRESENT, and awaits CHANGED with every new inventory."""

    def __init__(
        self,
        source: Source,
        present: Inventory,
        interval: float,
        changed: Callable[[Inventory], Awaitable[None]],
    ) -> None:
        self._source = source
        self._present = present
        self._interval = interval
        self._changed = changed
        self._failure = ""
        self._log = get_logger("scanner")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.scan()

    async def scan(self) -> None:
        """Scans once."""
        try:
            now = merge(self._present, await asyncio.to_thread(self._source.scan))
        except GigasliceError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                self._log.error("scan failed; using the last inventory", detail=self._failure)
            return
        self._failure = ""
        if now != self._present:
            self._report(now)
            self._present = now
            await self._changed(now)

    def _report(self, now: Inventory) -> None:
        for sentence in now.warnings:
            if sentence not in self._present.warnings:
                self._log.warning("discovery", detail=sentence)
        before = {gpu.uuid: gpu.healthy for gpu in self._present.gpus}
        for gpu in now.gpus:
            if before.get(gpu.uuid) != gpu.healthy:
                self._log.warning(
                    "GPU changed", gpu=gpu.uuid, healthy=gpu.healthy, new=gpu.uuid not in before
                )
