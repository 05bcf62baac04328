# SPDX-License-Identifier: Apache-2.0
"""Scans the hardware at intervals, and passes on every change.

A scan may block in the driver, so it runs in a thread. A scan that fails changes nothing: a driver that is being
replaced or a file that is being edited must not cost the node its devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent.inventory.source import Inventory, Source, merge
from gigaslice.core.errors import GigasliceError
from gigaslice.runtime.logs import get_logger

__all__ = ["Scanner"]


class Scanner:
    """Scans SOURCE every INTERVAL seconds, and calls CHANGED with an inventory that differs from the LAST."""

    def __init__(
        self,
        source: Source,
        interval: float,
        *,
        last: Callable[[], Inventory],
        changed: Callable[[Inventory], None],
    ) -> None:
        self._source = source
        self._last = last
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
            scanned = await asyncio.to_thread(self._source.scan)
        except GigasliceError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                self._log.error("scan failed; using the last inventory", detail=self._failure)
            return
        self._failure = ""
        last = self._last()
        now = merge(last, scanned)
        if now != last:
            self._report(last, now)
            self._changed(now)

    def _report(self, last: Inventory, now: Inventory) -> None:
        for sentence in now.warnings:
            if sentence not in last.warnings:
                self._log.warning("discovery", detail=sentence)
        before = {gpu.uuid: gpu.healthy for gpu in last.gpus}
        for gpu in now.gpus:
            if before.get(gpu.uuid) != gpu.healthy:
                self._log.warning(
                    "GPU changed", gpu=gpu.uuid, healthy=gpu.healthy, new=gpu.uuid not in before
                )
