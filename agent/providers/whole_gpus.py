"""The provider of whole GPUs: one device per GPU, decided in the same allocation table as slices.

Its containers get the GPU as it is, without library and limits. The kubelet keeps two lists of the same GPUs and is
told late. So a GPU can be given out whole that has just lost slices, and the other way round. Then the later container
has it in the allocation table, its start waits, and both lists are corrected at once.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.inventory.source import Inventory
from agent.persistence.store import Store
from agent.providers import whole_gpu_rules
from agent.providers.provider import Answer, Device, NotYetError, Provider, RefusedError
from gigaslice.allocation.lending_by_gpu import served_by_gpu
from gigaslice.allocation.pod_peak import with_peak, without_peak
from gigaslice.allocation.table import (
    Allocation,
    AllocationOptions,
    AllocationTable,
    Owner,
    whole_gpu_device_id,
)
from gigaslice.model import Share
from gigaslice.placement import Policy
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.wakeup import Alarm

__all__ = ["Admitted", "Gpus", "WholeGpus"]

_POLL_SECONDS = 1.0  # for changes of the hardware; changes of the allocation table ring an alarm


async def _none_over(device_ids: Iterable[str]) -> frozenset[str]:
    """Returns no allocation: every holder of the device IDs may live."""
    del device_ids
    return frozenset()


@dataclass(frozen=True, slots=True)
class Admitted:
    """Whom a call of the kubelet is for, as far as that is known.

    Attributes:
        owner: The container; None while it is not known.
        suspects: The pods that it may be for, as "namespace/name"; None where that can never be known.
        undecided: It may have an assignment that is not known yet.
        gpus: The GPUs that it was assigned; None where this node chooses.
    """

    owner: Owner | None = None
    suspects: tuple[str, ...] | None = None
    undecided: bool = False
    gpus: tuple[str, ...] | None = None


async def _unknown(size: int) -> Admitted:
    """Returns nothing known about a call for so many GPUs."""
    del size
    return Admitted()


class Gpus(Protocol):
    """Has the GPUs: the allocation service."""

    @property
    def inventory(self) -> Inventory:
        """The GPUs as they are now."""
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
        decide: Callable[[Sequence[Allocation], float | None], Awaitable[str | None]],
        identify: Callable[[int], Awaitable[Admitted]] = _unknown,
        ended: Callable[[Iterable[str]], Awaitable[frozenset[str]]] = _none_over,
    ) -> None:
        """Initializes the provider.

        Args:
            resource: What pods request.
            store: The allocation table.
            gpus: The GPUs.
            policy: How GPUs are chosen.
            visible_devices: How a container's GPUs are named to its runtime, "env" or "cdi".
            now: Returns Unix time in seconds.
            new_id: Returns 32 hex digits.
            withhold: Called with the slices that are not to be had.
            allocated: Called when the kubelet's list of containers has changed or is about to.
            decide: Waits until a container may start; returns the reason why not yet, or None.
            identify: Finds out whom a call for so many GPUs is for. Raises RefusedError.
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
        self._decide = decide
        self._identify = identify
        self._ended = ended
        self._alarm = Alarm()
        self._log = get_logger("whole-gpus")

    def devices(self) -> tuple[Device, ...]:
        """Every GPU; healthy while no container has any of it, or one has it whole."""
        return whole_gpu_rules.devices(self._store.table, self._gpus.inventory.gpus)

    async def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Returns the GPUs that were assigned, or else that placement would choose together."""
        try:
            admitted = await self._identify(size)
        except RefusedError:
            return ()  # Allocate follows, and says why
        unheld = frozenset(whole_gpu_device_id(one) for one in set(available) - set(must_include))
        over = await self._ended(unheld)
        table = self._store.table.counted_out(over).given_back(unheld, over)
        self._store.remember(table)
        if admitted.gpus is not None:
            named = [uuid for uuid in admitted.gpus if uuid in available]
            return tuple(dict.fromkeys([*must_include, *named, *available]))[:size]
        after, _ = table.taken_over((whole_gpu_device_id(one) for one in must_include), over=over)
        return whole_gpu_rules.prefer(
            after, self._gpus.inventory, self._policy, available, must_include=must_include, size=size
        )

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[Answer]:
        """Makes and records one allocation per container. All or none."""
        admitted = await self._identify(len(set(requests[0]))) if len(requests) == 1 else Admitted()
        over = await self._ended(whole_gpu_device_id(one) for devices in requests for one in devices)
        table, fresh = self._store.table.counted_out(over), list[Allocation]()
        for devices in requests:
            table, allocation = self._add(table, devices, over, admitted)
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
        """Waits until no other container has any of the GPUs, and the allocation is known to be its own."""
        found = self._store.table.of_device_ids(frozenset(map(whole_gpu_device_id, devices)))
        if found is None:
            raise RefusedError(
                f"no record of this container's {len(devices)} GPUs in {self._store.state_dir}; delete the pod, so "
                "that it is allocated again"
            )
        if reason := await self._decide([found], remaining):
            raise NotYetError(reason)

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
        self, table: AllocationTable, devices: Sequence[str], over: frozenset[str], admitted: Admitted
    ) -> tuple[AllocationTable, Allocation]:
        device_ids = frozenset(map(whole_gpu_device_id, devices))
        pod = admitted.owner.uid if admitted.owner else ""
        table = without_peak(table, pod)
        if admitted.gpus is not None:
            lenders = table.lenders(device_ids, pod, (), -math.inf)
            table = served_by_gpu(table, lenders, device_ids, [Share(one, 1) for one in admitted.gpus])
        after, superseded = table.taken_over(device_ids, pod=pod, over=over)
        gpus, names = self._gpus.inventory.gpus, sorted(set(devices))
        chosen = (
            whole_gpu_rules.assign(after, gpus, names, admitted.gpus)
            if admitted.gpus is not None
            else whole_gpu_rules.choose(after, gpus, names)
            if devices
            else None
        )
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
            owner=admitted.owner,
            suspects=admitted.suspects,
            undecided=admitted.undecided,
            assigned=admitted.gpus is not None,
        )
        return with_peak(after.with_allocation(allocation), pod), allocation

    def _answer(self, allocation: Allocation) -> Answer:
        uuids = tuple(allocation.quota())
        annotations = {"gigaslice.io/allocation": allocation.id}
        if self._visible_devices == "cdi":
            return Answer(cdi=tuple(f"nvidia.com/gpu={uuid}" for uuid in uuids), annotations=annotations)
        return Answer(env={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}, annotations=annotations)
