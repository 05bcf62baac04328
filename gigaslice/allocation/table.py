"""The allocation table of the node: every container that was given slices, and which slices those are.

An allocation is what one Allocate call handed out. The kubelet speaks in device IDs and this agent places slices
itself, so an allocation says for each GPU which device IDs are served from it. Three rules of the kubelet shape
everything here: there is no deallocate call, init containers lend their device IDs to later containers of the same pod,
and what the kubelet has forgotten it hands out a second time while the first container runs. Values only: each change
is a new allocation table, and nothing here reads a clock or a file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gigaslice.errors import DeviceIdError, StateError
from gigaslice.model import (
    CORES_PER_GPU,
    DEFAULT_PRIORITY,
    PRIORITIES,
    Gpu,
    Occupant,
    Placement,
    RequestOptions,
    Share,
    parse_device_id,
)

__all__ = [
    "Allocation",
    "AllocationOptions",
    "AllocationTable",
    "ContainerRef",
    "Hold",
    "LiveLimit",
    "Owner",
    "assign_device_ids",
    "device_order",
    "whole_gpu",
    "whole_gpu_device_id",
]


_WHOLE = "whole:"


def whole_gpu_device_id(uuid: str) -> str:
    """The allocation table's device ID for the device UUID of the resource of whole GPUs; never that of a slice."""
    return _WHOLE + uuid


def whole_gpu(device_id: str) -> str:
    """The GPU's UUID in such a device ID; empty for a slice."""
    return device_id.removeprefix(_WHOLE) if device_id.startswith(_WHOLE) else ""


@dataclass(frozen=True, slots=True, order=True)
class ContainerRef:
    """A container by its names in the cluster."""

    namespace: str
    pod: str
    container: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The container that an allocation was made for, as found out during Allocate. init: a plain init container."""

    uid: str
    namespace: str
    pod: str
    container: str
    init: bool = False

    @property
    def ref(self) -> ContainerRef:
        """The names alone."""
        return ContainerRef(self.namespace, self.pod, self.container)


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
        return cls(
            cores=options.cores,
            exclusive=options.exclusive,
            elastic=options.elastic,
            max_slices=options.max_slices,
            oversubscribe=options.oversubscribe,
            time_slicing=options.time_slicing,
            parts=options.parts,
            cores_elastic=options.cores_elastic,
            priority=options.priority,
        )


@dataclass(frozen=True, slots=True)
class LiveLimit:
    """What a resize has made of a GPU's share since it was given; None where that is still as given."""

    gpu: str
    memory_bytes: int | None = None
    cores: int | None = None


@dataclass(frozen=True)  # without slots, as an allocation
class Hold:
    """Slices of one GPU: one of `slice_bytes` for each of the device IDs, whatever GPU a device ID is named after.

    physical_bytes: of them in the GPU's own memory at most, the rest may lie in lent host memory; 0: all of them.
    cores: per cent of this GPU's compute, where that is not as the annotations of the pod say for all its GPUs.
    counted: bytes of it that count beside the other containers of its pod, where that is not what it has not lent: see
    `pod_peak`.
    """

    gpu: str
    slice_bytes: int
    device_ids: tuple[str, ...]
    physical_bytes: int = 0
    cores: int | None = None
    counted: int | None = None

    @property
    def memory_bytes(self) -> int:
        """What the container may use of this GPU."""
        return len(self.device_ids) * self.slice_bytes


@dataclass(frozen=True)  # without slots: what follows from the fields is worked out once per allocation
class Allocation:
    """What one container was given.

    id: 32 hex digits, name of its directory. number: order of the Allocate calls, never used twice. created: Unix
    time in seconds. holds: one per GPU. library: file name that its preload line names. lent: device IDs that a later
    container of the same pod, or an unknown one, has taken over. supersedes: ids of allocations it took device IDs
    from. container: known once the kubelet has listed it. suspects: until then, the pods ("namespace/name") one of
    which it is for; None before the kubelet was asked. gone: its pod has ended by all that is known, so its slices
    count no more. forgotten: the kubelet counts its devices as free, and nothing shows that its pod has ended, so its
    slices still count. foreign: made up for a container whose mounts are not these files: it counts, and nothing
    starts from it. waiting: a GPU had no room for it at Allocate, and the start decision has not let it start yet.
    owner: the container it was made for, where that was found out during Allocate; a listed container is in
    `container` besides. undecided: its annotations were not known, or made no sense, and are read again before the
    start. limits: GPUs whose share was changed since, at most once each. resizes: how many changes there were, so
    that of two records the later is known. assigned: its GPUs are those of its pod's assignment.
    """

    id: str
    number: int
    created: float
    holds: tuple[Hold, ...]
    library: str
    lent: frozenset[str] = frozenset()
    supersedes: tuple[str, ...] = ()
    container: ContainerRef | None = None
    suspects: tuple[str, ...] | None = None
    gone: bool = False
    waiting: bool = False
    owner: Owner | None = None
    policy: AllocationOptions = AllocationOptions()
    undecided: bool = False
    limits: tuple[LiveLimit, ...] = ()
    resizes: int = 0
    forgotten: bool = False
    foreign: bool = False
    assigned: bool = False

    @cached_property
    def device_ids(self) -> frozenset[str]:
        """Every device ID of the answer, lent ones included."""
        return frozenset(device_id for hold in self.holds for device_id in hold.device_ids)

    @cached_property
    def kept(self) -> frozenset[str]:
        """The device IDs whose slices still count for it, whatever the kubelet makes of the device IDs."""
        return frozenset() if self.gone else self.device_ids - self.lent

    @cached_property
    def held(self) -> frozenset[str]:
        """The device IDs that are its own in the kubelet's count too: no two allocations hold the same one."""
        return frozenset() if self.forgotten else self.kept

    @cached_property
    def whole(self) -> bool:
        """Whether it is of whole GPUs, which have neither library nor limits in the container."""
        return any(whole_gpu(device_id) for device_id in self.device_ids)

    @property
    def name(self) -> str:
        """The name for people: its container, or its id before the kubelet has named one."""
        known = self.ref
        return str(known) if known else f"allocation {self.id[:8]}"

    @property
    def ref(self) -> ContainerRef | None:
        """The container it is for, listed or not; None while that is not known."""
        return self.container or (self.owner.ref if self.owner else None)

    def is_of(self, uid: str) -> bool:
        """Whether it was made for the pod of that UID."""
        return self.owner is not None and self.owner.uid == uid

    def quota(self) -> dict[str, int]:
        """Bytes it may use of each GPU: its slices, or what they were changed to."""
        given = {hold.gpu: hold.memory_bytes for hold in self.holds}
        changed = {one.gpu: one.memory_bytes for one in self.limits if one.memory_bytes is not None}
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
        changed = (one.cores for one in self.limits if one.gpu == gpu and one.cores is not None)
        return next(changed, self.given_cores.get(gpu, self.policy.cores))

    @cached_property
    def given_cores(self) -> Mapping[str, int]:
        """Per cent of each GPU's compute as it was given, for GPUs where the annotations do not say it."""
        return {hold.gpu: hold.cores for hold in self.holds if hold.cores is not None}

    @property
    def compute(self) -> int:
        """The word of limits pages for how a share of compute is meant; 0 without one."""
        if not self.policy.cores and not any(self.given_cores.values()):
            return 0
        return PRIORITIES[self.policy.priority] << 8 | int(self.policy.cores_elastic)

    @cached_property
    def promised(self) -> Mapping[str, int]:
        """Bytes of each GPU that no other container may be promised: its quota, without slices that it has lent."""
        if self.gone:
            return {}
        quota = self.quota()
        if not self.lent and not self.limits and all(hold.counted is None for hold in self.holds):
            return quota
        left = {
            hold.gpu: max(
                0, quota[hold.gpu] - len(self.lent.intersection(hold.device_ids)) * hold.slice_bytes
            )
            if hold.counted is None
            else hold.counted
            for hold in self.holds
            if self.kept or hold.counted is not None
        }
        return {gpu: count for gpu, count in left.items() if count}

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """Slices that count on each GPU, in the size they had when they were given."""
        return tuple(
            Share(hold.gpu, -(-self.promised[hold.gpu] // hold.slice_bytes))
            for hold in self.holds
            if hold.gpu in self.promised
        )

    @cached_property
    def counted(self) -> tuple[Occupant, ...]:
        """The same as one allocation, where no policy makes it another; nothing when nothing counts."""
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

    def all_of_device_ids(self, device_ids: frozenset[str]) -> tuple[Allocation, ...]:
        """The allocations that were answered to exactly these device IDs, newest first."""
        return tuple(
            allocation for allocation in reversed(self.allocations) if allocation.device_ids == device_ids
        )

    def of_device_ids(self, device_ids: frozenset[str]) -> Allocation | None:
        """The newest of them: the container that the kubelet means by these device IDs now."""
        return next(iter(self.all_of_device_ids(device_ids)), None)

    def counted_elsewhere(self, allocation: Allocation) -> bool:
        """Whether a device ID of ALLOCATION is another one's in the kubelet's count: see `Allocation.held`."""
        others = (other for other in self.allocations if other.id != allocation.id)
        return any(not other.held.isdisjoint(allocation.device_ids) for other in others)

    def with_allocation(self, allocation: Allocation) -> AllocationTable:
        """The allocation table with one more allocation; StateError when its id is there already."""
        if self.find(allocation.id):
            raise StateError(f"allocation {allocation.id} is recorded twice")
        allocations = tuple(sorted((*self.allocations, allocation), key=lambda one: one.number))
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

    def taken_over(
        self,
        device_ids: Iterable[str],
        before: int | None = None,
        pod: str = "",
        *,
        over: Collection[str] = (),
        started: Collection[str] = (),
        since: float = -math.inf,
    ) -> tuple[AllocationTable, tuple[str, ...]]:
        """The allocation table after the kubelet hands DEVICE_IDS to a new container, and the ids of the allocations
        that had them.

        One that may be of an init container of the same pod lends just these. Of the others those in OVER are gone; the
        rest may live, so they are forgotten, and count. POD: UID of the new container's pod, where that is known.
        BEFORE restricts all this to allocations with smaller numbers. STARTED: allocations that processes have used,
        and SINCE: the least `created` of a lender: the kubelet allocates all containers of a pod at once and before it
        starts one.
        """
        taken = frozenset(device_ids)
        changed = []
        for allocation in self.allocations:
            common = allocation.held & taken
            if not common or (before is not None and allocation.number >= before):
                continue
            if _lends(allocation, pod, started, since):
                changed.append(replace(allocation, lent=allocation.lent | common))
            else:
                changed.append(_ended(allocation, over))
        return self.replaced(changed), tuple(allocation.id for allocation in changed)

    def lenders(
        self, device_ids: frozenset[str], pod: str, started: Collection[str], since: float
    ) -> frozenset[str]:
        """Ids of the allocations that would lend DEVICE_IDS rather than lose them: see `taken_over`."""
        return frozenset(
            allocation.id
            for allocation in self.allocations
            if not allocation.held.isdisjoint(device_ids) and _lends(allocation, pod, started, since)
        )

    def given_back(self, free_device_ids: Iterable[str], over: Collection[str] = ()) -> AllocationTable:
        """The allocation table after the kubelet shows FREE_DEVICE_IDS as free: their holders are gone if OVER names
        them, or else forgotten. A kubelet that has lost its checkpoint shows the devices of running containers as free.
        """
        free = frozenset(free_device_ids)
        return self.replaced(
            _ended(allocation, over)
            for allocation in self.allocations
            if not allocation.held.isdisjoint(free)
        )

    def counted_out(self, over: Collection[str]) -> AllocationTable:
        """The allocation table after the pods of the allocations OVER have ended."""
        return self.replaced(
            replace(allocation, gone=True)
            for allocation in self.allocations
            if allocation.id in over and not allocation.gone
        )

    def occupants(self, gpus: Sequence[Gpu], pod: str = "") -> tuple[Occupant, ...]:
        """What counts on the GPUs, in their present slices, for `gigaslice.model.NodeState`.

        A GPU that another pod than the one with the UID POD has for itself counts as taken altogether.
        """
        unit = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
        whole = {gpu.uuid: gpu.slices for gpu in gpus}
        found: list[Occupant] = []
        for allocation in self.allocations:
            shares = allocation.shares_of(unit) if allocation.shares else ()
            if shares is allocation.shares and not (
                allocation.policy.exclusive
                or allocation.policy.cores
                or allocation.limits
                or allocation.given_cores
            ):  # as most are
                found += allocation.counted
                continue
            if shares and allocation.policy.exclusive and not allocation.is_of(pod):
                shares = tuple(
                    Share(share.gpu, max(share.slices, whole.get(share.gpu, 0)), CORES_PER_GPU)
                    for share in shares
                )
            elif shares and (allocation.policy.cores or allocation.limits or allocation.given_cores):
                shares = tuple(Share(one.gpu, one.slices, allocation.cores_of(one.gpu)) for one in shares)
            if shares:
                found.append(Occupant(allocation.id, shares))
        return tuple(found)

    def of_pod(self, uid: str) -> tuple[Allocation, ...]:
        """The allocations that count for the pod of that UID, in order."""
        return tuple(
            allocation for allocation in self.allocations if allocation.is_of(uid) and not allocation.gone
        )


def _ended(allocation: Allocation, over: Collection[str]) -> Allocation:
    return replace(allocation, gone=True) if allocation.id in over else replace(allocation, forgotten=True)


def _lends(allocation: Allocation, pod: str, started: Collection[str], since: float) -> bool:
    if allocation.owner is not None and pod:
        return allocation.owner.init and allocation.owner.uid == pod
    if allocation.container is not None or allocation.id in started or allocation.created < since:
        return False
    return allocation.owner is None or allocation.owner.init


def assign_device_ids(
    device_ids: Iterable[str], placement: Placement, gpus: Sequence[Gpu]
) -> tuple[Hold, ...]:
    """Serves each device ID from a GPU of PLACEMENT: from the one it is named after where that has room, else in order.

    The number of device IDs and of slices must be the same; StateError otherwise.
    """
    rest = sorted(set(device_ids), key=device_order)
    if len(rest) != placement.slices:
        raise StateError(f"{placement.slices} slices were placed for {len(rest)} devices")
    unit = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
    own: dict[str, list[str]] = {}
    for share in placement.shares:
        named = [device_id for device_id in rest if device_id.startswith(share.gpu + "/")][: share.slices]
        own[share.gpu] = named
        taken = frozenset(named)
        rest = [device_id for device_id in rest if device_id not in taken]
    holds = []
    for share in placement.shares:
        missing = share.slices - len(own[share.gpu])
        served, rest = [*own[share.gpu], *rest[:missing]], rest[missing:]
        holds.append(Hold(share.gpu, unit[share.gpu], tuple(served)))
    return tuple(holds)


def device_order(device_id: str) -> tuple[str, int, str]:
    """The place of a device ID among others: the GPU that it is named after first, then its number."""
    try:
        parsed = parse_device_id(device_id)
    except DeviceIdError:
        return device_id, 0, device_id
    return parsed.uuid, parsed.number, device_id
