# SPDX-License-Identifier: Apache-2.0
"""Tells a pod whose refusal it was when the driver had no memory although its quota had room.

A program sees the same error either way. The ledger counts such refusals. What the driver says of the pod's limit in
the round after tells them apart. Text for the pod names its own numbers only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from agent.apiserver.consumer_pods import ConsumerPods
from agent.ledgers.usage import Reading
from agent.limits.refusal_counts import RefusalCounts
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.limits.driver_limit_messages import GpuLimitState
from gigaslice.core.units import format_bytes
from gigaslice.runtime.logs import get_logger

__all__ = ["DriverRefusals", "refused_by_limit"]


def refused_by_limit(state: GpuLimitState, gpu_room: int) -> bool:
    """Returns whether the driver's limit of a pod explains a refusal, and not a full GPU. Pure.

    What was asked for does not tell: the driver counts more for it than its size. So that counts which leaves less
    room, as of a moment later.

    Args:
        state: What the driver says of the pod.
        gpu_room: Bytes of the GPU that nothing holds.
    """
    if state.hard is None or state.used is None:
        return False
    return state.hard - state.used <= gpu_room


class DriverRefusals:
    """Looks at the ledgers every INTERVAL seconds.

    Args:
        table: The allocation table of now.
        readings: The ledgers of the last measuring round, by allocation.
        states: What the driver says of the pods of an allocation on a GPU.
        room: Bytes of a GPU that nothing holds.
        pods: Where events go.
        interval: See above.
    """

    def __init__(
        self,
        table: Callable[[], AllocationTable],
        readings: Callable[[], Mapping[str, Reading]],
        states: Callable[[Allocation, str], list[GpuLimitState]],
        *,
        room: Callable[[str], int],
        pods: ConsumerPods,
        interval: float,
    ) -> None:
        self._counts = RefusalCounts(table, readings, lambda reading: reading.driver_refused)
        self._states = states
        self._room = room
        self._pods = pods
        self._interval = interval
        self._log = get_logger("driver_limits")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            self.look()

    def look(self) -> None:
        """Reports every refusal since the last look."""
        for allocation, reading, risen in self._counts.rises():
            for gpu, count in risen.items():
                self._report(allocation, gpu, count, reading)

    def _report(self, allocation: Allocation, gpu: str, count: int, reading: Reading) -> None:
        asked = reading.driver_refused_bytes.get(gpu, 0)
        room = self._room(gpu)
        states = [state for state in self._states(allocation, gpu) if refused_by_limit(state, room)]
        size = f"{format_bytes(asked)} of" if asked else "memory of"
        used, limit = reading.used.get(gpu, 0), reading.limits.get(gpu, 0)
        own = f"the container uses {format_bytes(used)} of its {format_bytes(limit)}"
        if states:
            hard, held = states[0].hard or 0, states[0].used or 0
            text = (
                f"the driver refused {size} {gpu}: it counts {format_bytes(held)} of the {format_bytes(hard)} that it "
                f"lets the pod have, and {own}; --driver-limits-margin gives pods more"
            )
            self._pods.event(allocation, "Warning", "DriverLimitReached", text)
        else:
            text = f"the driver refused {size} {gpu}, which is full, and {own}; gigaslice status tells who has the rest"
            self._pods.event(allocation, "Warning", "GPUMemoryExhausted", text)
        self._log.warning(
            "driver refused memory",
            allocation=allocation.id,
            container=allocation.name,
            gpu=gpu,
            count=count,
            detail=text,
        )
