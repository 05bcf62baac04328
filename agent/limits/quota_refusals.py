# SPDX-License-Identifier: Apache-2.0
"""Tells a pod that its programs get no memory because the container's own quota is used up.

The processes count their refusals in the ledger, where the metrics find them too. A program that frees what it keeps in
reserve and tries again is refused once and then served, which is no event: a process must be refused twice between two
looks. Text for the pod names its own numbers only, and a container is told about once in ten minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from agent.apiserver.consumer_pods import ConsumerPods
from agent.ledgers.usage import Reading
from agent.limits.refusal_counts import RefusalCounts
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.units import format_bytes
from gigaslice.runtime.logs import get_logger

__all__ = ["QuotaRefusals"]

_AGAIN_SECONDS = 600.0
_IN_A_ROW = 2
_Process = tuple[int, int, int]


class QuotaRefusals:
    """Looks at the ledgers every INTERVAL seconds.

    Args:
        table: The allocation table of now.
        readings: The ledgers of the last measuring round, by allocation.
        pods: Where events go.
        interval: See above.
        now: A monotonic clock.
    """

    def __init__(
        self,
        table: Callable[[], AllocationTable],
        readings: Callable[[], Mapping[str, Reading]],
        *,
        pods: ConsumerPods,
        interval: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = RefusalCounts(table, readings, _of_processes)
        self._table = table
        self._pods = pods
        self._interval = interval
        self._now = now
        self._again_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}
        self._log = get_logger("limits")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            self.look()

    def look(self) -> None:
        """Reports what was refused since the last look."""
        for allocation, reading, risen in self._counts.rises():
            self._untold[allocation.id] = self._untold.get(allocation.id, 0) + sum(
                more for more in risen.values() if more >= _IN_A_ROW
            )
            now = self._now()
            if self._untold[allocation.id] and now >= self._again_at.get(allocation.id, now):
                self._report(allocation, self._untold.pop(allocation.id), reading)
                self._again_at[allocation.id] = now + _AGAIN_SECONDS
        ids = {allocation.id for allocation in self._table().allocations}
        for kept in (self._again_at, self._untold):
            for gone in kept.keys() - ids:
                del kept[gone]

    def _report(self, allocation: Allocation, count: int, reading: Reading) -> None:
        sizes = [
            f"{format_bytes(_used(reading, gpu))} of {format_bytes(limit)} on {gpu}"
            for gpu, limit in reading.limits.items()
        ]
        text = (
            f"the container's own quota is used up: {count} allocations were refused, and it uses {', '.join(sizes)} "
            "now; use less, or ask for more GPU memory in the pod's limits"
        )
        self._pods.event(allocation, "Warning", "GPUQuotaUsedUp", text)
        self._log.warning(
            "quota refused memory",
            allocation=allocation.id,
            container=allocation.name,
            count=count,
            detail=text,
        )


def _of_processes(reading: Reading) -> dict[_Process, int]:
    return {
        (process.slot, process.pid_inside, process.generation): process.refused
        for process in reading.processes
    }


def _used(reading: Reading, gpu: str) -> int:
    return reading.used.get(gpu, 0) + reading.undeclared.get(gpu, 0)
