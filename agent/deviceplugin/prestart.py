"""The waiting in PreStartContainer: holds a container back until nothing stands in the way of its start.

The kubelet repeats a call that was held for long at once, and one that failed soon after ten to fifteen seconds, in
which free memory would idle: so a call is held for nearly as long as the kubelet lets it. That holds up the pod's own
worker alone, with its deletion, so it ends with the deletion and is short where that cannot be seen. What is waited
for is told by `agent.allocation.start`, and by `agent.deviceplugin.settlement` for pods whose annotations came late.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.allocation.start import StartBlocker, StartChecks
from agent.apiserver import Cluster
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.settlement import Settlement
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.deviceplugin.origin import container_ref, plugin
from gigaslice.core.errors import GigasliceError
from gigaslice.runtime.logs import get_logger

__all__ = ["StartDecider", "StartTimes"]

_TAKEN = "the kubelet has given this container's devices to another one; delete the pod"


@dataclass(frozen=True, slots=True)
class StartTimes:
    """How long a start is waited for, and how often it is decided on. Seconds, and parts of this thread's time.

    Attributes:
        patience: How long one call is held: the kubelet gives up after 30 seconds.
        unwatched_patience: The same where nothing would show that the pod is to be deleted.
        margin: The time before the caller gives up in which what was decided reaches the disk.
        report_after: The waiting after which the pod is told what it waits for.
        interval: The shortest time between two decisions over one start.
        thread_part: What all that wait may take of the thread, since each decision reads the ledgers of all neighbours.
        changed_part: The same while the allocation table changes, as it does when memory has become free.
    """

    patience: float = 25.0
    unwatched_patience: float = 5.0
    margin: float = 5.0
    report_after: float = 5.0
    interval: float = 0.1
    thread_part: float = 0.05
    changed_part: float = 0.25


class StartDecider:
    """Decides over the starts of containers that have allocations.

    Attributes:
        waiting: How many containers wait now.
    """

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
        self.waiting = 0
        self._store = store
        self._checks = checks
        self._settlement = settlement
        self._cluster = cluster
        self._events = events
        self._blocked = blocked
        self._times = times
        self._closed = False
        self._told: dict[str, str] = {}  # what was last reported within a call, by allocation
        self._log = get_logger("plugin")

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
        self._closed = True

    async def _wait_until_ready(self, allocation_id: str, remaining: float | None) -> StartBlocker | None:
        longest = math.inf if remaining is None else max(remaining - self._times.margin, remaining / 2)
        self.waiting += 1
        try:
            return await self._wait_until(allocation_id, time.monotonic(), longest)
        finally:
            self.waiting -= 1

    async def _wait_until(self, allocation_id: str, came: float, longest: float) -> StartBlocker | None:
        times = self._times
        while True:
            begun = time.thread_time()
            allocation = self._store.table.find(allocation_id)
            if allocation is None:
                return StartBlocker(_TAKEN)
            blocker = await self._blocker(allocation)
            if allocation.origin.undecided and blocker is None:
                continue  # now it is decided
            held = time.monotonic() - came
            left = min(self._patience(allocation), longest) - held
            if blocker is None or self._closed or left <= 0:
                return blocker
            if held >= times.report_after and allocation_id not in self._told:
                self._report(allocation_id, blocker)
            self._blocked()
            busy = (time.thread_time() - begun) * self.waiting
            await self._pause(min(busy / times.changed_part, left), min(busy / times.thread_part, left))

    async def _pause(self, shortest: float, longest: float) -> None:
        """Sleeps so long, and the shorter time where the allocation table changes or the agent is about to end."""
        table, begun = self._store.table, time.monotonic()
        await asyncio.sleep(max(self._times.interval, shortest))
        while self._store.table is table and not self._closed:
            left = longest - (time.monotonic() - begun)
            if left <= 0:
                return
            await asyncio.sleep(min(self._times.interval, left))

    def _patience(self, allocation: Allocation) -> float:
        """Returns how long a call is held in all, by what is known of its pod now: none once it is to be deleted."""
        ref, owner = container_ref(allocation), plugin(allocation).owner
        pod = self._cluster.pod(ref.namespace, ref.pod) if ref and self._cluster.synced else None
        if pod is None or (owner is not None and owner.uid != pod.uid):
            return min(self._times.unwatched_patience, self._times.patience)
        return 0.0 if pod.ending else self._times.patience

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
