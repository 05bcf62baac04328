# SPDX-License-Identifier: Apache-2.0
"""The resource of whole GPUs: one device per GPU, decided in the same allocation table as slices.

Its containers get the GPU as it is, without library and limits. The kubelet keeps two lists of the same GPUs and is
told late. So a GPU can be given out whole that has just lost slices, and the other way round. Then the later container
has it in the allocation table, its start waits, and both lists are corrected at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from agent.allocation.request import ImpossibleError
from agent.deviceplugin import whole_gpu_rules
from agent.deviceplugin.gpu_resource import GpuResource, ResourceParts
from agent.inventory.holder import InventoryHolder
from agent.providers.resource import Device, RefusedError
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.deviceplugin.device_id import whole_gpu_device_id
from gigaslice.core.deviceplugin.handing_out import with_handed_out
from gigaslice.runtime.wakeup import Alarm

__all__ = ["WholeGpus"]


class WholeGpus(GpuResource):
    """Hands out whole GPUs.

    Args:
        parts: What it is served with.
        gpus: The GPUs.
        withhold: Called with the slices that are not to be had.
        closed: Another API gives out all that is new.
    """

    def __init__(
        self,
        parts: ResourceParts,
        gpus: InventoryHolder,
        withhold: Callable[[frozenset[str]], None],
        *,
        closed: bool = False,
    ) -> None:
        super().__init__(parts)
        self._gpus = gpus
        self._withhold = withhold
        self._closed = closed
        self._alarm = Alarm()

    def devices(self) -> tuple[Device, ...]:
        """Every GPU; healthy while no container has any of it, or one has it whole."""
        return whole_gpu_rules.devices(self.parts.store.table, self._gpus.now.gpus, closed=self._closed)

    async def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Returns the GPUs that were assigned, or else that placement would choose together."""
        admissions, allocator = self.parts.admissions, self.parts.allocator
        match = await admissions.identify(size)
        try:
            request = allocator.container_requests.of_whole_gpus(match.requester, size).request
        except ImpossibleError:
            return ()  # Allocate follows, and says why
        free = frozenset(self._device_ids(set(available) - set(must_include)))
        holders = await admissions.holders(free)
        table = allocator.with_free(free, holders)
        if request.assigned is not None:
            named = [share.gpu for share in request.assigned if share.gpu in available]
            return tuple(dict.fromkeys([*must_include, *named, *available]))[:size]
        after, _ = with_handed_out(table, frozenset(self._device_ids(must_include)), expired=holders.expired)
        return whole_gpu_rules.prefer(
            after,
            self._gpus.now,
            allocator.service.chooser.policy,
            available,
            must_include=must_include,
            size=size,
        )

    async def watch(self, changed: Callable[[], None]) -> None:
        """Follows the allocation table and the GPUs, and keeps both lists in agreement with them."""
        shown: tuple[Device, ...] | None = None
        unwatch = self._gpus.watch(self._alarm.ring)
        self.parts.store.watchers.append(self._alarm.ring)
        try:
            while True:
                self.withhold_slices()
                if (now := self.devices()) != shown:
                    shown = now
                    changed()
                await self._alarm.wait(math.inf)
        finally:
            self.parts.store.watchers.remove(self._alarm.ring)
            unwatch()

    def withhold_slices(self) -> None:
        """Takes the slices of the GPUs that are given out whole off their list.

        Before either list is served, too: a kubelet that is shown them for a moment gives them to a pod, which then
        waits for as long as the other one runs.
        """
        self._withhold(whole_gpu_rules.slices_withheld(self.parts.store.table, self._gpus.now.gpus))

    def _device_ids(self, devices: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(whole_gpu_device_id, devices))

    async def _to_start(self, devices: Sequence[str]) -> Sequence[Allocation]:
        allocations = self.parts.allocator.find(self._device_ids(devices))[:1]
        if not allocations:
            raise RefusedError(
                f"no record of this container's {len(devices)} GPUs in {self.parts.store.state_dir}; delete the pod, "
                "so that it is allocated again"
            )
        return allocations
