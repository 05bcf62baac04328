# SPDX-License-Identifier: Apache-2.0
"""Stands in the place of the manager of driver limits where none are to be set: --driver-limits=off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from agent.limits.driver_limit_report import DriverLimitReport, write_report
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.errors import StorageError
from gigaslice.core.limits.driver_limit_messages import GpuLimitState, PodLimitState

__all__ = ["NoDriverLimits"]


class NoDriverLimits:
    """No limits are set: --driver-limits=off. Limits that were set before stay until their pods have ended."""

    active = False

    def __init__(self, store: Store) -> None:
        self.report = DriverLimitReport("off", reason="--driver-limits=off")
        self.watchers: list[Callable[[], None]] = []
        self._store = store

    async def run(self) -> None:
        """Works until cancelled; there is nothing to do."""
        with contextlib.suppress(StorageError):
            write_report(self._store.state_dir, self.report)
        await asyncio.Event().wait()

    async def settled(self, seconds: float) -> None:
        """Returns at once."""
        del seconds

    async def blocker(self, allocation: Allocation) -> None:
        """Nothing."""
        del allocation

    def most_for(self, allocation: Allocation, gpu: str) -> None:
        """None: nothing bounds a limits page."""
        del allocation, gpu

    def states_of(self, allocation: Allocation, gpu: str) -> list[GpuLimitState]:
        """Nothing."""
        del allocation, gpu
        return []

    def room(self, gpu: str) -> int:
        """Nothing: without limits of the driver every refusal is that of a full GPU."""
        del gpu
        return 0

    def used_by(self, allocation: Allocation, gpu: str) -> None:
        """None: the driver counts nothing."""
        del allocation, gpu

    def pod_states(self) -> Iterator[tuple[str, str, PodLimitState]]:
        """Yields nothing."""
        return iter(())
