"""The resource of whole GPUs: one device per GPU, decided in the same allocation table as slices.

Its containers get the GPU as it is, without library and limits. The kubelet keeps two lists of the same GPUs and is
told late. So a GPU can be given out whole that has just lost slices, and the other way round. Then the later container
has it in the allocation table, its start waits, and both lists are corrected at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from agent.allocation.request import ImpossibleError
from agent.deviceplugin import whole_gpu_rules
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.device_allocator import DeviceAllocator
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.prestart import StartDecider
from agent.inventory.holder import InventoryHolder
from agent.persistence.store import Store
from agent.providers.container_edits import ContainerEdits, gpu_edits
from agent.providers.resource import Device, DevicePluginResource, NotYetError, RefusedError
from gigaslice.deviceplugin.device_id import whole_gpu_device_id
from gigaslice.deviceplugin.handing_out import with_handed_out
from gigaslice.runtime.wakeup import Alarm

__all__ = ["WholeGpus"]


class WholeGpus(DevicePluginResource):
    """Hands out whole GPUs."""

    prefers = True
    checks_start = True

    def __init__(
        self,
        store: Store,
        allocator: DeviceAllocator,
        gpus: InventoryHolder,
        visible_devices: str,
        *,
        admissions: AdmissionResolver,
        starts: StartDecider,
        events: PodEvents,
        withhold: Callable[[frozenset[str]], None],
        allocated: Callable[[], None],
    ) -> None:
        """Initializes the resource.

        Args:
            store: The allocation table.
            allocator: Makes the allocations.
            gpus: The GPUs.
            visible_devices: How a container's GPUs are named to its runtime, "env" or "cdi".
            admissions: Finds out which container a call is for.
            starts: Decides when a container may start.
            events: Sends why a request cannot be served to its pod.
            withhold: Called with the slices that are not to be had.
            allocated: Called when the kubelet's list of containers has changed or is about to.
        """
        self.resource = allocator.resource
        self._store = store
        self._allocator = allocator
        self._gpus = gpus
        self._visible_devices = visible_devices
        self._admissions = admissions
        self._starts = starts
        self._events = events
        self._withhold = withhold
        self._allocated = allocated
        self._alarm = Alarm()

    def devices(self) -> tuple[Device, ...]:
        """Every GPU; healthy while no container has any of it, or one has it whole."""
        return whole_gpu_rules.devices(self._store.table, self._gpus.now.gpus)

    async def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Returns the GPUs that were assigned, or else that placement would choose together."""
        match = await self._admissions.identify(size)
        try:
            request = self._allocator.container_requests.of_whole_gpus(match.requester, size).request
        except ImpossibleError:
            return ()  # Allocate follows, and says why
        free = _device_ids(set(available) - set(must_include))
        holders = await self._admissions.holders(free)
        table = self._allocator.with_free(free, holders)
        if request.assigned is not None:
            named = [share.gpu for share in request.assigned if share.gpu in available]
            return tuple(dict.fromkeys([*must_include, *named, *available]))[:size]
        after, _ = with_handed_out(table, _device_ids(must_include), expired=holders.expired)
        return whole_gpu_rules.prefer(
            after,
            self._gpus.now,
            self._allocator.service.chooser.policy,
            available,
            must_include=must_include,
            size=size,
        )

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """Makes and records one allocation per container. All or none."""
        named = [_device_ids(devices) for devices in requests]
        match = await self._admissions.identify_devices(named)
        holders = await self._admissions.holders(frozenset[str]().union(*named))
        try:
            allocations = self._allocator.allocate(named, match, holders)
        except ImpossibleError as error:
            self._events.impossible(match, error)
            raise RefusedError(str(error)) from error
        self._allocated()
        return [
            gpu_edits(allocation.id, tuple(allocation.quota()), self._visible_devices)
            for allocation in allocations
        ]

    async def start(self, devices: Sequence[str], remaining: float | None) -> None:
        """Waits until no other container has any of the GPUs, and the allocation is known to be its own."""
        allocations = self._allocator.find(tuple(_device_ids(devices)))[:1]
        if not allocations:
            raise RefusedError(
                f"no record of this container's {len(devices)} GPUs in {self._store.state_dir}; delete the pod, so "
                "that it is allocated again"
            )
        if reason := await self._starts.decide(allocations, remaining):
            raise NotYetError(reason)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Follows the allocation table and the GPUs, and keeps both lists in agreement with them."""
        shown: tuple[Device, ...] | None = None
        unwatch = self._gpus.watch(self._alarm.ring)
        self._store.watchers.append(self._alarm.ring)
        try:
            while True:
                gpus = self._gpus.now.gpus
                self._withhold(whole_gpu_rules.slices_withheld(self._store.table, gpus))
                if (now := self.devices()) != shown:
                    shown = now
                    changed()
                await self._alarm.wait(math.inf)
        finally:
            self._store.watchers.remove(self._alarm.ring)
            unwatch()


def _device_ids(uuids: Sequence[str] | set[str]) -> frozenset[str]:
    return frozenset(map(whole_gpu_device_id, uuids))
