# SPDX-License-Identifier: Apache-2.0
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

from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import (
    Allocation,
    AllocationOptions,
    AllocationTable,
    Hold,
    holds_of,
    whole_hold,
)
from gigaslice.core.deviceplugin.device_id import gpu_name, whole_gpu, whole_gpu_device_id
from gigaslice.core.deviceplugin.handing_out import counted_elsewhere, with_handed_out
from gigaslice.core.deviceplugin.lifetime import (
    Evidence,
    Listed,
    Liveness,
    PodListing,
    allocations_of_listed,
    is_bare,
    liveness,
)
from gigaslice.core.deviceplugin.origin import (
    DevicePluginOrigin,
    GpuTokens,
    assign_device_ids,
    container_ref,
    held,
    plugin,
    plugin_part,
    with_origin,
)
from gigaslice.core.deviceplugin.pod_peak import with_peaks
from gigaslice.core.model import Gpu, Placement, Share

__all__ = [
    "KeptAllocateResponse",
    "Listed",
    "PodListing",
    "Review",
    "from_response",
    "rebuilt",
    "reconciled",
    "review",
]


@dataclass(frozen=True, slots=True)
class KeptAllocateResponse:
    """An Allocate of ours that was answered, as the kubelet keeps it.

    Attributes:
        pod: The pod's UID.
        container: The container's name.
        device_ids: As the allocation table has them.
        allocation: The id that it was given.
        directory: The host's directory whose files are mounted, empty where none are.
        gpus: The GPUs that were named to the runtime.
        assigned: Slices of each that the pod was assigned; empty where it was not.
    """

    pod: str
    container: str
    device_ids: frozenset[str]
    allocation: str
    directory: str
    gpus: tuple[str, ...]
    assigned: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class Review:
    """What one pass over the kubelet's list changes.

    Attributes:
        table: The allocation table as it should be, released allocations left out.
        learned: Allocations whose container became known or changed.
        released: Allocations to give up with their directories.
        adopted: Containers that no record was of.
        forgotten: Allocations whose containers live, and are listed without the devices that they have.
        unlisted: For each id, how many passes in a row have left it in doubt; an argument of the next pass.
    """

    table: AllocationTable
    learned: tuple[Allocation, ...] = ()
    released: tuple[Allocation, ...] = ()
    adopted: tuple[Allocation, ...] = ()
    forgotten: tuple[Allocation, ...] = ()
    unlisted: Mapping[str, int] = field(default_factory=dict)


def reconciled(table: AllocationTable, orphans: Iterable[Allocation]) -> AllocationTable:
    """Adds ORPHANS to TABLE, allocations that only directories know: all of them after a lost checkpoint, else at most
    the last.

    Of two allocations with the same device ID the one with the larger number has it, as it was when both were made;
    the other counts until something shows that its pod has ended.
    """
    for orphan in orphans:
        older, superseded = with_handed_out(table, held(orphan), before=orphan.number)
        origin = plugin(orphan)
        newer = frozenset(
            device_id
            for other in table.allocations
            if other.number > orphan.number
            for device_id in plugin(other).device_ids & origin.device_ids
        )
        supersedes = origin.supersedes or superseded
        table = older.with_allocation(with_origin(orphan, lent=origin.lent | newer, supersedes=supersedes))
    return with_peaks(table)  # directories do not say it, and neither do records of older agents


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
    responses: Iterable[KeptAllocateResponse] = (),
) -> Review:
    """Compares the answers to Allocate in TABLE with one list of the kubelet and with what else is known of its pods.

    Args:
        table: The allocation table. Allocations of other origins stay as they are.
        evidence: The kubelet's list and the other sources.
        young: Those of its pods that have not been there for long: a new allocation is for one of them.
        asked_at: The allocation table's next number when the question was sent; younger allocations are left for the
            next pass.
        unlisted: The result's, of the pass before.
        patience: Passes in a row that leave a container in doubt until its allocation is given up.
        gpus: The node's GPUs; with `library` and `now` for containers that hold devices without a record, as after the
            loss of the state directory.
        library: The library's file name.
        now: Unix time in seconds.
        responses: What the kubelet was once answered, which says where their files have to be; without that they count
            where their device IDs' names say.
    """
    table, others = plugin_part(table)
    listing = evidence.listing or PodListing(settled=False)
    table, learned, unrecorded = _learn(table, listing, asked_at, evidence.answered)
    table = _suspect(table, asked_at, young)
    rebuilt_records = [
        allocation
        for allocation in (rebuilt(listed, responses, gpus, library, now) for listed in unrecorded)
        if allocation
    ]
    states = liveness(table, evidence, asked_at)
    table, forgotten = _forget(table, listing, states)
    without_processes = (
        liveness(table, replace(evidence, running=frozenset()), asked_at) if evidence.running else states
    )
    doubts = _count_doubts(table, listing, without_processes, unlisted)
    table = table.with_ended(_processes_alone(table, evidence, without_processes, doubts, patience))
    released = _to_release(table, evidence.running, states, doubts, patience)
    dropped = frozenset(allocation.id for allocation in released)
    unnamed = {allocation.id for allocation in table.allocations if container_ref(allocation) is None}
    # Processes outlive their pod: given up as soon as those are dead.
    attached = (_lenders(table, dropped) & unnamed) - dropped
    remaining = table.replaced(
        with_origin(allocation, forgotten=True, suspects=())
        for allocation in table.allocations
        if allocation.id in attached
    ).without(dropped)
    for number, allocation in enumerate(rebuilt_records, start=remaining.next_number):
        if remaining.find(allocation.id) is None:
            twice = counted_elsewhere(remaining, allocation)
            adopted_record = with_origin(replace(allocation, number=number), forgotten=twice)
            remaining = remaining.with_allocation(adopted_record)
    return Review(
        table=remaining.beside(others),
        learned=tuple(allocation for allocation in learned if allocation.id not in dropped),
        released=released,
        adopted=tuple(
            allocation for allocation in remaining.allocations if allocation.number >= table.next_number
        ),
        forgotten=forgotten,
        unlisted={
            allocation_id: count for allocation_id, count in doubts.items() if allocation_id not in dropped
        },
    )


def _learn(
    table: AllocationTable, listing: PodListing, asked_at: int, answered: frozenset[str] | None
) -> tuple[AllocationTable, tuple[Allocation, ...], tuple[Listed, ...]]:
    learned: list[Allocation] = []
    matched = allocations_of_listed(table, listing, answered)
    for listed, match in matched.own.items():
        allocation = table.find(match.id) or match
        if allocation.number >= asked_at:
            continue
        named = with_origin(allocation, container=listed.container)
        if plugin(allocation).device_ids == listed.device_ids:
            named = _listed(table, named)
        if named != allocation:
            learned.append(named)
            table = table.replaced([named])
    for allocation in table.allocations:
        if allocation.id in matched.shared and allocation.number < asked_at:
            table = table.replaced([_listed(table, allocation)])
    return table, tuple(learned), matched.unrecorded


def _listed(table: AllocationTable, allocation: Allocation) -> Allocation:
    """ALLOCATION, whose container the kubelet lists with its devices: it lives and has lent none of them,
    since the kubelet does not list plain init containers. Where another allocation has some of the devices, too, the
    kubelet has lost count of them.
    """
    origin = plugin(allocation)
    if not (allocation.ended or origin.forgotten or origin.lent):
        return allocation
    forgotten = counted_elsewhere(table, allocation)
    return with_origin(replace(allocation, ended=False), lent=frozenset(), forgotten=forgotten)


def _suspect(table: AllocationTable, asked_at: int, young: frozenset[str]) -> AllocationTable:
    """Notes for each allocation that is new and still without a container which pods it can be for."""
    return table.replaced(
        with_origin(allocation, suspects=tuple(sorted(young)))
        for allocation in table.allocations
        if allocation.number < asked_at
        and plugin(allocation).container is None
        and plugin(allocation).suspects is None
    )


def _forget(
    table: AllocationTable, listing: PodListing, states: Mapping[str, Liveness]
) -> tuple[AllocationTable, tuple[Allocation, ...]]:
    """Notes whose devices the kubelet does not know any more, though it lists the container itself."""
    changed = tuple(
        with_origin(allocation, forgotten=True)
        for allocation in table.allocations
        if not allocation.ended
        and listing.settled
        and states[allocation.id] is Liveness.ALIVE
        and is_bare(allocation, listing)
    )
    return table.replaced(
        allocation for allocation in changed if allocation != table.find(allocation.id)
    ), changed


def _count_doubts(
    table: AllocationTable, listing: PodListing, states: Mapping[str, Liveness], before: Mapping[str, int]
) -> dict[str, int]:
    """How many passes in a row have left an allocation in doubt, processes apart: it ends soon after these.

    A pass that means nothing neither counts nor clears.
    """
    return {
        allocation.id: before.get(allocation.id, 0) + listing.settled
        for allocation in table.allocations
        if states[allocation.id] is not Liveness.ALIVE
    }


def _processes_alone(
    table: AllocationTable,
    evidence: Evidence,
    without_processes: Mapping[str, Liveness],
    doubts: Mapping[str, int],
    patience: int,
) -> frozenset[str]:
    """Allocations of which only processes with slots are left: their pods are over by all that is known apart from
    those. What these hold counts, and no longer what was promised. A container that runs and has used no GPU yet may
    still take all that it was promised; so may one that is listed without its devices.
    """
    listing = evidence.listing or PodListing(settled=False)
    return frozenset(
        allocation.id
        for allocation in table.allocations
        if allocation.id in evidence.attached
        and container_ref(allocation) is not None
        and not is_bare(allocation, listing)
        and _has_expired(allocation.id, without_processes, doubts, patience)
    )


def _has_expired(key: str, states: Mapping[str, Liveness], doubts: Mapping[str, int], patience: int) -> bool:
    return states[key] is Liveness.EXPIRED or (
        states[key] is Liveness.DOUBTFUL and doubts.get(key, 0) >= patience
    )


def _to_release(
    table: AllocationTable,
    running: frozenset[str],
    states: Mapping[str, Liveness],
    doubts: Mapping[str, int],
    patience: int,
) -> tuple[Allocation, ...]:
    """Allocations whose pod is over, or in doubt for long enough.

    An allocation that was never listed may be a plain init container, which the kubelet never lists. It ends with the
    pods that it can be for, or with a later container that took device IDs over from it.
    """
    expired = {
        allocation.id
        for allocation in table.allocations
        if _has_expired(allocation.id, states, doubts, patience)
    }
    named = {
        allocation.id
        for allocation in table.allocations
        if container_ref(allocation) is not None and states[allocation.id] is Liveness.ALIVE
    }
    lenders = _lenders(table, expired) - running - named
    return tuple(
        allocation for allocation in table.allocations if allocation.id in expired or allocation.id in lenders
    )


def _lenders(table: AllocationTable, expired: Iterable[str]) -> frozenset[str]:
    """The allocations without a container from which those of EXPIRED took device IDs: their pods are over too."""
    ended = frozenset(expired)
    ids = {
        old
        for allocation in table.allocations
        if allocation.id in ended
        for old in plugin(allocation).supersedes
    }
    return frozenset(
        allocation.id
        for allocation in table.allocations
        if allocation.id in ids and plugin(allocation).container is None
    )


def rebuilt(
    listed: Listed, responses: Iterable[KeptAllocateResponse], gpus: Sequence[Gpu], library: str, now: float
) -> Allocation | None:
    """A record for a container that holds devices without one.

    With the answer that the kubelet has kept it gets its old id, and so its old directory, and its old GPUs. Without
    it, the device IDs' names are the only evidence of the GPUs, and its files are not those that the container mounts.
    """
    for response in responses:
        if response.device_ids == listed.device_ids and response.container == listed.container.container:
            allocation = from_response(response, listed.container, gpus, library, now)
            return allocation or _foreign(listed, gpus, library, now)
    return _foreign(listed, gpus, library, now)


def from_response(
    response: KeptAllocateResponse,
    container: ContainerRef | None,
    gpus: Sequence[Gpu],
    library: str,
    now: float,
) -> Allocation | None:
    """The allocation that the kubelet was given RESPONSE for; None where that does not say which GPU has how much."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    if not response.gpus or not by_uuid.keys() >= set(response.gpus):
        return None
    whole = any(whole_gpu(device_id) for device_id in response.device_ids)
    tokens = _whole_tokens(response) if whole else _slice_tokens(response)
    if tokens is None:
        return None
    policy = AllocationOptions(exclusive=whole)
    origin = DevicePluginOrigin(tokens, container=container, undecided=not whole)
    holds = _holds(tokens, gpus, whole=whole)
    return Allocation(response.allocation, 1, now, holds, library, origin, policy, whole=whole)


def _whole_tokens(response: KeptAllocateResponse) -> tuple[GpuTokens, ...] | None:
    """Which whole GPU each device ID of a response stands for: the one of its name, else one that is left."""
    whole = {device_id for device_id in response.device_ids if whole_gpu(device_id)}
    if len(whole) != len(response.gpus) or len(whole) != len(response.device_ids):
        return None
    own = {gpu: whole_gpu_device_id(gpu) for gpu in response.gpus if whole_gpu_device_id(gpu) in whole}
    others = sorted(whole - set(own.values()))
    return tuple(GpuTokens(gpu, (own[gpu] if gpu in own else others.pop(0),)) for gpu in response.gpus)


def _slice_tokens(response: KeptAllocateResponse) -> tuple[GpuTokens, ...] | None:
    """Which GPU each device ID of a response is served from; None where that cannot be told."""
    if {share.gpu for share in response.assigned} == set(response.gpus) and sum(
        share.slices for share in response.assigned
    ) == len(response.device_ids):
        return assign_device_ids(response.device_ids, Placement(response.assigned))
    if len(response.gpus) == 1:
        return (GpuTokens(response.gpus[0], tuple(sorted(response.device_ids))),)
    by_gpu = _by_named_gpu(response.device_ids)
    if set(by_gpu) != set(response.gpus):
        return None  # the device IDs are served from other GPUs than their names say: how many from which?
    return tuple(GpuTokens(gpu, tuple(by_gpu[gpu])) for gpu in response.gpus)


def _by_named_gpu(device_ids: Iterable[str]) -> dict[str, list[str]]:
    by_gpu: dict[str, list[str]] = {}
    for device_id in sorted(device_ids):
        by_gpu.setdefault(gpu_name(device_id), []).append(device_id)
    return by_gpu


def _holds(tokens: Iterable[GpuTokens], gpus: Sequence[Gpu], *, whole: bool) -> tuple[Hold, ...]:
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    if whole:
        return tuple(whole_hold(by_uuid[gpu_tokens.gpu]) for gpu_tokens in tokens)
    shares = tuple(Share(gpu_tokens.gpu, len(gpu_tokens.device_ids)) for gpu_tokens in tokens)
    return holds_of(Placement(shares), gpus)


def _foreign(listed: Listed, gpus: Sequence[Gpu], library: str, now: float) -> Allocation | None:
    """A record for a container that holds devices without one: its device IDs' names are the only evidence of its
    GPUs.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    slices = {
        gpu: device_ids for gpu, device_ids in _by_named_gpu(listed.device_ids).items() if gpu in by_uuid
    }
    whole = {
        gpu: device_id for device_id in sorted(listed.device_ids) if (gpu := whole_gpu(device_id)) in by_uuid
    }
    if not slices and not whole:
        return None
    sliced = tuple(GpuTokens(gpu, tuple(device_ids)) for gpu, device_ids in slices.items())
    whole_tokens = tuple(GpuTokens(gpu, (device_id,)) for gpu, device_id in whole.items())
    holds = _holds(sliced, gpus, whole=False) + _holds(whole_tokens, gpus, whole=True)
    identity = "\n".join([str(listed.container), *sorted(listed.device_ids)])
    origin = DevicePluginOrigin(
        sliced + whole_tokens,
        container=listed.container,
        foreign=not whole,  # whole GPUs have no files in their containers
    )
    return Allocation(
        hashlib.sha256(identity.encode()).hexdigest()[:32],
        1,
        now,
        holds,
        library,
        origin,
        AllocationOptions(exclusive=bool(whole)),
        whole=bool(whole),
    )
