"""The provider of whole GPUs: one device per GPU, decided in the same allocation table as slices.

Its containers get the GPU as it is, without library and limits. The kubelet keeps two lists of the same GPUs and is
told late. So a GPU can be given out whole that has just lost slices, and the other way round. Then the later container
has it in the allocation table, its start waits, and both lists are corrected at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from agent.inventory.source import Inventory
from agent.persistence.store import Store
from agent.providers import whole_gpu_rules
from agent.providers.provider import Answer, Device, NotYetError, Provider, RefusedError
from gigaslice.allocation.table import Allocation, AllocationOptions, AllocationTable, whole_gpu_device_id
from gigaslice.placement import Policy
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.wakeup import Alarm

__all__ = ["Gpus", "WholeGpus"]

_POLL_SECONDS = 1.0  # for changes of the hardware; changes of the allocation table ring an alarm
_START_PATIENCE = 5.0
_START_INTERVAL = 0.1
_TAKEN = "the kubelet has given this container's GPUs to another one; delete the pod"


async def _none_over(device_ids: Iterable[str]) -> frozenset[str]:
    """Returns no allocation: every holder of the device IDs may live."""
    del device_ids
    return frozenset()


class Gpus(Protocol):
    """Has the GPUs, and tells whether a container on them may start: the allocation service."""

    @property
    def inventory(self) -> Inventory:
        """The GPUs as they are now."""
        ...

    def start_blocker(self, allocation: Allocation) -> str | None:
        """Returns what the start of its container waits for; None when it may start."""
        ...


class WholeGpus(Provider):
    """Hands out whole GPUs."""

    prefers = True
    checks_start = True

    def __init__(
        self,
        resource: str,
        store: Store,
        gpus: Gpus,
        policy: Policy,
        visible_devices: str,
        *,
        now: Callable[[], float],
        new_id: Callable[[], str],
        withhold: Callable[[frozenset[str]], Awaitable[None]],
        allocated: Callable[[], None],
        ended: Callable[[Iterable[str]], Awaitable[frozenset[str]]] = _none_over,
    ) -> None:
        """Initializes the provider.

        Args:
            resource: What pods request.
            store: The allocation table.
            gpus: The GPUs, and whether a container on them may start.
            policy: How GPUs are chosen.
            visible_devices: How a container's GPUs are named to its runtime, "env" or "cdi".
            now: Returns Unix time in seconds.
            new_id: Returns 32 hex digits.
            withhold: Called with the slices that are not to be had.
            allocated: Called when the kubelet's list of containers has changed or is about to.
            ended: Finds the allocations that are over, of those that hold device IDs which the kubelet shows as free
                or hands out.
        """
        self.resource = resource
        self._store = store
        self._gpus = gpus
        self._policy = policy
        self._visible_devices = visible_devices
        self._now = now
        self._new_id = new_id
        self._withhold = withhold
        self._allocated = allocated
        self._ended = ended
        self._alarm = Alarm()
        self._log = get_logger("whole-gpus")

    def devices(self) -> tuple[Device, ...]:
        """Every GPU; healthy while no container has any of it, or one has it whole."""
        return whole_gpu_rules.devices(self._store.table, self._gpus.inventory.gpus)

    async def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Returns GPUs that placement would choose together."""
        unheld = frozenset(whole_gpu_device_id(one) for one in set(available) - set(must_include))
        over = await self._ended(unheld)
        table = self._store.table.counted_out(over).given_back(unheld, over)
        self._store.remember(table)
        after, _ = table.taken_over((whole_gpu_device_id(one) for one in must_include), over=over)
        return whole_gpu_rules.prefer(
            after, self._gpus.inventory, self._policy, available, must_include=must_include, size=size
        )

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[Answer]:
        """Makes and records one allocation per container. All or none."""
        over = await self._ended(whole_gpu_device_id(one) for devices in requests for one in devices)
        table, fresh = self._store.table.counted_out(over), list[Allocation]()
        for devices in requests:
            table, allocation = self._add(table, devices, over)
            fresh.append(allocation)
        self._store.commit(table, fresh)
        for allocation in fresh:
            self._log.info(
                "allocated",
                allocation=allocation.id,
                container=allocation.name,
                whole=list(allocation.quota()),
                supersedes=list(allocation.supersedes),
                waiting=allocation.waiting,
            )
        self._allocated()
        return [self._answer(allocation) for allocation in fresh]

    async def start(self, devices: Sequence[str], remaining: float | None) -> None:
        """Waits until no other container has any of the GPUs and the allocation table is safe on disk."""
        found = self._store.table.of_device_ids(frozenset(map(whole_gpu_device_id, devices)))
        if found is None:
            raise RefusedError(
                f"no record of this container's {len(devices)} GPUs in {self._store.state_dir}; delete the pod, so "
                "that it is allocated again"
            )
        patience = _START_PATIENCE if remaining is None else min(_START_PATIENCE, remaining / 2)
        deadline = time.monotonic() + patience
        while reason := self._reason(found.id):
            if time.monotonic() >= deadline:
                self._log.info("start delayed", allocation=found.id, container=found.name, detail=reason)
                raise NotYetError(reason)
            self._allocated()
            await asyncio.sleep(_START_INTERVAL)
        await asyncio.to_thread(self._store.sync)  # what was decided while waiting, too
        if self._store.table.find(found.id) is None:
            raise NotYetError(_TAKEN)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Follows the allocation table and the GPUs, and keeps both lists in agreement with them."""
        shown: tuple[Device, ...] | None = None
        self._store.watchers.append(self._alarm.ring)
        try:
            while True:
                await self._withhold(
                    whole_gpu_rules.slices_withheld(self._store.table, self._gpus.inventory.gpus)
                )
                if (now := self.devices()) != shown:
                    shown = now
                    changed()
                seen = self._gpus.inventory
                while self._gpus.inventory is seen and not await self._alarm.wait(_POLL_SECONDS):
                    pass
        finally:
            self._store.watchers.remove(self._alarm.ring)

    def _add(
        self, table: AllocationTable, devices: Sequence[str], over: frozenset[str]
    ) -> tuple[AllocationTable, Allocation]:
        device_ids = frozenset(map(whole_gpu_device_id, devices))
        after, superseded = table.taken_over(device_ids, over=over)
        gpus = self._gpus.inventory.gpus
        chosen = whole_gpu_rules.choose(after, gpus, sorted(set(devices))) if devices else None
        if chosen is None:
            raise RefusedError(
                f"{len(devices)} whole GPUs asked for, and this node has {len(gpus)}; ask for fewer"
            )
        allocation = Allocation(
            id=self._new_id(),
            number=after.next_number,
            created=round(self._now(), 3),
            holds=chosen.holds,
            library=self._store.library,
            supersedes=superseded,
            waiting=chosen.waiting,
            policy=AllocationOptions(exclusive=True),
        )
        return after.with_allocation(allocation), allocation

    def _answer(self, allocation: Allocation) -> Answer:
        uuids = tuple(allocation.quota())
        annotations = {"gigaslice.io/allocation": allocation.id}
        if self._visible_devices == "cdi":
            return Answer(cdi=tuple(f"nvidia.com/gpu={uuid}" for uuid in uuids), annotations=annotations)
        return Answer(env={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}, annotations=annotations)

    def _reason(self, allocation_id: str) -> str | None:
        allocation = self._store.table.find(allocation_id)
        if allocation is None:
            return _TAKEN
        return self._gpus.start_blocker(allocation)
