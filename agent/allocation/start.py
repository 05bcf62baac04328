"""The start decision: holds a container back until its GPUs are free and its allocation is safe on disk.

A container is allocated even where its memory is not free yet, or its annotations are not known, since a refused
allocation fails its pod for good. Its start is repeated until it succeeds, so everything that time can mend is waited
for here. A kubelet whose call failed repeats it after half a second, and from then on every twelve seconds, in which
free memory would idle: so a call is held for nearly as long as the kubelet lets it. That holds up the pod's own worker
alone, with its deletion, so it ends with the deletion and is short where that cannot be seen. The decision itself is
`gigaslice.allocation.start_decision`; this module supplies its facts, repeats it, and has a pod remade whose
annotations came too late for the GPUs that it has.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.allocation.dataset_gate import StartCondition
from agent.allocation.owner import owner_of
from agent.allocation.pod_events import PodEvents
from agent.allocation.service import AllocationService
from agent.apiserver import Cluster
from agent.persistence.store import Store
from gigaslice.allocation.table import Allocation
from gigaslice.errors import GigasliceError
from gigaslice.model import Pod
from gigaslice.runtime.logs import get_logger

__all__ = ["StartDecider"]

_PATIENCE = 25.0  # seconds that one call is held: the kubelet gives up after 30
_UNSEEN_PATIENCE = 5.0  # the same where nothing would show that the pod is to be deleted
_MARGIN = 5.0  # seconds until the caller gives up in which what was decided reaches the disk
_REPORT_SECONDS = 5.0  # of waiting until the pod is told for what
_INTERVAL = 0.1
_THREAD_PART = (
    0.05  # of this thread's time for all that wait: each decision reads the ledgers of all neighbours
)
_EVICT_AGAIN = 60.0
_UNKNOWN_SECONDS = 60.0  # how long a container is held back because its annotations cannot be read
_TAKEN = "the kubelet has given this container's devices to another one; delete the pod"


@dataclass(frozen=True, slots=True)
class _Blocker:
    """Why a container may not start yet. dataset: its GPUs are there, and a dataset is not."""

    text: str
    dataset: bool = False


class StartDecider:
    """Decides over the starts of containers that have allocations.

    Attributes:
        waiting: How many containers wait now.
    """

    def __init__(
        self,
        store: Store,
        service: AllocationService,
        cluster: Cluster,
        events: PodEvents,
        blocked: Callable[[], None],
        *,
        datasets: StartCondition | None = None,
    ) -> None:
        """Initializes the decider.

        Args:
            store: The allocation table on disk.
            service: Tells what an allocation waits for, and settles undecided ones.
            cluster: The pods of this node; evicts them.
            events: Sends what is waited for to the pod.
            blocked: Called at each decision to wait: limits and the list of ended pods may be out of date.
            datasets: Whether the datasets that a container mounts are there.
        """
        self.waiting = 0
        self._store = store
        self._service = service
        self._cluster = cluster
        self._events = events
        self._blocked = blocked
        self._datasets = datasets
        self._closed = False
        self._evict_again: dict[str, float] = {}  # when, by allocation
        self._told: dict[str, str] = {}  # what was last reported within a call, by allocation
        self._log = get_logger("plugin")

    async def decide(self, found: Sequence[Allocation], remaining: float | None) -> str | None:
        """Waits until a container may start.

        Args:
            found: The allocations that the start can be for, newest first. Their files are mended if need be.
            remaining: Seconds until the caller gives up, None where it does not.

        Returns:
            None when the container may start, else the reason why not yet.
        """
        newest = found[0].id
        try:
            blocker = await self._decide(found, remaining)
            if blocker is None:
                return None
            self._report(newest, blocker)
            return blocker.text
        finally:
            self._told.pop(newest, None)

    async def _decide(self, found: Sequence[Allocation], remaining: float | None) -> _Blocker | None:
        try:
            for allocation in found:
                self._store.ensure(allocation)
            blocker = await self._wait_until_ready(found[0].id, remaining)
            if blocker is None:  # and not before: what was decided while waiting must be on the disk, too
                await asyncio.to_thread(self._store.sync)
                blocker = None if self._store.table.find(found[0].id) else _Blocker(_TAKEN)
        except GigasliceError as error:
            self._log.error("start decision failed", detail=str(error))
            return _Blocker(str(error))
        return blocker

    def close(self) -> None:
        """Makes every call return at its next decision: the agent is about to end."""
        self._closed = True

    async def _wait_until_ready(self, allocation_id: str, remaining: float | None) -> _Blocker | None:
        longest = math.inf if remaining is None else max(remaining - _MARGIN, remaining / 2)
        self.waiting += 1
        try:
            return await self._wait_until(allocation_id, time.monotonic(), longest)
        finally:
            self.waiting -= 1

    async def _wait_until(self, allocation_id: str, came: float, longest: float) -> _Blocker | None:
        while True:
            begun = time.thread_time()
            allocation = self._store.table.find(allocation_id)
            if allocation is None:
                return _Blocker(_TAKEN)
            blocker = await self._blocker(allocation)
            if allocation.undecided and blocker is None:
                continue  # now it is decided
            held = time.monotonic() - came
            left = min(self._patience(allocation), longest) - held
            if blocker is None or self._closed or left <= 0:
                return blocker
            if held >= _REPORT_SECONDS and allocation_id not in self._told:
                self._report(allocation_id, blocker)
            self._blocked()
            busy = (time.thread_time() - begun) * self.waiting / _THREAD_PART
            await asyncio.sleep(max(_INTERVAL, min(busy, left)))

    def _patience(self, allocation: Allocation) -> float:
        """Returns how long a call is held in all, by what is known of its pod now: none once it is to be deleted."""
        ref = allocation.ref
        pod = self._cluster.pod(ref.namespace, ref.pod) if ref and self._cluster.synced else None
        if pod is None or (allocation.owner is not None and allocation.owner.uid != pod.uid):
            return min(_UNSEEN_PATIENCE, _PATIENCE)
        return 0.0 if pod.ending else _PATIENCE

    async def _blocker(self, allocation: Allocation) -> _Blocker | None:
        """Returns why the container may not start yet, as of now. Datasets come last: they are the node's own work."""
        if allocation.undecided:
            text = await self._settle(allocation)
            return None if text is None else _Blocker(text)
        if (text := self._service.start_blocker(allocation)) is not None:
            return _Blocker(text)
        text = await self._dataset_blocker(allocation)
        return None if text is None else _Blocker(text, dataset=True)

    async def _dataset_blocker(self, allocation: Allocation) -> str | None:
        """Returns what datasets the container still waits for; None where there is nothing to wait for."""
        if self._datasets is None:
            return None
        ref, owner = allocation.ref, allocation.owner
        pod = self._cluster.pod(ref.namespace, ref.pod) if ref is not None else None
        if pod is not None and owner is not None and owner.uid != pod.uid:
            pod = None
        return await self._datasets.blocker(allocation, pod)

    async def _settle(self, allocation: Allocation) -> str | None:
        """Settles an undecided allocation. Returns why that is not possible yet; None when it is settled."""
        resource = self._service.resource_of(allocation)
        requester = owner_of(allocation, self._cluster.pod, self._store.table, resource)
        soon = self._cluster.expected and self._service.age(allocation) < _UNKNOWN_SECONDS
        if requester is None and (soon or self._service.executes_assignments):
            return "waiting for the pod's annotations from the API server"
        if requester is None:
            self._log.warning("annotations unknown; started with defaults", allocation=allocation.id)
        settled = self._service.settle(allocation, requester)
        if settled.refused and requester is not None:
            self._events.not_executable(requester, settled.reason or "")
        if settled.remake and requester is not None:
            await self._have_remade(requester.pod, allocation, settled.reason or "")
        return settled.reason

    async def _have_remade(self, pod: Pod, allocation: Allocation, reason: str) -> None:
        """Evicts a pod where a controller makes it anew.

        Tries again after a while: a disruption budget can refuse, and the caller can end the call that this is part of.
        A dry run comes first, so that no event announces an eviction that is then refused.
        """
        now = time.monotonic()
        if not pod.controlled or pod.ending or now < self._evict_again.get(allocation.id, now):
            return
        self._evict_again = {one: at for one, at in self._evict_again.items() if self._store.table.find(one)}
        self._evict_again[allocation.id] = now + _EVICT_AGAIN
        eviction = await self._cluster.evict(pod, dry_run=True)
        if eviction.done:
            self._events.evicting(pod, allocation, reason)
            eviction = await self._cluster.evict(pod)
        if eviction.gone:
            self._log.info("pod to be evicted is gone", pod=str(pod), allocation=allocation.id)
            return
        event = "pod not evicted" if eviction.problem else "pod evicted"
        self._log.warning(event, pod=str(pod), allocation=allocation.id, detail=eviction.problem or reason)

    def _report(self, allocation_id: str, blocker: _Blocker) -> None:
        allocation = self._store.table.find(allocation_id)
        if self._told.get(allocation_id) == blocker.text:
            return
        self._told[allocation_id] = blocker.text
        name = allocation.name if allocation else allocation_id
        self._log.info("start delayed", allocation=allocation_id, container=name, detail=blocker.text)
        if allocation is not None:
            self._events.waiting(allocation, blocker.text, dataset=blocker.dataset)
