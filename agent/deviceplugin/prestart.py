# SPDX-License-Identifier: Apache-2.0
"""The waiting in PreStartContainer: holds a container back until nothing stands in the way of its start.

The kubelet repeats a call that was held for long at once, and one that failed soon after ten to fifteen seconds, in
which free memory would idle: so a call is held for nearly as long as the kubelet lets it. That holds up the pod's own
worker alone, with its deletion, so it ends with the deletion and is short where that cannot be seen. What is waited
for is told by `agent.allocation.start`, and by `agent.deviceplugin.settlement` for pods whose annotations came late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.allocation.start import StartBlocker, StartChecks
from agent.allocation.start_wait import StartTimes, StartWaiter
from agent.apiserver import Cluster
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.settlement import Settlement
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.deviceplugin.origin import container_ref, plugin
from gigaslice.core.errors import GigasliceError
from gigaslice.runtime.logs import get_logger

__all__ = ["StartDecider"]

_TAKEN = "the kubelet has given this container's devices to another one; delete the pod"


class StartDecider:
    """Decides over the starts of containers that have allocations."""

    def __init__(
        self,
        store: Store,
        checks: StartChecks,
        settlement: Settlement,
        cluster: Cluster,
        *,
        events: PodEvents,
        blocked: Callable[[], None],
        times: StartTimes,
    ) -> None:
        """Initializes the decider.

        Args:
            store: The allocation table on disk.
            checks: Tells what an allocation waits for.
            settlement: Decides undecided allocations.
            cluster: The pods of this node.
            events: Sends what is waited for to the pod.
            blocked: Called at each decision to wait: limits and the list of ended pods may be out of date.
            times: How long starts are waited for.
        """
        self._waiter = StartWaiter(store, blocked, times)
        self._store = store
        self._checks = checks
        self._settlement = settlement
        self._cluster = cluster
        self._events = events
        self._told: dict[str, str] = {}  # what was last reported within a call, by allocation
        self._log = get_logger("plugin")

    @property
    def waiting(self) -> int:
        """How many containers wait now."""
        return self._waiter.waiting

    async def decide(self, allocations: Sequence[Allocation], remaining: float | None) -> str | None:
        """Waits until a container may start.

        Args:
            allocations: The allocations that the start can be for, newest first. Their files are mended if need be.
            remaining: Seconds until the caller gives up, None where it does not.

        Returns:
            None when the container may start, else the reason why not yet.
        """
        newest = allocations[0].id
        try:
            blocker = await self._decide(allocations, remaining)
            if blocker is None:
                return None
            self._report(newest, blocker)
            return blocker.text
        finally:
            self._told.pop(newest, None)

    async def _decide(
        self, allocations: Sequence[Allocation], remaining: float | None
    ) -> StartBlocker | None:
        try:
            for allocation in allocations:
                self._store.ensure(allocation)
            blocker = await self._wait_until_ready(allocations[0].id, remaining)
            if blocker is None:  # and not before: what was decided while waiting must be on the disk, too
                blocker = None if await self._checks.recorded(allocations[0].id) else StartBlocker(_TAKEN)
        except GigasliceError as error:
            self._log.error("start decision failed", detail=str(error))
            return StartBlocker(str(error))
        return blocker

    def close(self) -> None:
        """Makes every call return at its next decision: the agent is about to end."""
        self._waiter.close()

    async def _wait_until_ready(self, allocation_id: str, remaining: float | None) -> StartBlocker | None:
        async def blocker() -> StartBlocker | None:
            while True:
                allocation = self._store.table.find(allocation_id)
                if allocation is None:
                    return StartBlocker(_TAKEN, final=True)
                reason = await self._blocker(allocation)
                if reason is not None or not allocation.origin.undecided:
                    return reason  # else it is decided now, and looked at once more

        def report(reason: StartBlocker) -> None:
            self._report(allocation_id, reason)

        return await self._waiter.wait(blocker, lambda: self._patience(allocation_id), remaining, report)

    def _patience(self, allocation_id: str) -> float:
        """Returns how long a call is held in all, by what is known of its pod now: none once it is to be deleted."""
        allocation, times = self._store.table.find(allocation_id), self._waiter.times
        if allocation is None:
            return 0.0
        ref, owner = container_ref(allocation), plugin(allocation).owner
        pod = self._cluster.pod(ref.namespace, ref.pod) if ref and self._cluster.synced else None
        if pod is None or (owner is not None and owner.uid != pod.uid):
            return min(times.unwatched_patience, times.patience)
        return 0.0 if pod.ending else times.patience

    async def _blocker(self, allocation: Allocation) -> StartBlocker | None:
        """Returns why the container may not start yet, as of now."""
        if allocation.origin.undecided:
            text = await self._settlement.blocker(allocation)
            return None if text is None else StartBlocker(text)
        return await self._checks.blocker(allocation)

    def _report(self, allocation_id: str, blocker: StartBlocker) -> None:
        allocation = self._store.table.find(allocation_id)
        if self._told.get(allocation_id) == blocker.text:
            return
        self._told[allocation_id] = blocker.text
        name = allocation.name if allocation else allocation_id
        self._log.info("start delayed", allocation=allocation_id, container=name, detail=blocker.text)
        if allocation is not None:
            self._events.waiting(allocation, blocker.text, dataset=blocker.dataset)
