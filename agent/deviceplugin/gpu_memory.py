# SPDX-License-Identifier: Apache-2.0
"""The resource of GPU memory: its devices are slices, and its containers get files that hold them to theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent.deviceplugin.device_list import DeviceList, DevicesOfType
from agent.deviceplugin.gpu_resource import GpuResource, ResourceParts
from agent.deviceplugin.requester import ContainerMatch
from agent.deviceplugin.start_allocation import StartAllocationResolver
from agent.providers.resource import Device
from gigaslice.core.allocation.table import Allocation

__all__ = ["GpuMemory"]


class GpuMemory(GpuResource):
    """Hands out slices of GPUs.

    Args:
        parts: What it is served with.
        devices: The slices as the kubelet is shown them.
        start_allocations: Finds out which allocation a start is for.
    """

    def __init__(
        self,
        parts: ResourceParts,
        devices: DeviceList | DevicesOfType,
        start_allocations: StartAllocationResolver,
    ) -> None:
        super().__init__(parts)
        self._devices = devices
        self._start_allocations = start_allocations

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
        admissions = self.parts.admissions
        match = await admissions.identify(size)
        holders = await admissions.holders(set(available) - set(must_include))
        device_ids = self.parts.allocator.prefer(available, must_include, size, match.requester, holders)
        admissions.note_preference(device_ids, match)
        return device_ids

    async def _to_start(self, devices: Sequence[str]) -> Sequence[Allocation]:
        return await self._start_allocations.allocations(devices)

    def _tell(self, match: ContainerMatch | None, allocations: Sequence[Allocation]) -> None:
        self.parts.events.allocated(match, allocations)
