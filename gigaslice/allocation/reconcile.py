"""What the allocation table should hold, given what the kubelet lists, which processes live and which directories
exist.

The kubelet has no deallocate call, and an Allocate does not name its pod, so both are learned from the kubelet's list
of containers. Every rule leans to keeping: a directory that a container may still start from is never given up, and
slices that cannot be explained count as taken. Decisions only: facts in, repairs out; `agent.persistence.store`
carries them out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gigaslice.allocation.lifetime import (
    Evidence,
    Listed,
    PodListing,
    Standing,
    claims,
    is_bare,
    standings,
)
from gigaslice.allocation.pod_peak import with_peaks
from gigaslice.allocation.table import (
    Allocation,
    AllocationOptions,
    AllocationTable,
    ContainerRef,
    Hold,
    assign_device_ids,
    whole_gpu,
    whole_gpu_device_id,
)
from gigaslice.errors import DeviceIdError
from gigaslice.model import Gpu, Placement, Share, parse_device_id

__all__ = [
    "Answered",
    "Listed",
    "PodListing",
    "Recovery",
    "Review",
    "from_answer",
    "rebuilt",
    "recover",
    "review",
]


@dataclass(frozen=True, slots=True)
class Answered:
    """An Allocate of ours that was answered, as the kubelet keeps it. pod: its UID. container: its name.

    device IDs: as the allocation table has them. allocation: the id that it was given. directory: the host's directory
    whose files are mounted, empty where none are. gpus: the GPUs that were named to the runtime. assigned: slices of
    each that the pod was assigned; empty where it was not.
    """

    pod: str
    container: str
    device_ids: frozenset[str]
    allocation: str
    directory: str
    gpus: tuple[str, ...]
    assigned: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class Recovery:
    """The allocation table after a start. adopted: allocations that only a directory knew; strays: directories that say
    nothing.
    """

    table: AllocationTable
    adopted: tuple[Allocation, ...] = ()
    strays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Review:
    """What one pass over the kubelet's list changes.

    table: the allocation table as it should be, released allocations left out. learned: allocations whose container
    became known or changed. released: allocations to give up with their directories. adopted: containers that no
    record was of. forgotten: allocations whose containers live, and are listed without the devices that they have.
    unlisted: for each id, how many passes in a row have left it in doubt; an argument of the next pass.
    """

    table: AllocationTable
    learned: tuple[Allocation, ...] = ()
    released: tuple[Allocation, ...] = ()
    adopted: tuple[Allocation, ...] = ()
    forgotten: tuple[Allocation, ...] = ()
    unlisted: Mapping[str, int] = field(default_factory=dict)


def recover(table: AllocationTable, directories: Mapping[str, Allocation | None]) -> Recovery:
    """Adds to TABLE the allocations that only DIRECTORIES know: all of them after a lost checkpoint, else at most the
    last.

    An allocation that both know has the limits of the record that has seen more changes; the checkpoint may be an old
    one. Of two allocations with the same device ID the one with the larger number has it, as it was when both were
    made; the other counts until something shows that its pod has ended.
    """
    table = table.replaced(
        replace(allocation, policy=later.policy, limits=later.limits, resizes=later.resizes)
        for allocation in table.allocations
        if (later := directories.get(allocation.id)) and later.resizes > allocation.resizes
    )
    unknown = {name: allocation for name, allocation in directories.items() if table.find(name) is None}
    adopted = sorted(
        (allocation for allocation in unknown.values() if allocation),
        key=lambda allocation: allocation.number,
    )
    for orphan in adopted:
        older, superseded = table.taken_over(orphan.held, before=orphan.number)
        newer = frozenset(
            device_id
            for other in table.allocations
            if other.number > orphan.number
            for device_id in other.device_ids & orphan.device_ids
        )
        supersedes = orphan.supersedes or superseded
        table = older.with_allocation(replace(orphan, lent=orphan.lent | newer, supersedes=supersedes))
    table = with_peaks(table)  # directories do not say it, and neither do records of older agents
    strays = tuple(sorted(name for name, allocation in unknown.items() if allocation is None))
    return Recovery(table, tuple(allocation for one in adopted if (allocation := table.find(one.id))), strays)


def review(
    table: AllocationTable,
    evidence: Evidence,
    *,
    young: frozenset[str],
    asked_at: int,
    unlisted: Mapping[str, int],
    patience: int,
    gpus: Sequence[Gpu],
    library: str,
    now: float,
    answers: Iterable[Answered] = (),
) -> Review:
    """Compares TABLE with one answer of the kubelet and with what else is known of its pods.

    young: those of its pods that have not been there for long: a new allocation is for one of them. asked_at: the
    allocation table's next number when the question was sent; younger allocations are left for the next pass. patience:
    passes in a row that leave a container in doubt until its allocation is given up. gpus, library, now: for containers
    that hold devices without a record (state directory lost). answers: what the kubelet was once answered, which says
    where their files have to be; without that they count where their device IDs' names say.
    """
    listing = evidence.listing or PodListing(settled=False)
    table, learned, unrecorded = _learn(table, listing, asked_at, evidence.kept)
    table = _suspect(table, asked_at, young)
    made_up = [one for one in (rebuilt(one, answers, gpus, library, now) for one in unrecorded) if one]
    found = standings(table, evidence, asked_at)
    table, forgotten = _forget(table, listing, found)
    unseen = standings(table, replace(evidence, running=frozenset()), asked_at) if evidence.running else found
    missing = _count_doubts(table, listing, unseen, unlisted)
    table = table.counted_out(_left_over(table, evidence, unseen, missing, patience))
    released = _to_release(table, evidence.running, found, missing, patience)
    dropped = frozenset(allocation.id for allocation in released)
    unnamed = {allocation.id for allocation in table.allocations if allocation.ref is None}
    # Processes outlive their pod: given up as soon as those are dead.
    attached = (_lenders(table, dropped) & unnamed) - dropped
    ended = table.replaced(
        replace(allocation, forgotten=True, suspects=())
        for allocation in table.allocations
        if allocation.id in attached
    )
    kept = ended.without(dropped)
    for number, allocation in enumerate(made_up, start=kept.next_number):
        if kept.find(allocation.id) is None:
            twice = kept.counted_elsewhere(allocation)
            kept = kept.with_allocation(replace(allocation, number=number, forgotten=twice))
    adopted = tuple(allocation for allocation in kept.allocations if allocation.number >= table.next_number)
    return Review(
        table=kept,
        learned=tuple(allocation for allocation in learned if allocation.id not in dropped),
        released=released,
        adopted=adopted,
        forgotten=forgotten,
        unlisted={
            allocation_id: count for allocation_id, count in missing.items() if allocation_id not in dropped
        },
    )


def _learn(
    table: AllocationTable, listing: PodListing, asked_at: int, kept: frozenset[str] | None
) -> tuple[AllocationTable, tuple[Allocation, ...], tuple[Listed, ...]]:
    learned: list[Allocation] = []
    found = claims(table, listing, kept)
    for one, claimed in found.own.items():
        allocation = table.find(claimed.id) or claimed
        if allocation.number >= asked_at:
            continue
        named = replace(allocation, container=one.container)
        if allocation.device_ids == one.device_ids:
            named = _listed(table, named)
        if named != allocation:
            learned.append(named)
            table = table.replaced([named])
    for allocation in table.allocations:
        if allocation.id in found.shared and allocation.number < asked_at:
            table = table.replaced([_listed(table, allocation)])
    return table, tuple(learned), found.unrecorded


def _listed(table: AllocationTable, allocation: Allocation) -> Allocation:
    """ALLOCATION, whose container the kubelet lists with its devices: it lives and has lent none of them,
    since the kubelet does not list plain init containers. Where another allocation has some of the devices, too, the
    kubelet has lost count of them.
    """
    if not (allocation.gone or allocation.forgotten or allocation.lent):
        return allocation
    return replace(allocation, gone=False, lent=frozenset(), forgotten=table.counted_elsewhere(allocation))


def _suspect(table: AllocationTable, asked_at: int, young: frozenset[str]) -> AllocationTable:
    """Notes for each allocation that is new and still without a container which pods it can be for."""
    return table.replaced(
        replace(allocation, suspects=tuple(sorted(young)))
        for allocation in table.allocations
        if allocation.number < asked_at and allocation.container is None and allocation.suspects is None
    )


def _forget(
    table: AllocationTable, listing: PodListing, found: Mapping[str, Standing]
) -> tuple[AllocationTable, tuple[Allocation, ...]]:
    """Notes whose devices the kubelet does not know any more, though it lists the container itself."""
    changed = tuple(
        replace(allocation, forgotten=True)
        for allocation in table.allocations
        if not allocation.gone
        and listing.settled
        and found[allocation.id] is Standing.ALIVE
        and is_bare(allocation, listing)
    )
    return table.replaced(one for one in changed if one != table.find(one.id)), changed


def _count_doubts(
    table: AllocationTable, listing: PodListing, found: Mapping[str, Standing], before: Mapping[str, int]
) -> dict[str, int]:
    """How many passes in a row have left an allocation in doubt, processes apart: it ends soon after these.

    A pass that means nothing neither counts nor clears.
    """
    return {
        allocation.id: before.get(allocation.id, 0) + listing.settled
        for allocation in table.allocations
        if found[allocation.id] is not Standing.ALIVE
    }


def _left_over(
    table: AllocationTable,
    evidence: Evidence,
    unseen: Mapping[str, Standing],
    missing: Mapping[str, int],
    patience: int,
) -> frozenset[str]:
    """Allocations of which only processes with slots are left: their pods are over by all that is known apart from
    those (UNSEEN). What these hold counts, and no longer what was promised. A container that runs and has used no GPU
    yet may still take all that it was promised; so may one that is listed without its devices.
    """
    listing = evidence.listing or PodListing(settled=False)
    return frozenset(
        allocation.id
        for allocation in table.allocations
        if allocation.id in evidence.attached
        and allocation.ref is not None
        and not is_bare(allocation, listing)
        and _is_over(allocation.id, unseen, missing, patience)
    )


def _is_over(key: str, found: Mapping[str, Standing], missing: Mapping[str, int], patience: int) -> bool:
    return found[key] is Standing.OVER or (
        found[key] is Standing.DOUBTFUL and missing.get(key, 0) >= patience
    )


def _to_release(
    table: AllocationTable,
    running: frozenset[str],
    found: Mapping[str, Standing],
    missing: Mapping[str, int],
    patience: int,
) -> tuple[Allocation, ...]:
    """Allocations whose pod is over, or in doubt for long enough.

    An allocation that was never listed may be a plain init container, which the kubelet never lists. It ends with the
    pods that it can be for, or with a later container that took device IDs over from it.
    """
    over = {
        allocation.id for allocation in table.allocations if _is_over(allocation.id, found, missing, patience)
    }
    named = {one.id for one in table.allocations if one.ref is not None and found[one.id] is Standing.ALIVE}
    lenders = _lenders(table, over) - running - named
    return tuple(
        allocation for allocation in table.allocations if allocation.id in over or allocation.id in lenders
    )


def _lenders(table: AllocationTable, over: Iterable[str]) -> frozenset[str]:
    """The allocations without a container from which those of OVER took device IDs: their pods are over too."""
    ended = frozenset(over)
    ids = {old for allocation in table.allocations if allocation.id in ended for old in allocation.supersedes}
    return frozenset(
        allocation.id
        for allocation in table.allocations
        if allocation.id in ids and allocation.container is None
    )


def rebuilt(
    one: Listed, answers: Iterable[Answered], gpus: Sequence[Gpu], library: str, now: float
) -> Allocation | None:
    """A record for a container that holds devices without one.

    With the answer that the kubelet has kept it gets its old id, and so its old directory, and its old GPUs. Without
    it, the device IDs' names are the only evidence of the GPUs, and its files are not those that the container mounts.
    """
    for answer in answers:
        if answer.device_ids == one.device_ids and answer.container == one.container.container:
            return from_answer(answer, one.container, gpus, library, now) or _foreign(one, gpus, library, now)
    return _foreign(one, gpus, library, now)


def from_answer(
    answer: Answered, container: ContainerRef | None, gpus: Sequence[Gpu], library: str, now: float
) -> Allocation | None:
    """The allocation that the kubelet was given ANSWER for; None where that does not say which GPU has how much."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    if not answer.gpus or not by_uuid.keys() >= set(answer.gpus):
        return None
    whole = [device_id for device_id in answer.device_ids if whole_gpu(device_id)]
    if whole:
        if len(whole) != len(answer.gpus) or len(whole) != len(answer.device_ids):
            return None
        named = [whole_gpu_device_id(gpu) for gpu in answer.gpus if whole_gpu_device_id(gpu) in whole]
        others = sorted(set(whole) - set(named))
        holds = tuple(
            Hold(
                gpu,
                by_uuid[gpu].bytes_of(by_uuid[gpu].slices),
                (whole_gpu_device_id(gpu) if whole_gpu_device_id(gpu) in named else others.pop(0),),
            )
            for gpu in answer.gpus
        )
    elif {one.gpu for one in answer.assigned} == set(answer.gpus) and sum(
        one.slices for one in answer.assigned
    ) == len(answer.device_ids):
        holds = assign_device_ids(answer.device_ids, Placement(answer.assigned), gpus)
    else:
        by_gpu: dict[str, list[str]] = {}
        for device_id in sorted(answer.device_ids):
            by_gpu.setdefault(_named_gpu(device_id), []).append(device_id)
        if len(answer.gpus) == 1:
            by_gpu = {answer.gpus[0]: sorted(answer.device_ids)}
        if set(by_gpu) != set(answer.gpus):
            return (
                None  # the device IDs are served from other GPUs than their names say: how many from which?
            )
        holds = tuple(Hold(gpu, by_uuid[gpu].slice_bytes, tuple(by_gpu[gpu])) for gpu in answer.gpus)
    policy = AllocationOptions(exclusive=bool(whole))
    return Allocation(
        answer.allocation, 1, now, holds, library, container=container, policy=policy, undecided=not whole
    )


def _foreign(one: Listed, gpus: Sequence[Gpu], library: str, now: float) -> Allocation | None:
    """A record for a container that holds devices without one: its device IDs' names are the only evidence of its
    GPUs.
    """
    unit = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
    size = {gpu.uuid: gpu.bytes_of(gpu.slices) for gpu in gpus}
    whole = [
        (uuid, device_id) for device_id in sorted(one.device_ids) if (uuid := whole_gpu(device_id)) in size
    ]
    by_gpu: dict[str, list[str]] = {}
    for device_id in sorted(one.device_ids):
        uuid = _named_gpu(device_id)
        if uuid in unit:
            by_gpu.setdefault(uuid, []).append(device_id)
    if not by_gpu and not whole:
        return None
    holds = tuple(Hold(uuid, unit[uuid], tuple(device_ids)) for uuid, device_ids in by_gpu.items())
    holds += tuple(Hold(uuid, size[uuid], (device_id,)) for uuid, device_id in whole)
    identity = hashlib.sha256("\n".join([str(one.container), *sorted(one.device_ids)]).encode()).hexdigest()[
        :32
    ]
    policy = AllocationOptions(exclusive=bool(whole))
    foreign = not whole  # whole GPUs have no files in their containers
    return Allocation(
        identity, 1, now, holds, library, container=one.container, policy=policy, foreign=foreign
    )


def _named_gpu(device_id: str) -> str:
    try:
        return parse_device_id(device_id).uuid
    except DeviceIdError:
        return ""
