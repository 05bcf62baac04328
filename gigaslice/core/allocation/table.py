# SPDX-License-Identifier: Apache-2.0
"""The allocation table of the node: every share of GPUs that was given out. Pure.

An allocation says how much of which GPUs it has, and by its origin for whom. Nothing here depends on the API by which
allocations are handed out: what the kubelet's device-plugin API adds, such as device IDs, is in
`gigaslice.core.deviceplugin`. Values only: each change is a new allocation table, and nothing here reads a clock or a
file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

from gigaslice.core.allocation.consumer import Consumer, Origin
from gigaslice.core.errors import StateError
from gigaslice.core.model import (
    CORES_PER_GPU,
    DEFAULT_PRIORITY,
    PRIORITIES,
    Gpu,
    Occupant,
    Placement,
    RequestOptions,
    Share,
)

__all__ = [
    "Allocation",
    "AllocationOptions",
    "AllocationTable",
    "Hold",
    "LiveLimit",
    "holds_of",
    "whole_hold",
    "with_given_cores",
]


@dataclass(frozen=True, slots=True)
class AllocationOptions:
    """What was asked for beside memory; kept with the allocation, since a pod's annotations can change.

    cores: per cent of each GPU's compute, 0 for no share; cores_elastic, priority: whether idle compute of others is
    lent, and who gets more. exclusive: its GPUs are its pod's alone. elastic: may use more while alone, up to
    max_slices of a GPU if given. oversubscribe: may use lent host memory. time_slicing: shares a GPU that thrashes by
    time slices. parts: slices of each GPU as the annotation says them, empty where it says nothing.
    """

    cores: int = 0
    exclusive: bool = False
    elastic: bool = False
    max_slices: int | None = None
    oversubscribe: bool = False
    time_slicing: bool = True
    parts: tuple[int, ...] = ()
    cores_elastic: bool = False
    priority: str = DEFAULT_PRIORITY

    @classmethod
    def of(cls, options: RequestOptions) -> AllocationOptions:
        """What the annotations of a pod ask for."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class LiveLimit:
    """What a resize has made of a GPU's share since it was given; None where that is still as given."""

    gpu: str
    memory_bytes: int | None = None
    cores: int | None = None


@dataclass(frozen=True)  # without slots, as an allocation
class Hold:
    """What an allocation has of one GPU.

    Attributes:
        gpu: The GPU's UUID.
        memory_bytes: What its consumers may use of this GPU.
        slice_bytes: Size of the GPU's slices when it was given: placement counts whole slices.
        physical_bytes: Of the memory, what lies in the GPU's own at most, the rest may lie in lent host memory; 0: all.
        cores: Per cent of this GPU's compute, where that is not as the options say for all GPUs.
        lent_bytes: Of the memory, what counts for another allocation instead.
        counted_bytes: What counts beside other allocations, where that is not what it has not lent.
    """

    gpu: str
    memory_bytes: int
    slice_bytes: int
    physical_bytes: int = 0
    cores: int | None = None
    lent_bytes: int = 0
    counted_bytes: int | None = None

    @property
    def kept_bytes(self) -> int:
        """The memory that it has not lent."""
        return self.memory_bytes - self.lent_bytes


@dataclass(frozen=True)  # without slots: what follows from the fields is worked out once per allocation
class Allocation:
    """A share of some GPUs.

    Attributes:
        id: 32 hex digits, name of its directory.
        number: The order in which allocations were made, never used twice.
        created: Unix time in seconds.
        holds: One per GPU.
        library: The file name that its preload line names.
        origin: What it was made for.
        policy: What was asked for beside memory.
        whole: Its GPUs are given out as they are, without library and limits.
        waiting: A GPU had no room for it when it was made, and the start decision has not let it start yet.
        ended: Its consumers are over by all that is known. It counts no more, but for what their processes still hold.
        assigned: The cluster's scheduler has chosen its GPUs.
        limits: GPUs whose share was changed since, at most once each.
        resizes: How many such changes there were, so that of two records the later is known.
    """

    id: str
    number: int
    created: float
    holds: tuple[Hold, ...]
    library: str
    origin: Origin
    policy: AllocationOptions = AllocationOptions()
    whole: bool = False
    waiting: bool = False
    ended: bool = False
    assigned: bool = False
    limits: tuple[LiveLimit, ...] = ()
    resizes: int = 0

    @cached_property
    def consumers(self) -> tuple[Consumer, ...]:
        """The containers that use it, as far as they are known."""
        return tuple(self.origin.consumers)

    @property
    def name(self) -> str:
        """The name for people: its containers, or its id before they are known."""
        return ", ".join(str(consumer.ref) for consumer in self.consumers) or f"allocation {self.id[:8]}"

    @property
    def keeps(self) -> bool:
        """Whether anything of it still counts for it, rather than for another allocation or for none."""
        return not self.ended and any(hold.kept_bytes for hold in self.holds)

    def is_of(self, uid: str) -> bool:
        """Whether a pod of that UID uses it."""
        return any(consumer.uid == uid for consumer in self.consumers if consumer.uid)

    def quota(self) -> dict[str, int]:
        """Bytes it may use of each GPU: what it was given, or what that was changed to."""
        given = {hold.gpu: hold.memory_bytes for hold in self.holds}
        changed = {limit.gpu: limit.memory_bytes for limit in self.limits if limit.memory_bytes is not None}
        return {**given, **changed}

    @cached_property
    def physical(self) -> Mapping[str, int]:
        """Bytes of its quota that may be in the GPU's own memory, for the GPUs whose lent memory it may use."""
        quota = self.quota()
        return {
            hold.gpu: min(hold.physical_bytes, quota[hold.gpu]) for hold in self.holds if hold.physical_bytes
        }

    def cores_of(self, gpu: str) -> int:
        """Per cent of a GPU's compute that it may use, 0 for no share."""
        changed = (limit.cores for limit in self.limits if limit.gpu == gpu and limit.cores is not None)
        return next(changed, self.given_cores.get(gpu, self.policy.cores))

    @cached_property
    def given_cores(self) -> Mapping[str, int]:
        """Per cent of each GPU's compute as it was given, for GPUs where the options do not say it."""
        return {hold.gpu: hold.cores for hold in self.holds if hold.cores is not None}

    @property
    def compute(self) -> int:
        """The word of limits pages for how a share of compute is meant; 0 without one."""
        if not self.policy.cores and not any(self.given_cores.values()):
            return 0
        return PRIORITIES[self.policy.priority] << 8 | int(self.policy.cores_elastic)

    @cached_property
    def promised(self) -> Mapping[str, int]:
        """Bytes of each GPU that no other allocation may be promised: its quota, without what it has lent."""
        if self.ended:
            return {}
        quota = self.quota()
        if all(hold.counted_bytes is None and not hold.lent_bytes for hold in self.holds):
            return quota
        counts = {
            hold.gpu: max(0, quota[hold.gpu] - hold.lent_bytes)
            if hold.counted_bytes is None
            else hold.counted_bytes
            for hold in self.holds
            if self.keeps or hold.counted_bytes is not None
        }
        return {gpu: count for gpu, count in counts.items() if count}

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """Slices that count on each GPU, rounded up, in the size they had when they were given."""
        return tuple(
            Share(hold.gpu, -(-self.promised[hold.gpu] // hold.slice_bytes))
            for hold in self.holds
            if hold.gpu in self.promised
        )

    @cached_property
    def counted(self) -> tuple[Occupant, ...]:
        """The same as one occupant, where no option makes it another; nothing when nothing counts."""
        return (Occupant(self.id, self.shares),) if self.shares else ()

    def shares_of(self, unit: Mapping[str, int]) -> tuple[Share, ...]:
        """The same in slices of UNIT bytes (by GPU), rounded up: the slice size may have been changed since."""
        for hold in self.holds:
            if unit.get(hold.gpu, hold.slice_bytes) != hold.slice_bytes:
                break
        else:
            return self.shares
        size = {hold.gpu: hold.slice_bytes for hold in self.holds}
        return tuple(
            Share(gpu, -(-count // unit.get(gpu, size[gpu]))) for gpu, count in self.promised.items()
        )


@dataclass(frozen=True, slots=True)
class AllocationTable:
    """All allocations of the node in the order of their numbers, and the number of the next."""

    allocations: tuple[Allocation, ...] = ()
    next_number: int = 1

    def find(self, allocation_id: str) -> Allocation | None:
        """The allocation of that id, if there is one."""
        return next((allocation for allocation in self.allocations if allocation.id == allocation_id), None)

    def of_key(self, key: str) -> Allocation | None:
        """The newest allocation that answers the request of that key, and has not ended."""
        answers = (
            allocation
            for allocation in reversed(self.allocations)
            if allocation.origin.key == key and not allocation.ended
        )
        return next(answers, None) if key else None

    def with_allocation(self, allocation: Allocation) -> AllocationTable:
        """The allocation table with one more allocation; StateError when its id is there already."""
        if self.find(allocation.id):
            raise StateError(f"allocation {allocation.id} is recorded twice")
        allocations = tuple(sorted((*self.allocations, allocation), key=_number))
        return AllocationTable(allocations, max(self.next_number, allocation.number + 1))

    def replaced(self, changed: Iterable[Allocation]) -> AllocationTable:
        """The allocation table with the allocations of the same ids exchanged for these."""
        by_id = {allocation.id: allocation for allocation in changed}
        if not by_id:
            return self
        return replace(
            self, allocations=tuple(by_id.get(allocation.id, allocation) for allocation in self.allocations)
        )

    def without(self, ids: Iterable[str]) -> AllocationTable:
        """The allocation table after allocations were released."""
        dropped = frozenset(ids)
        return replace(
            self,
            allocations=tuple(allocation for allocation in self.allocations if allocation.id not in dropped),
        )

    def only(self, belongs: Callable[[Allocation], bool]) -> AllocationTable:
        """The allocation table without the allocations that do not belong to a part of it."""
        allocations = tuple(allocation for allocation in self.allocations if belongs(allocation))
        return self if len(allocations) == len(self.allocations) else replace(self, allocations=allocations)

    def beside(self, others: AllocationTable) -> AllocationTable:
        """The allocation table with the allocations of OTHERS, which it has none of."""
        if not others.allocations:
            return self
        allocations = tuple(sorted((*self.allocations, *others.allocations), key=_number))
        return AllocationTable(allocations, max(self.next_number, others.next_number))

    def with_ended(self, ids: Collection[str]) -> AllocationTable:
        """The allocation table after the consumers of some allocations have ended."""
        return self.replaced(
            replace(allocation, ended=True)
            for allocation in self.allocations
            if allocation.id in ids and not allocation.ended
        )

    def occupants(self, gpus: Sequence[Gpu], pod: str = "") -> tuple[Occupant, ...]:
        """What counts on the GPUs, in their present slices, for `gigaslice.core.model.NodeState`.

        A GPU that another pod than the one with the UID POD has for itself counts as taken altogether.
        """
        unit = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
        whole = {gpu.uuid: gpu.slices for gpu in gpus}
        occupants: list[Occupant] = []
        for allocation in self.allocations:
            shares = allocation.shares_of(unit) if allocation.shares else ()
            if shares is allocation.shares and not (
                allocation.policy.exclusive
                or allocation.policy.cores
                or allocation.limits
                or allocation.given_cores
            ):  # as most are
                occupants += allocation.counted
                continue
            if shares and allocation.policy.exclusive and not allocation.is_of(pod):
                shares = tuple(
                    Share(share.gpu, max(share.slices, whole.get(share.gpu, 0)), CORES_PER_GPU)
                    for share in shares
                )
            elif shares and (allocation.policy.cores or allocation.limits or allocation.given_cores):
                shares = tuple(
                    Share(share.gpu, share.slices, allocation.cores_of(share.gpu)) for share in shares
                )
            if shares:
                occupants.append(Occupant(allocation.id, shares))
        return tuple(occupants)

    def of_pod(self, uid: str) -> tuple[Allocation, ...]:
        """The allocations that count for the pod of that UID, in order."""
        return tuple(
            allocation for allocation in self.allocations if allocation.is_of(uid) and not allocation.ended
        )


def holds_of(placement: Placement, gpus: Sequence[Gpu]) -> tuple[Hold, ...]:
    """What an allocation has that was placed so: the slices of each GPU, in bytes."""
    unit = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
    return tuple(
        Hold(share.gpu, share.slices * unit[share.gpu], unit[share.gpu]) for share in placement.shares
    )


def whole_hold(gpu: Gpu) -> Hold:
    """What an allocation has of a GPU that it is given as a whole: one slice of the size of the GPU."""
    return Hold(gpu.uuid, gpu.bytes_of(gpu.slices), gpu.bytes_of(gpu.slices))


def with_given_cores(allocation: Allocation) -> Allocation:
    """The allocation, each of whose holds says how much compute it was given: its options can be changed later."""
    holds = tuple(
        hold if hold.cores is not None else replace(hold, cores=allocation.policy.cores)
        for hold in allocation.holds
    )
    return replace(allocation, holds=holds)


def _number(allocation: Allocation) -> int:
    return allocation.number
