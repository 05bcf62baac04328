"""The provider of whole GPUs: one device per GPU, decided in the same allocation table as slices.

Its containers get the GPU as it is, without library and limits. The kubelet keeps two lists of the same GPUs and
learns late, so a GPU can be given out whole that has just lost slices, and the other way round: the later one has it
in the allocation table, waits behind the start gate, and the lists are put right at once.
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

_LOOK_SECONDS = 1.0  # for changes of the hardware; those of the allocation table are told
_GATE_PATIENCE = 5.0
_GATE_INTERVAL = 0.1
_GIVEN_AWAY = "the kubelet has given this container's GPUs to another one; delete the pod"


async def nobody(device_ids: Iterable[str]) -> frozenset[str]:
    """Whoever had DEVICE_IDS may live."""
    del device_ids
    return frozenset()


class Gpus(Protocol):
    """Has the GPUs, and tells whether a container on them may start: the allocation service."""

    @property
    def inventory(self) -> Inventory:
        """The GPUs as they are now."""
        ...

    def start_blocker(self, allocation: Allocation) -> str | None:
        """None, or what is waited for."""
        ...


class WholeGpus(Provider):
    """Hands out whole GPUs of CARDS as RESOURCE, in STORE's allocation table. VISIBLE_DEVICES: "env" or "cdi".

    WITHHOLD is called with the slices that are not to be had, ALLOCATED when the kubelet's list is worth a look. ENDED
    tells, of allocations whose device IDs the kubelet shows as free or hands out, which are over.
    """

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
        ended: Callable[[Iterable[str]], Awaitable[frozenset[str]]] = nobody,
    ) -> None:
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
        """Every GPU; healthy while nobody has anything of it, or one has it whole."""
        return whole_gpu_rules.devices(self._store.table, self._gpus.inventory.gpus)

    async def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """GPUs that placement would choose together."""
        unheld = frozenset(whole_gpu_device_id(one) for one in set(available) - set(must_include))
        over = await self._ended(unheld)
        table = self._store.table.counted_out(over).given_back(unheld, over)
        self._store.remember(table)
        after, _ = table.taken_over((whole_gpu_device_id(one) for one in must_include), over=over)
        return whole_gpu_rules.prefer(
            after, self._gpus.inventory, self._policy, available, must_include=must_include, size=size
        )

    async def allocate(self, wanted: Sequence[Sequence[str]]) -> list[Answer]:
        """One allocation per container, recorded. All or none."""
        over = await self._ended(whole_gpu_device_id(one) for devices in wanted for one in devices)
        table, fresh = self._store.table.counted_out(over), list[Allocation]()
        for devices in wanted:
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
        """Waits until the GPUs are free of everybody else and the allocation table is safe on disk."""
        found = self._store.table.of_device_ids(frozenset(map(whole_gpu_device_id, devices)))
        if found is None:
            raise RefusedError(
                f"no record of this container's {len(devices)} GPUs in {self._store.state_dir}; delete the pod, so "
                "that it is allocated again"
            )
        patience = _GATE_PATIENCE if remaining is None else min(_GATE_PATIENCE, remaining / 2)
        deadline = time.monotonic() + patience
        while reason := self._reason(found.id):
            if time.monotonic() >= deadline:
                self._log.info("start delayed", allocation=found.id, container=found.name, detail=reason)
                raise NotYetError(reason)
            self._allocated()
            await asyncio.sleep(_GATE_INTERVAL)
        await asyncio.to_thread(self._store.sync)  # what has just been decided, too
        if self._store.table.find(found.id) is None:
            raise NotYetError(_GIVEN_AWAY)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Follows allocation table and GPUs, and keeps both lists in agreement with them."""
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
                while self._gpus.inventory is seen and not await self._alarm.wait(_LOOK_SECONDS):
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
            return _GIVEN_AWAY
        return self._gpus.start_blocker(allocation)
