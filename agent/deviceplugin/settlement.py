# SPDX-License-Identifier: Apache-2.0
"""Undecided allocations: made before the annotations of their pods were known or made sense, decided before a start.

Their GPUs stay, since the container runtime has been told of them. Everything else is made to agree with the
annotations. Where that is not possible on these GPUs, only a new pod can get what is asked for: it is evicted where
something makes it anew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.allocation.request import ImpossibleError, NotExecutableError
from agent.apiserver import Cluster
from agent.deviceplugin.container_requests import to_correct
from agent.deviceplugin.device_allocator import DeviceAllocator, tokens_of
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.requester import Lookup, Requester, owner_of
from agent.persistence.store import Store
from gigaslice.core.allocation import host_memory
from gigaslice.core.allocation.table import Allocation, AllocationOptions
from gigaslice.core.deviceplugin.origin import plugin, with_origin
from gigaslice.core.deviceplugin.pod_peak import with_peak
from gigaslice.core.model import Pod, Share
from gigaslice.core.text import plural
from gigaslice.runtime.logs import get_logger

__all__ = ["SettleResult", "Settlement", "Settler"]

_EVICT_AGAIN = 60.0
_UNKNOWN_SECONDS = 60.0  # how long a container is held back because its annotations cannot be read


@dataclass(frozen=True, slots=True)
class SettleResult:
    """What became of an undecided allocation.

    Attributes:
        reason: Why it cannot go on; None when it can.
        remake: Only a new pod can get what is asked for.
        refused: An assignment cannot be executed, and its pod never starts here.
    """

    reason: str | None = None
    remake: bool = False
    refused: bool = False


class Settler:
    """Makes undecided allocations agree with what their containers ask for."""

    def __init__(self, store: Store, slices: DeviceAllocator) -> None:
        """Args: store: The allocation table. slices: The allocator of the resource of slices."""
        self._store = store
        self._service = slices.service
        self._container_requests = slices.container_requests

    def resource_of(self, allocation: Allocation) -> str:
        """Returns what the container of an allocation requested."""
        return (
            self._container_requests.whole_resource if allocation.whole else self._container_requests.resource
        )

    def settle(self, allocation: Allocation, requester: Requester | None) -> SettleResult:
        """Decides an undecided allocation, now that its container is known.

        Args:
            allocation: An undecided allocation.
            requester: Its container; None where that will never be known.
        """
        if requester is None:
            self._store.update(self._store.table.replaced([with_origin(allocation, undecided=False)]))
            return SettleResult()
        if allocation.whole:
            return self._settle_whole(allocation, requester)
        device_ids = plugin(allocation).device_ids
        try:
            asked = self._container_requests.of_slices(requester, len(device_ids))
        except ImpossibleError as error:
            return SettleResult(str(error), remake=True, refused=isinstance(error, NotExecutableError))
        if asked.mistakes:
            return SettleResult(to_correct(asked.mistakes))
        request = asked.request
        others = self._store.table.without([allocation.id])
        placement = self._service.chooser.on_held_gpus(others, allocation, request)
        if placement is None:
            wanted = (
                "these ask for others"
                if request.assigned is None
                else f"it was assigned {_named(request.assigned)}"
            )
            return SettleResult(
                f"its GPUs were chosen before its annotations could be read or made sense, and {wanted}; "
                "delete the pod, so that it is allocated again",
                remake=True,
                refused=request.assigned is not None,
            )
        assigned = request.assigned is not None
        settled = replace(
            allocation,
            policy=AllocationOptions.of(request.options),
            holds=self._service.holds(request, placement),
            waiting=allocation.waiting or assigned,  # it may have more of a GPU than was guessed
            assigned=assigned,
        )
        settled = with_origin(
            settled,
            owner=requester.owner,
            tokens=tokens_of(device_ids, placement, whole=False),
            undecided=False,
        )
        self._store.remake(host_memory.split(others, settled, self._service.inventory.gpus))
        self._store.update(with_peak(self._store.table, requester.pod.uid))
        return SettleResult()

    def _settle_whole(self, allocation: Allocation, requester: Requester) -> SettleResult:
        try:
            assigned = self._container_requests.assigned_whole(requester, len(plugin(allocation).device_ids))
        except NotExecutableError as error:
            return SettleResult(str(error), remake=True, refused=True)
        if assigned is not None and frozenset(assigned) != frozenset(allocation.quota()):
            return SettleResult(
                f"its GPUs were chosen before its annotations could be read, and it was assigned "
                f"{', '.join(assigned)}; delete the pod, so that it is allocated again",
                remake=True,
                refused=True,
            )
        settled = with_origin(
            replace(allocation, assigned=assigned is not None), owner=requester.owner, undecided=False
        )
        self._store.update(with_peak(self._store.table.replaced([settled]), requester.pod.uid))
        return SettleResult()

    def settle_restored(self, allocation: Allocation, lookup: Lookup) -> None:
        """Settles an allocation that was made up for a running container, where its pod is known."""
        origin = plugin(allocation)
        if origin.undecided and not origin.foreign:
            requester = owner_of(allocation, lookup, self._store.table, self.resource_of(allocation))
            if requester is not None:
                self.settle(allocation, requester)


class Settlement:
    """What a start waits for before its allocation is decided."""

    def __init__(
        self, store: Store, settler: Settler, slices: DeviceAllocator, cluster: Cluster, events: PodEvents
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table.
            settler: Decides undecided allocations.
            slices: The allocator of the resource of slices.
            cluster: The pods of this node; evicts them.
            events: Sends why an assignment cannot be executed.
        """
        self._store = store
        self._settler = settler
        self._slices = slices
        self._cluster = cluster
        self._events = events
        self._evict_again: dict[str, float] = {}  # when, by allocation
        self._log = get_logger("plugin")

    async def blocker(self, allocation: Allocation) -> str | None:
        """Settles an undecided allocation. Returns why that is not possible yet; None when it is settled."""
        service = self._slices.service
        resource = self._settler.resource_of(allocation)
        requester = owner_of(allocation, self._cluster.pod, self._store.table, resource)
        soon = self._cluster.expected and service.age(allocation) < _UNKNOWN_SECONDS
        if requester is None and (soon or service.executes_assignments):
            return "waiting for the pod's annotations from the API server"
        if requester is None:
            self._log.warning("annotations unknown; started with defaults", allocation=allocation.id)
        settled = self._settler.settle(allocation, requester)
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
        self._evict_again = {
            allocation_id: at
            for allocation_id, at in self._evict_again.items()
            if self._store.table.find(allocation_id)
        }
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


def _named(shares: Sequence[Share]) -> str:
    return ", ".join(f"{plural(share.slices, 'slice')} of {share.gpu}" for share in shares)
