# SPDX-License-Identifier: Apache-2.0
"""Allocations by device IDs: what the kubelet calls for, as requests of the allocation service.

The kubelet hands device IDs out a second time without saying what became of their holders. So each request comes with
what is known of them, and the allocation table is brought up to date before the request is placed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.allocation.request import AllocationRequest, ImpossibleError
from agent.allocation.service import AllocationService
from agent.deviceplugin.assigned import named_for, with_assignment
from agent.deviceplugin.container_requests import ContainerRequests
from agent.deviceplugin.requester import ContainerMatch, PreviousHolders, Requester
from agent.deviceplugin.reviews import record_names
from agent.persistence.store import Store
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.deviceplugin.device_id import gpu_name, whole_gpu, whole_gpu_device_id
from gigaslice.core.deviceplugin.handing_out import (
    counted_elsewhere,
    lenders,
    of_device_ids,
    with_freed,
    with_handed_out,
)
from gigaslice.core.deviceplugin.lending_by_gpu import served_by_gpu
from gigaslice.core.deviceplugin.origin import (
    DevicePluginOrigin,
    GpuTokens,
    assign_device_ids,
    plugin,
    with_origin,
)
from gigaslice.core.deviceplugin.pod_peak import with_peak, without_peak
from gigaslice.core.deviceplugin.preferred import preferred_device_ids
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse, from_response
from gigaslice.core.errors import StorageError
from gigaslice.core.model import Infeasible, Placement, Pod
from gigaslice.core.text import plural
from gigaslice.runtime.logs import get_logger

__all__ = ["DeviceAllocator", "tokens_of"]

_NO_HOLDERS = PreviousHolders()
_ONE_POD_SECONDS = 30.0  # far more than a kubelet ever takes between two containers of a pod
_ROUNDED = 0.002  # the time of an allocation is kept in milliseconds


class DeviceAllocator:
    """Makes, finds and restores the allocations of one resource, slices or whole GPUs."""

    def __init__(
        self,
        service: AllocationService,
        store: Store,
        container_requests: ContainerRequests,
        now: Callable[[], float],
        *,
        whole: bool = False,
    ) -> None:
        """Initializes the allocator.

        Args:
            service: Decides and records.
            store: The allocation table on disk.
            container_requests: Reads what containers ask for.
            now: Returns Unix time in seconds.
            whole: The resource is that of whole GPUs.
        """
        self.service = service
        self.container_requests = container_requests
        self.whole = whole
        self._store = store
        self._now = now
        self._log = get_logger("allocator")

    @property
    def resource(self) -> str:
        """The resource that its containers request."""
        return self.container_requests.whole_resource if self.whole else self.container_requests.resource

    # --- allocating ------------------------------------------------------------------------------------------

    def prefer(
        self,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        requester: Requester | None = None,
        holders: PreviousHolders = _NO_HOLDERS,
    ) -> tuple[str, ...]:
        """Returns device IDs named after the GPUs that placement would choose; fewer or none when in doubt.

        Args:
            available: Device IDs that may be chosen. Those not in must_include are free by the caller's count.
            must_include: Device IDs of the container's pod that have to be among them.
            size: How many are needed.
            requester: The container; None where it is not known.
            holders: Which holders of the free device IDs are over. The others are forgotten, and count.
        """
        table = self.with_free(frozenset(available) - frozenset(must_include), holders)
        try:
            request = self.container_requests.of_slices(requester, max(1, size)).request
        except ImpossibleError:
            return ()  # Allocate follows, and says why
        if request.assigned is not None:
            return named_for(request.assigned, available, must_include, size)
        after = self._handed_out(without_peak(table, request.pod), must_include, request.pod, holders)[0]
        chooser = self.service.chooser
        node = chooser.node(after, request)
        wanted = chooser.placement_request(node, after, request)
        if isinstance(wanted, Infeasible):
            return ()
        return preferred_device_ids(
            node, available, must_include, size, request=wanted, policy=chooser.policy
        )

    def with_free(self, device_ids: frozenset[str], holders: PreviousHolders) -> AllocationTable:
        """Takes note that the kubelet shows device IDs as free. Returns the allocation table with that."""
        self._name(holders)
        table = self._store.table.with_ended(holders.expired)
        table = with_freed(table, device_ids, holders.expired)
        self._store.remember(table)
        return table

    def allocate(
        self,
        requests: Sequence[Collection[str]],
        match: ContainerMatch | None = None,
        holders: PreviousHolders = _NO_HOLDERS,
    ) -> tuple[Allocation, ...]:
        """Makes and records one allocation per request, each with its directory. All or none.

        Args:
            requests: The device IDs of each container.
            match: Whom the only request is for; None where that can never be known.
            holders: How far the holders of the device IDs have come.

        Raises:
            ImpossibleError: This node can never serve a request.
            StorageError: The allocations cannot be recorded.
        """
        self._name(holders)
        requester = match.requester if match else None
        handed_out = frozenset(device_id for device_ids in requests for device_id in device_ids)
        pod = requester.pod.uid if requester else ""
        lending = lenders(self._store.table, handed_out, pod, holders.started, self._now() - _ONE_POD_SECONDS)
        table = self._store.table.with_ended(holders.expired - lending)
        adapters = [self._adapter(frozenset(device_ids), match, holders) for device_ids in requests]
        return self.service.allocate(adapters, table)

    def made_during(self, requests: Sequence[Collection[str]], age: float) -> Allocation | None:
        """Returns the allocation that was recorded for a call which is repeated, with its files in order.

        Args:
            requests: The device IDs of the call.
            age: Seconds since the call first came. An allocation from before it is another container's.
        """
        newest = max(self._store.table.allocations, key=lambda allocation: allocation.number, default=None)
        asked = [frozenset(device_ids) for device_ids in requests]
        if newest is None or asked != [plugin(newest).device_ids] or self.age(newest) > age + _ROUNDED:
            return None
        self._store.ensure(newest)
        self._log.info("allocation found", allocation=newest.id, container=newest.name)
        return newest

    def find(self, device_ids: Sequence[str]) -> tuple[Allocation, ...]:
        """Returns the allocations of exactly these device IDs, newest first."""
        return of_device_ids(self._store.table, frozenset(device_ids))

    def age(self, allocation: Allocation) -> float:
        """Returns the seconds since an allocation was made: see `AllocationService.age`."""
        return self.service.age(allocation)

    def restore(self, response: KeptAllocateResponse, pods: Mapping[tuple[str, str], Pod]) -> bool:
        """Records a lost allocation again, under its old id and with its old GPUs. What was made up for its container
        goes.

        Args:
            response: The answer that it was given out by.
            pods: This node's pods, as far as they are known.

        Returns:
            False where the answer does not say which GPU has how much.
        """
        pod = next((pod for pod in pods.values() if pod.uid == response.pod), None)
        ref = ContainerRef(pod.namespace, pod.name, response.container) if pod else None
        response = with_assignment(response, [pod] if pod else [])
        gpus, now = self.service.inventory.gpus, round(self._now(), 3)
        allocation = from_response(response, ref, gpus, self._store.library, now)
        if allocation is None:
            return False
        made_up = [
            other.id
            for other in self._store.table.allocations
            if plugin(other).foreign and plugin(other).device_ids == plugin(allocation).device_ids
        ]
        table = self._store.table.without(made_up)
        allocation = with_origin(
            replace(allocation, number=table.next_number), forgotten=counted_elsewhere(table, allocation)
        )
        self._store.restore(allocation, table.with_allocation(allocation), made_up)
        self._log.warning(
            "unrecorded container restored", allocation=allocation.id, container=allocation.name
        )
        return True

    # --- parts -----------------------------------------------------------------------------------------------

    def _name(self, holders: PreviousHolders) -> None:
        """Records the containers that became known. A disk that is full is reported for the allocation itself."""
        named = tuple(
            with_origin(allocation, container=holders.named[allocation.id])
            for allocation in self._store.table.allocations
            if allocation.id in holders.named and plugin(allocation).container is None
        )
        if named:
            with contextlib.suppress(StorageError):
                record_names(self._store, self._store.table.replaced(named), named)

    def _adapter(
        self, device_ids: frozenset[str], match: ContainerMatch | None, holders: PreviousHolders
    ) -> _TokenRequest:
        if not device_ids:
            raise ImpossibleError(
                "the kubelet asked for a container without devices; report this with its version"
            )
        requester = match.requester if match else None
        named = whole_gpu if self.whole else gpu_name
        advised = frozenset(gpu for device_id in device_ids if (gpu := named(device_id)))
        make = self.container_requests.of_whole_gpus if self.whole else self.container_requests.of_slices
        asked = make(requester, len(device_ids), advised)
        guessed = match is not None or (self.service.executes_assignments and not self.whole)
        return _TokenRequest(
            asked.request,
            device_ids,
            requester,
            holders,
            since=self._now() - _ONE_POD_SECONDS,
            suspects=((str(requester.pod),) if requester else match.possible if match else ()) or None,
            undecided=bool(asked.mistakes) or (requester is None and guessed),
        )

    def _handed_out(
        self, table: AllocationTable, device_ids: Collection[str], pod: str, holders: PreviousHolders
    ) -> tuple[AllocationTable, tuple[str, ...]]:
        since = self._now() - _ONE_POD_SECONDS
        return with_handed_out(
            table, device_ids, pod=pod, expired=holders.expired, started=holders.started, since=since
        )


@dataclass
class _TokenRequest:
    """The request of one container by its device IDs.

    Attributes:
        request: What is asked for.
        device_ids: What the kubelet hands out for it.
        requester: The container, where it is known.
        holders: How far the earlier holders of the device IDs have come.
        since: The least `created` of an allocation that lends.
        suspects: The pods that it may be for.
        undecided: What is asked for is a guess.
        superseded: Ids of the allocations that device IDs were taken from, once the request is placed.
    """

    request: AllocationRequest
    device_ids: frozenset[str]
    requester: Requester | None
    holders: PreviousHolders
    since: float
    suspects: tuple[str, ...] | None
    undecided: bool
    superseded: tuple[str, ...] = ()

    key = ""  # the kubelet's calls have no name: see `DeviceAllocator.made_during`

    def before(self, table: AllocationTable) -> AllocationTable:
        """Returns the table after the kubelet has handed the device IDs out."""
        request, holders = self.request, self.holders
        table = without_peak(table, request.pod)
        if request.assigned is not None:
            lending = lenders(table, self.device_ids, request.pod, holders.started, self.since)
            table = served_by_gpu(table, lending, self.device_ids, request.assigned)
        table, self.superseded = with_handed_out(
            table,
            self.device_ids,
            pod=request.pod,
            expired=holders.expired,
            started=holders.started,
            since=self.since,
        )
        return table

    def origin(self, placement: Placement) -> DevicePluginOrigin:
        """Returns the origin of an allocation that serves the device IDs from the GPUs of a placement."""
        return DevicePluginOrigin(
            tokens_of(self.device_ids, placement, whole=self.request.whole),
            supersedes=self.superseded,
            owner=self.requester.owner if self.requester else None,
            suspects=self.suspects,
            undecided=self.undecided,
        )

    def after(self, table: AllocationTable) -> AllocationTable:
        """Returns the table with what the init containers of the pod count for now."""
        return with_peak(table, self.request.pod)

    def refusal(self, detail: str) -> str:
        """Returns why the request can never be served."""
        return detail if self.request.whole else f"{detail} ({plural(self.request.amount, 'slice')} in all)"


def tokens_of(device_ids: Collection[str], placement: Placement, *, whole: bool) -> tuple[GpuTokens, ...]:
    """Returns which GPU each device ID is served from, by the names of the device IDs as far as possible."""
    if not whole:
        return assign_device_ids(device_ids, placement)
    names = {gpu: whole_gpu_device_id(gpu) for gpu in placement.uuids}
    others = sorted(set(device_ids) - set(names.values()))
    return tuple(
        GpuTokens(gpu, (name if name in device_ids else others.pop(0),)) for gpu, name in names.items()
    )
