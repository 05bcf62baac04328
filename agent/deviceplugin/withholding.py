# SPDX-License-Identifier: Apache-2.0
"""Takes free device IDs off the kubelet's list that no container can get, whenever that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from agent.apiserver import Cluster
from agent.inventory.holder import GpusNow
from agent.persistence.store import Store
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.deviceplugin.withheld import unheld, withheld
from gigaslice.runtime.wakeup import Alarm

__all__ = ["Withholding"]


class Withholding:
    """Follows the allocation table, the GPUs and the pods."""

    def __init__(
        self,
        store: Store,
        gpus: GpusNow,
        cluster: Cluster,
        *,
        interval: float,
        withhold: Callable[[frozenset[str]], None],
        outlived: Callable[[], Collection[str]],
        closed: bool = False,
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table.
            gpus: The GPUs.
            cluster: The pods of this node.
            interval: Seconds between two passes without news.
            withhold: Receives the device IDs that the kubelet must not allocate.
            outlived: Returns the allocations whose pods have long been over while processes of theirs live.
            closed: Another API gives out all that is new: only what containers have is left to the kubelet.
        """
        self._store = store
        self._gpus = gpus
        self._cluster = cluster
        self._interval = interval
        self._withhold = withhold
        self._outlived = outlived
        self._closed = closed
        self._last_uncounted: frozenset[str] = frozenset()
        self._alarm = Alarm()

    async def run(self) -> None:
        """Works until cancelled."""
        self._store.watchers.append(self._alarm.ring)
        following = asyncio.create_task(self._follow_pods())
        try:
            while True:
                self.apply()
                await self._alarm.wait(self._interval)
        finally:
            self._store.watchers.remove(self._alarm.ring)
            following.cancel()
            await asyncio.wait([following])

    def apply(self) -> None:
        """Takes off the list what cannot be had now. Before the list is served, too: the kubelet would give it out."""
        self._withhold(self.device_ids())

    def device_ids(self) -> frozenset[str]:
        """Returns the device IDs that the kubelet must not allocate now."""
        if self._closed:
            return unheld(self._store.table, self._gpus.now.gpus)
        self._last_uncounted = self._uncounted()
        return withheld(self._store.table, self._gpus.now.gpus, self._last_uncounted)

    async def _follow_pods(self) -> None:
        while True:
            await self._cluster.news(self._interval)
            self._alarm.ring()

    def _uncounted(self) -> frozenset[str]:
        """Allocations that neither the kubelet nor the scheduler counts: forgotten, and without a running pod.

        While the API server shows a pod, the scheduler subtracts its requests, whatever the kubelet has recorded. What
        is forgotten is over as a rule, and only not known to be: an agent that has just started knows of no end before
        it has polled for some seconds. The slices that would be withheld for it are such as the scheduler counts on,
        and the kubelet would fail its pods. So only what has outlived its pod for long counts here; a start waits for
        the others. An API server that is away changes nothing.
        """
        outlived = frozenset(self._outlived())
        if not (self._cluster.expected and self._cluster.synced):
            return self._last_uncounted & outlived
        uncounted = set()
        for allocation in self._store.table.allocations:
            origin = plugin(allocation)
            if allocation.id not in outlived or not origin.forgotten or not allocation.keeps:
                continue
            if origin.ref is not None:
                pod = self._cluster.pod(origin.ref.namespace, origin.ref.pod)
                same = pod is not None and (origin.owner is None or origin.owner.uid == pod.uid or pod.mirror)
                if pod is None or not same or pod.terminal:
                    uncounted.add(allocation.id)
        return frozenset(uncounted)
