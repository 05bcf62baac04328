# SPDX-License-Identifier: Apache-2.0
"""What the start of a container waits for: its GPUs, its datasets, and its allocation being safe on disk.

A container is allocated even where its memory is not free yet, since a refused allocation fails its pod for good. Every
API that hands out allocations has a call before a start that is repeated until it succeeds, so everything that time can
mend is waited for there. How long one call waits is the API's matter. The decision over GPUs is
`gigaslice.core.allocation.start_decision`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from agent.allocation.dataset_gate import StartCondition
from agent.allocation.service import AllocationService
from agent.apiserver import Cluster
from agent.persistence.store import Store
from gigaslice.core.allocation.consumer import Consumer
from gigaslice.core.allocation.table import Allocation

__all__ = ["StartBlocker", "StartChecks"]


@dataclass(frozen=True, slots=True)
class StartBlocker:
    """Why a container may not start yet.

    Attributes:
        text: The reason, in a sentence.
        dataset: Its GPUs are there, and a dataset is not.
        final: Waiting does not help.
    """

    text: str
    dataset: bool = False
    final: bool = False


class DriverLimits(Protocol):
    """The driver's own limits of pods."""

    async def blocker(self, allocation: Allocation) -> str | None:
        """Sets those of the pods of an allocation. Returns why it may not start without, None when it may start."""
        ...


class StartChecks:
    """Tells what a start waits for, as of now."""

    def __init__(
        self,
        store: Store,
        service: AllocationService,
        cluster: Cluster,
        datasets: StartCondition | None = None,
        driver_limits: DriverLimits | None = None,
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table on disk.
            service: Tells what an allocation waits for.
            cluster: The pods of this node.
            datasets: Whether the datasets that a container mounts are there.
            driver_limits: Has the driver bound the pod before its first process runs.
        """
        self._store = store
        self._service = service
        self._cluster = cluster
        self._datasets = datasets
        self._driver_limits = driver_limits

    async def blocker(self, allocation: Allocation) -> StartBlocker | None:
        """Returns why the container may not start yet. Datasets come late: they are the node's own work.

        The driver's limit is set last, when the container is about to start.
        """
        if (text := self._service.start_blocker(allocation)) is not None:
            return StartBlocker(text)
        for consumer in allocation.consumers or (None,):
            text = await self._dataset_blocker(consumer)
            if text is not None:
                return StartBlocker(text, dataset=True)
        text = await self._driver_limits.blocker(allocation) if self._driver_limits is not None else None
        return None if text is None else StartBlocker(text)

    async def recorded(self, allocation_id: str) -> bool:
        """Returns once what was decided is on the disk: whether the allocation is still there."""
        await asyncio.to_thread(self._store.sync)
        return self._store.table.find(allocation_id) is not None

    async def _dataset_blocker(self, consumer: Consumer | None) -> str | None:
        """Returns what datasets a container still waits for; None where there is nothing to wait for."""
        if self._datasets is None:
            return None
        ref = consumer.ref if consumer else None
        pod = self._cluster.pod(ref.namespace, ref.pod) if ref else None
        if pod is not None and consumer is not None and not consumer.may_be_of(pod):
            pod = None
        return await self._datasets.blocker(consumer, pod)
