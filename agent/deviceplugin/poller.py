# SPDX-License-Identifier: Apache-2.0
"""Polls the kubelet's list: learns which container each allocation is for and which allocations are over.

Regular polls count towards releasing what is in doubt. Extra polls shortly after an event do not, so a burst of events
cannot shorten the time that a container is given. What has clearly ended is released by either, but never before its
ledger and the node's processes have been read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from agent.accounting.presence import Presence, find_mounted
from agent.apiserver import Cluster, NoCluster
from agent.deviceplugin.admission import known_pods
from agent.deviceplugin.assigned import with_assignment
from agent.deviceplugin.device_allocator import DeviceAllocator
from agent.deviceplugin.reviews import carry_out
from agent.deviceplugin.settlement import Settler
from agent.deviceplugin.start_allocation import is_place_of
from agent.kubelet.podresources import PodResources
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.deviceplugin.lifetime import (
    Evidence,
    Liveness,
    PodListing,
    allocations_of_listed,
    liveness,
)
from gigaslice.core.deviceplugin.origin import container_ref, plugin, plugin_part
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse, review
from gigaslice.core.errors import GigasliceError, KubeletError
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.wakeup import Alarm
from gigaslice.runtime.yielding import with_breaks

__all__ = ["Plan", "Poller"]

PATIENCE = 3
"""Regular polls in a row that must not show a container before its allocation is released."""
_NEVER = 1 << 30
_NEWS_SECONDS = 60.0
_FORGOTTEN = (
    "the kubelet has lost its record of this container's devices, as when its checkpoint is removed; the container "
    "runs on within its quota, but cannot be started again: delete the pod when that suits"
)
_YOUNG_SECONDS = 300.0  # the kubelet lists a pod from its admission on, and admits one after the other
# Seconds after an event: the kubelet lists a container's devices once it has taken the answer.
_SOON = (0.2, 1.0, 3.0)
# And at most these after another event: a start that is held asks all the time until memory is free.
_AGAIN = 0.5


@dataclass(slots=True)
class Plan:
    """The times of the next polls: the regular one, and the extra ones after an event."""

    regular: float
    extra: list[float]

    def ask(self, now: float) -> None:
        """Plans the extra polls after an event at NOW."""
        if not self.extra:
            self.extra = [now + delay for delay in _SOON]
        elif min(self.extra) > now + _AGAIN:
            self.extra.append(now + _AGAIN)

    def due(self) -> float:
        """Returns when the next poll is."""
        return min([self.regular, *self.extra])

    def done(self, now: float) -> None:
        """Takes what is due at NOW off the plan, but for the regular one."""
        self.extra = [moment for moment in self.extra if moment > now]


class Poller:
    """Compares the allocation table with the kubelet's list at intervals and after `wake`."""

    def __init__(
        self,
        store: Store,
        allocator: DeviceAllocator,
        settler: Settler,
        kubelet: PodResources,
        *,
        interval: float,
        now: Callable[[], float],
        cluster: Cluster | None = None,
        kept_responses: Callable[[], Sequence[KeptAllocateResponse] | None] = lambda: None,
        present: Callable[[Collection[str]], Presence] = find_mounted,
    ) -> None:
        """Initializes the poller.

        Args:
            store: The allocation table and its files.
            allocator: Has the GPUs.
            settler: Settles allocations whose containers become known.
            kubelet: The kubelet's pod-resources API.
            interval: Seconds between regular polls.
            now: Returns Unix time in seconds.
            cluster: The pods as the API server shows them.
            kept_responses: Reads the answers that the kubelet keeps; None where they cannot be read. Blocks.
            present: Finds the allocations that processes of the node have mounted. Blocks.
        """
        self._store = store
        self._allocator = allocator
        self._settler = settler
        self._kubelet = kubelet
        self._interval = interval
        self._now = now
        self._cluster: Cluster = cluster or NoCluster()
        self._kept_responses = kept_responses
        self._present = present
        self._unlisted: dict[str, int] = {}
        self._first_seen: dict[str, float] = {}
        self._logged: set[str] = set()  # forgotten ones that are in the log
        self._reported: set[str] = set()  # forgotten ones whose pods have the event
        self._alarm = Alarm()
        self._plan = Plan(0.0, [])
        self._failure = ""
        self._log = get_logger("poller")

    def outlived(self) -> frozenset[str]:
        """Returns the allocations that live by their processes alone: PATIENCE regular polls in a row have found
        nothing else that speaks for them.
        """
        return frozenset(key for key, count in self._unlisted.items() if count >= PATIENCE)

    def wake(self) -> None:
        """Polls soon: something has happened that the kubelet will list."""
        self._plan.ask(time.monotonic())
        self._alarm.ring()

    async def run(self) -> None:
        """Works until cancelled."""
        self._plan.regular = time.monotonic()
        while True:
            due = self._plan.due()
            await self._alarm.wait(due - time.monotonic())
            if time.monotonic() >= due:  # whether it rings or not: with many that wait it always does
                await self._due()

    async def follow(self) -> None:
        """Polls soon after the API server has shown that the pod of an allocation has ended. Works until cancelled."""
        while True:
            await self._cluster.news(_NEWS_SECONDS)
            if self._any_ended():
                self.wake()

    async def poll(self, *, regular: bool) -> None:
        """Reads the kubelet's list once. An extra poll releases only what has clearly ended."""
        asked_at = self._store.table.next_number
        try:
            listing = await self._kubelet.list()
            patience = PATIENCE if regular else _NEVER
            matched = allocations_of_listed(self._store.table, listing)
            responses: Sequence[KeptAllocateResponse] | None = None
            if matched.unrecorded or matched.shared:
                responses = await asyncio.to_thread(self._kept_responses)
            answered = None if responses is None else frozenset(kept.allocation for kept in responses)
            evidence = replace(await self._evidence(listing, asked_at, patience, answered), answered=answered)
            result = review(
                self._store.table,
                evidence,
                young=self._young(listing.pods),
                asked_at=asked_at,
                unlisted=self._unlisted,
                patience=patience,
                gpus=self._allocator.service.inventory.gpus,
                library=self._store.library,
                now=self._now(),
                responses=self._usable(responses or ()),
            )
            carry_out(self._store, result)
            for allocation in result.adopted:
                self._settler.settle_restored(allocation, self._cluster.pod)
            if listing.settled:
                self._report_forgotten(result.forgotten)
            if regular:
                self._unlisted = dict(result.unlisted)
            self._failure = ""
        except GigasliceError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                level = self._log.warning if isinstance(error, KubeletError) else self._log.error
                level("pods unknown; nothing is released meanwhile", detail=self._failure)

    async def _evidence(
        self, listing: PodListing, asked_at: int, patience: int, answered: frozenset[str] | None
    ) -> Evidence:
        """Returns the list with the other evidence that this poll needs.

        Reading every ledger takes long, and reading every process longer. So both are read only for the allocations
        that this poll could release, and for those without a known container, which end with others.
        """
        pods = known_pods(self._cluster)
        table, _ = plugin_part(self._store.table)
        states = liveness(table, Evidence(listing, pods, watched=True, answered=answered), asked_at)
        doubts = {key: self._unlisted.get(key, 0) + listing.settled for key in states}
        asked = [
            key
            for key, state in states.items()
            if state is Liveness.EXPIRED or (state is Liveness.DOUBTFUL and doubts[key] >= patience)
        ]
        if not asked:
            return Evidence(listing, pods)
        asked = [
            allocation.id
            for allocation in table.allocations
            if allocation.id in asked or plugin(allocation).container is None
        ]
        running = {key async for key in with_breaks(asked) if self._store.reading(key).alive}
        rest = frozenset(asked) - running
        presence = await asyncio.to_thread(self._present, rest) if rest else Presence()
        return Evidence(
            listing, pods, frozenset(running | presence.mounted), frozenset(running), watched=presence.others
        )

    def _any_ended(self) -> bool:
        """Returns whether the API server shows that the pod of an allocation has ended, or is about to."""
        pods = known_pods(self._cluster)
        if pods is None:
            return False
        for allocation in self._store.table.allocations:
            ref, owner = container_ref(allocation), plugin(allocation).owner
            if ref is None:
                continue
            pod = pods.get((ref.namespace, ref.pod))
            if pod is None or pod.ending or pod.terminal or (owner and owner.uid != pod.uid):
                return True
        return False

    def _usable(self, responses: Sequence[KeptAllocateResponse]) -> tuple[KeptAllocateResponse, ...]:
        """Returns the answers whose files would be where this agent makes them."""
        pods = tuple(self._cluster.pods.values())
        return tuple(with_assignment(kept, pods) for kept in responses if is_place_of(self._store, kept))

    def _report_forgotten(self, forgotten: Sequence[Allocation]) -> None:
        """Reports each container whose devices the kubelet has lost, once in the log and once on its pod.

        The event is sent as soon as the API server has shown the pod.
        """
        ids = {allocation.id for allocation in forgotten}
        logged, self._logged = self._logged & ids, ids
        self._reported &= ids
        for allocation in forgotten:
            if allocation.id not in logged:
                self._log.warning(
                    "kubelet has lost its record of a container",
                    allocation=allocation.id,
                    container=allocation.name,
                )
            if allocation.id in self._reported:
                continue
            ref = container_ref(allocation)
            pod = self._cluster.pod(ref.namespace, ref.pod) if ref else None
            if pod is not None and ref is not None:
                self._reported.add(allocation.id)
                self._cluster.event(pod, "Warning", "AllocationForgotten", _FORGOTTEN, ref.container)

    def _young(self, pods: frozenset[str]) -> frozenset[str]:
        """Returns the pods that this process has first seen in the last minutes."""
        now = time.monotonic()
        self._first_seen = {pod: self._first_seen.get(pod, now) for pod in pods}
        return frozenset(pod for pod, first in self._first_seen.items() if now - first < _YOUNG_SECONDS)

    async def _due(self) -> None:
        now = time.monotonic()
        regular = now >= self._plan.regular
        if regular:
            self._plan.regular = now + self._interval
        self._plan.done(now)
        await self.poll(regular=regular)
