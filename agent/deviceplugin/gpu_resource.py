# SPDX-License-Identifier: Apache-2.0
"""What the resources of slices and of whole GPUs have in common: the kubelet's calls, for the allocation service.

The kubelet makes GetPreferredAllocation and Allocate one after the other in its only admission loop and without a
deadline, and an error in either fails the pod for good: both answer at once, and the first never with an error.
PreStartContainer runs beside them, has 30 seconds and is repeated when it fails: whatever has to be waited for is
waited for there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.allocation.request import ImpossibleError
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.device_allocator import DeviceAllocator
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.prestart import StartDecider
from agent.deviceplugin.requester import ContainerMatch
from agent.persistence.store import Store
from agent.providers.container_edits import ContainerEdits, gpu_edits, quota_mounts
from agent.providers.resource import DevicePluginResource, NotYetError, RefusedError
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.errors import StorageError

__all__ = ["GpuResource", "ResourceParts"]


@dataclass(frozen=True, slots=True)
class ResourceParts:
    """What a resource of GPUs is served with.

    Attributes:
        store: The allocation table, and where the files of allocations are.
        allocator: Makes the allocations.
        visible_devices: How a container's GPUs are named to its runtime, "env" or "cdi".
        admissions: Finds out which container a call is for.
        starts: Decides when a container may start.
        events: Sends what came of a request to its pod.
        allocated: Called when the kubelet's list of containers has changed or is about to.
    """

    store: Store
    allocator: DeviceAllocator
    visible_devices: str
    admissions: AdmissionResolver
    starts: StartDecider
    events: PodEvents
    allocated: Callable[[], None]


class GpuResource(DevicePluginResource):
    """Hands out GPUs, or parts of them."""

    prefers = True
    checks_start = True

    def __init__(self, parts: ResourceParts) -> None:
        self.resource = parts.allocator.resource
        self.parts = parts

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """Places and records an allocation for every container, or for none of them."""
        named = [self._device_ids(devices) for devices in requests]
        match = await self.parts.admissions.identify_devices(named)
        holders = await self.parts.admissions.holders(
            device_id for device_ids in named for device_id in device_ids
        )
        try:
            allocations = self.parts.allocator.allocate(named, match, holders)
        except ImpossibleError as error:
            self.parts.events.impossible(match, error)
            raise RefusedError(str(error)) from error
        except StorageError as error:
            self.parts.events.not_recorded(match, error)
            raise
        self.parts.allocated()
        self._tell(match, allocations)
        return [self._edits(allocation) for allocation in allocations]

    async def allocate_again(self, requests: Sequence[Sequence[str]], age: float) -> list[ContainerEdits]:
        """Answers what was recorded during the call, if it was; else allocates."""
        named = [self._device_ids(devices) for devices in requests]
        allocation = self.parts.allocator.made_during(named, age)
        if allocation is None:
            return await self.allocate(requests)
        self.parts.allocated()
        return [self._edits(allocation)]

    async def start(self, devices: Sequence[str], remaining: float | None) -> None:
        """Returns when the container's memory is free and its allocation is safe on disk; else raises why not."""
        allocations = await self._to_start(devices)
        if reason := await self.parts.starts.decide(allocations, remaining):
            raise NotYetError(reason)

    def close(self) -> None:
        """No start is waited for any more."""
        self.parts.starts.close()

    def _device_ids(self, devices: Sequence[str]) -> Sequence[str]:
        """The names that the allocation table has for the kubelet's devices."""
        return devices

    @abstractmethod
    async def _to_start(self, devices: Sequence[str]) -> Sequence[Allocation]:
        """The allocations that the start of a container with these devices can be for. Raises RefusedError."""

    def _tell(self, match: ContainerMatch | None, allocations: Sequence[Allocation]) -> None:
        """Called with what was allocated; nothing is told to anybody unless a resource does."""

    def _edits(self, allocation: Allocation) -> ContainerEdits:
        store = self.parts.store
        mounts = () if allocation.whole else quota_mounts(store.dirs.path(allocation.id), store.library_dir)
        return gpu_edits(allocation.id, tuple(allocation.quota()), self.parts.visible_devices, mounts)
