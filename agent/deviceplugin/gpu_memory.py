"""The resource of GPU memory: joins what the kubelet calls to the allocation service, call by call.

The kubelet makes GetPreferredAllocation and Allocate one after the other in its only admission loop and without a
deadline, and an error in either fails the pod for good: both answer at once, and the first never with an error.
PreStartContainer runs beside them, has 30 seconds and is repeated when it fails: whatever has to be waited for is
waited for there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent.allocation.request import ImpossibleError
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.device_allocator import DeviceAllocator
from agent.deviceplugin.device_list import DeviceList, DevicesOfType
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.prestart import StartDecider
from agent.deviceplugin.start_allocation import StartAllocationResolver
from agent.persistence.store import Store
from agent.providers.container_edits import ContainerEdits, gpu_edits, quota_mounts
from agent.providers.resource import Device, DevicePluginResource, NotYetError, RefusedError
from gigaslice.allocation.table import Allocation
from gigaslice.errors import StorageError

__all__ = ["GpuMemory"]


class GpuMemory(DevicePluginResource):
    """Hands out slices of GPUs."""

    prefers = True
    checks_start = True

    def __init__(
        self,
        store: Store,
        allocator: DeviceAllocator,
        devices: DeviceList | DevicesOfType,
        visible_devices: str,
        *,
        admissions: AdmissionResolver,
        start_allocations: StartAllocationResolver,
        starts: StartDecider,
        events: PodEvents,
        allocated: Callable[[], None],
    ) -> None:
        """Initializes the resource.

        Args:
            store: Where the files of allocations are.
            allocator: Makes the allocations.
            devices: The slices as the kubelet is shown them.
            visible_devices: How a container's GPUs are named to its runtime, "env" or "cdi".
            admissions: Finds out which container a call is for.
            start_allocations: Finds out which allocation a start is for.
            starts: Decides when a container may start.
            events: Sends what came of a request to its pod.
            allocated: Called when the kubelet's list of containers has changed or is about to.
        """
        self.resource = allocator.resource
        self._store = store
        self._allocator = allocator
        self._devices = devices
        self._visible_devices = visible_devices
        self._admissions = admissions
        self._start_allocations = start_allocations
        self._starts = starts
        self._events = events
        self._allocated = allocated

    def devices(self) -> tuple[Device, ...]:
        """Every slice of every GPU."""
        return self._devices.devices()

    async def watch(self, changed: Callable[[], None]) -> None:
        """Follows the list of slices."""
        unwatch = self._devices.watch(changed)
        try:
            await asyncio.Event().wait()
        finally:
            unwatch()

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Device IDs of the GPUs that placement would choose."""
        match = await self._admissions.identify(size)
        holders = await self._admissions.holders(set(available) - set(must_include))
        device_ids = self._allocator.prefer(available, must_include, size, match.requester, holders)
        self._admissions.note_preference(device_ids, match)
        return device_ids

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """Places and records every container, or none of them."""
        match = await self._admissions.identify_devices(requests)
        holders = await self._admissions.holders(
            device_id for device_ids in requests for device_id in device_ids
        )
        try:
            allocations = self._allocator.allocate(requests, match, holders)
        except ImpossibleError as error:
            self._events.impossible(match, error)
            raise RefusedError(str(error)) from error
        except StorageError as error:
            self._events.not_recorded(match, error)
            raise
        self._allocated()
        self._events.allocated(match, allocations)
        return [self._edits(allocation) for allocation in allocations]

    async def allocate_again(self, requests: Sequence[Sequence[str]], age: float) -> list[ContainerEdits]:
        """Answers what was recorded during the call, if it was; else allocates."""
        allocation = self._allocator.made_during(requests, age)
        if allocation is None:
            return await self.allocate(requests)
        self._allocated()
        return [self._edits(allocation)]

    async def start(self, devices: Sequence[str], remaining: float | None) -> None:
        """Returns when the container's memory is free and its allocation is safe on disk; else raises why not."""
        allocations = await self._start_allocations.allocations(devices)
        if reason := await self._starts.decide(allocations, remaining):
            raise NotYetError(reason)

    def close(self) -> None:
        """No start is waited for any more."""
        self._starts.close()

    def _edits(self, allocation: Allocation) -> ContainerEdits:
        mounts = quota_mounts(self._store.dirs.path(allocation.id), self._store.library_dir)
        return gpu_edits(allocation.id, tuple(allocation.quota()), self._visible_devices, mounts)
