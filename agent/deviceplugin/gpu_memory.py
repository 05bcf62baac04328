"""The provider of GPU memory: joins what the kubelet calls to the allocation service, call by call.

The kubelet makes GetPreferredAllocation and Allocate one after the other in its only admission loop and without a
deadline, and an error in either fails the pod for good: both answer at once, and the first never with an error.
PreStartContainer runs beside them, has 30 seconds and is repeated when it fails: whatever has to be waited for is
waited for there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent.allocation.pod_events import PodEvents
from agent.allocation.service import AllocationService, ImpossibleError
from agent.allocation.start import StartDecider
from agent.deviceplugin import messages
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.device_list import DeviceList, DevicesOfType
from agent.deviceplugin.replay import ReplayResolver
from agent.persistence.store import Store
from agent.providers.provider import Answer, Device, NotYetError, Provider, RefusedError
from gigaslice.allocation.table import Allocation
from gigaslice.errors import StorageError

__all__ = ["GpuMemory"]


class GpuMemory(Provider):
    """Hands out slices of GPUs."""

    prefers = True
    checks_start = True

    def __init__(
        self,
        store: Store,
        service: AllocationService,
        devices: DeviceList | DevicesOfType,
        visible_devices: str,
        *,
        admissions: AdmissionResolver,
        replays: ReplayResolver,
        starts: StartDecider,
        events: PodEvents,
        allocated: Callable[[], None],
    ) -> None:
        """Initializes the provider.

        Args:
            store: Where the files of allocations are.
            service: Makes the allocations.
            devices: The slices as the kubelet is shown them.
            visible_devices: How a container's GPUs are named to its runtime, "env" or "cdi".
            admissions: Finds out which container a call is for.
            replays: Finds out which allocation a start is for.
            starts: Decides when a container may start.
            events: Sends what came of a request to its pod.
            allocated: Called when the kubelet's list of containers has changed or is about to.
        """
        self.resource = service.resource
        self._store = store
        self._service = service
        self._devices = devices
        self._visible_devices = visible_devices
        self._admissions = admissions
        self._replays = replays
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
        identified = await self._admissions.identify(size)
        lifecycle = await self._admissions.lifecycle(set(available) - set(must_include))
        device_ids = self._service.prefer(available, must_include, size, identified.requester, lifecycle)
        self._admissions.note_preference(device_ids, identified)
        return device_ids

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[Answer]:
        """Places and records every container, or none of them."""
        identified = await self._admissions.identify_devices(requests)
        lifecycle = await self._admissions.lifecycle(
            device_id for device_ids in requests for device_id in device_ids
        )
        try:
            allocations = self._service.allocate(requests, identified, lifecycle)
        except ImpossibleError as error:
            self._events.impossible(identified, error)
            raise RefusedError(str(error)) from error
        except StorageError as error:
            self._events.not_recorded(identified, error)
            raise
        self._allocated()
        self._events.allocated(identified, allocations)
        return [self._answer(allocation) for allocation in allocations]

    async def allocate_again(self, requests: Sequence[Sequence[str]], age: float) -> list[Answer]:
        """Answers what was recorded during the call, if it was; else allocates."""
        made = self._service.made_during(requests, age)
        if made is None:
            return await self.allocate(requests)
        self._allocated()
        return [self._answer(made)]

    async def start(self, devices: Sequence[str], remaining: float | None) -> None:
        """Returns when the container's memory is free and its allocation is safe on disk; else raises why not."""
        found = await self._replays.allocations(devices)
        if reason := await self._starts.decide(found, remaining):
            raise NotYetError(reason)

    def close(self) -> None:
        """No start is waited for any more."""
        self._starts.close()

    def _answer(self, allocation: Allocation) -> Answer:
        directory = self._store.dirs.path(allocation.id)
        return messages.container_answer(
            allocation, directory, self._store.library_dir, self._visible_devices
        )
