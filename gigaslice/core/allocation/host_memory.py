# SPDX-License-Identifier: Apache-2.0
"""What lent host memory changes in the allocation table's arithmetic. Pure.

A GPU with lent memory has more slices than fit it. Containers that may use host memory count on all of them, but only
their physical share is real memory, which never leaves the GPU; the others count on the GPU's own memory alone. So
there are two views of a GPU, and a container is placed in its own: a container without the option is never placed
beyond the GPU's own memory, and all together never beyond that and the lent memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gigaslice.core.allocation.table import Allocation, AllocationTable, Hold
from gigaslice.core.model import Gpu, Occupant, Share

__all__ = [
    "REAL",
    "host_need",
    "host_promised",
    "least_physical",
    "others_bytes",
    "own_view",
    "physical_share",
    "real_part",
    "split",
    "view",
]

MIB, GIB = 1 << 20, 1 << 30
REAL = "(GPU's own memory)"
"""Name of what stands for memory that the other view of a GPU has given away; no container has such a name."""


def own_view(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs with the slices of their own memory alone."""
    return tuple(replace(gpu, slices=gpu.own_slices, host_bytes=0) if gpu.host_bytes else gpu for gpu in gpus)


def real_part(allocation: Allocation, gpu: str, count: int) -> int:
    """Of COUNT bytes that ALLOCATION has of a GPU, those that must be in the GPU's own memory."""
    physical = allocation.physical.get(gpu, 0)
    return min(count, physical) if physical else count


def least_physical(memory_bytes: int) -> int:
    """The least of a quota that must be real: contexts, code and what frameworks take by handle cannot move."""
    return min(memory_bytes, max(memory_bytes // 8, GIB))


def physical_share(memory_bytes: int, own: int, host: int) -> int:
    """Bytes of a quota that are real memory on a GPU with OWN bytes and HOST bytes lent.

    Chosen so that on a fully used GPU the real memory of all and the rest of one container fit together: then each can
    have all its pages on the GPU in its time slice. With p the part that is real, p x (own + host) is the real memory
    of all and (1 - p) x memory the rest of one.
    """
    if memory_bytes >= own + host:
        return max(least_physical(memory_bytes), 0)
    exact = memory_bytes * max(0, own - memory_bytes) // (own + host - memory_bytes)
    rounded = exact // MIB * MIB
    return max(least_physical(memory_bytes), min(memory_bytes, rounded))


def view(
    table: AllocationTable, gpus: Sequence[Gpu], pod: str, *, host: bool, memory_bytes: int
) -> tuple[tuple[Gpu, ...], tuple[Occupant, ...]]:
    """The GPUs and what counts on them, as a container sees them that may use host memory (HOST) or not.

    memory_bytes: what it asks for in all.
    """
    if not any(gpu.host_bytes for gpu in gpus):
        return tuple(gpus), table.occupants(gpus, pod)
    visible = tuple(gpus) if host else own_view(gpus)
    counted = table.occupants(visible, pod)
    physical = {allocation.id: allocation.physical for allocation in table.allocations}
    more = []
    for gpu in gpus:
        if not gpu.host_bytes:
            continue
        held = [
            (occupant.name, share.slices)
            for occupant in counted
            for share in occupant.shares
            if share.gpu == gpu.uuid
        ]
        taken = sum(slices for _, slices in held)
        real = sum(_real_slices(gpu, slices, physical.get(name, {})) for name, slices in held)
        if host:
            room = gpu.own_slices * gpu.slice_bytes - _real_bytes(table, gpu)
            missing = gpu.slices - taken if room < least_physical(memory_bytes) else 0
        else:
            counted = tuple(_as_real(occupant, gpu, physical.get(occupant.name, {})) for occupant in counted)
            missing = max(0, taken - (gpu.slices - gpu.own_slices) - real)
        if missing > 0:
            more.append(Occupant(f"{REAL} {gpu.uuid}", (Share(gpu.uuid, missing),)))
    return visible, (*counted, *more)


def split(table: AllocationTable, allocation: Allocation, gpus: Sequence[Gpu]) -> Allocation:
    """ALLOCATION with its physical share of each GPU that has lent memory, where it may use that."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus if gpu.host_bytes}
    if not by_uuid and not any(hold.physical_bytes for hold in allocation.holds):
        return allocation
    holds = []
    for hold in allocation.holds:
        gpu, share = by_uuid.get(hold.gpu), 0
        if allocation.policy.oversubscribe and gpu is not None:
            share = _share_of(table, allocation, hold, gpu)
        holds.append(replace(hold, physical_bytes=0 if share >= hold.memory_bytes else share))
    return replace(allocation, holds=tuple(holds))


def others_bytes(allocation: Allocation, gpu: Gpu, everything: int, real: int) -> int:
    """Bytes of a GPU that count as taken for ALLOCATION, in its own view: EVERYTHING others have there, REAL what of it
    is real memory.
    """
    if not gpu.host_bytes or allocation.policy.exclusive or allocation.whole:
        return everything
    own, lent = gpu.bytes_of(gpu.own_slices), gpu.bytes_of(gpu.slices - gpu.own_slices)
    if not allocation.physical.get(gpu.uuid):
        return max(real, everything - lent)
    lacking = allocation.physical[gpu.uuid] + real - own
    if lacking <= 0:
        return everything
    return max(everything, gpu.bytes_of(gpu.slices) - allocation.quota().get(gpu.uuid, 0) + lacking)


def host_promised(table: AllocationTable, gpus: Sequence[Gpu]) -> dict[str, int]:
    """For each GPU with lent memory the bytes by which the promises of all containers in TABLE go beyond its own: what
    may have to lie on the host when all of them use what they have. Never more than the GPU was lent, for containers
    that the start decision has let start.
    """
    return {
        gpu.uuid: max(
            0,
            sum(allocation.promised.get(gpu.uuid, 0) for allocation in table.allocations)
            - gpu.bytes_of(gpu.own_slices),
        )
        for gpu in gpus
        if gpu.host_bytes
    }


def host_need(
    table: AllocationTable, allocation: Allocation, used: Mapping[str, Mapping[str, int]], gpus: Sequence[Gpu]
) -> int:
    """Bytes of host memory that have to be left so that ALLOCATION may start, or have this quota: as much as all
    promises go beyond the GPUs' own memory, less what of that is in use and so taken from the host already. The memory
    that others were promised counts, too, since it is their pages that may have to make room. 0 where ALLOCATION has no
    part in lent memory.

    used: bytes that living processes have, by allocation and GPU. Containers that came later and wait themselves are
    not counted: the first that may start has the memory.
    """
    if not any(gpu.host_bytes and gpu.uuid in allocation.promised for gpu in gpus):
        return 0
    behind = [other.id for other in table.allocations if other.waiting and other.number > allocation.number]
    need = 0
    for gpu, beyond in host_promised(table.replaced([allocation]).without(behind), gpus).items():
        own = next(device.bytes_of(device.own_slices) for device in gpus if device.uuid == gpu)
        there = sum(present.get(gpu, 0) for present in used.values()) - own
        need += max(0, beyond - max(0, there))
    return need


def _share_of(table: AllocationTable, allocation: Allocation, hold: Hold, gpu: Gpu) -> int:
    own = gpu.bytes_of(gpu.own_slices)
    room = own - _real_bytes(table.without([allocation.id]), gpu)
    share = physical_share(hold.memory_bytes, own, gpu.bytes_of(gpu.slices - gpu.own_slices))
    return max(least_physical(hold.memory_bytes), min(share, room // MIB * MIB))


def _real_bytes(table: AllocationTable, gpu: Gpu) -> int:
    return sum(
        real_part(allocation, gpu.uuid, allocation.promised[gpu.uuid])
        for allocation in table.allocations
        if gpu.uuid in allocation.promised
    )


def _real_slices(gpu: Gpu, slices: int, physical: Mapping[str, int]) -> int:
    own = physical.get(gpu.uuid, 0)
    return min(slices, -(-own // gpu.slice_bytes)) if own else slices


def _as_real(occupant: Occupant, gpu: Gpu, physical: Mapping[str, int]) -> Occupant:
    if not physical.get(gpu.uuid):
        return occupant
    shares = tuple(
        replace(share, slices=_real_slices(gpu, share.slices, physical)) if share.gpu == gpu.uuid else share
        for share in occupant.shares
    )
    return replace(occupant, shares=shares)
