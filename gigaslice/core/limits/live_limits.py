# SPDX-License-Identifier: Apache-2.0
"""Limits of running containers: what each may use now, whether a change fits, and what the kubelet must not give out.

The allocation table has what a container was promised. What its limits page says follows from the table and from
which containers are alone on a GPU. Pure: the table, the GPUs and the ledgers' numbers in, decisions out, so that the
next agent decides the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gigaslice.core import units
from gigaslice.core.allocation.host_memory import others_bytes, real_part
from gigaslice.core.allocation.table import Allocation, AllocationTable, LiveLimit
from gigaslice.core.model import CORES_PER_GPU, Gpu

__all__ = [
    "MIB",
    "ResizeRefusal",
    "limit_slices",
    "limits_now",
    "physical_now",
    "resized",
    "rounded",
    "with_limits",
]

MIB = 1 << 20
Present = Mapping[str, Mapping[str, int]]
"""Bytes that living processes hold, by allocation and GPU."""


@dataclass(frozen=True, slots=True)
class ResizeRefusal:
    """Why a change cannot be made, for a person. mistake: it never can, as it was asked."""

    detail: str
    mistake: bool = False


def rounded(memory_bytes: int) -> int:
    """Whole MiB, upwards."""
    return -(-memory_bytes // MIB) * MIB


def limits_now(
    table: AllocationTable, gpus: Sequence[Gpu], present: Present
) -> dict[str, dict[str, tuple[int, int]]]:
    """What every limits page should say: bytes and per cent of compute (0: all of it), by allocation and GPU.

    An elastic container that is alone on a GPU may use the GPU, or as much of it as it named. Alone: no other
    container was promised any of it, not even one whose start waits, and no living process of another container holds
    any of it.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    holders: dict[str, set[str]] = {}
    for allocation in table.allocations:
        present_here = (gpu for gpu, count in present.get(allocation.id, {}).items() if count)
        for gpu in {*allocation.promised, *present_here}:
            holders.setdefault(gpu, set()).add(allocation.id)
    return {
        allocation.id: {
            gpu: _limit_now(allocation, by_uuid[gpu], quota, alone=holders.get(gpu) == {allocation.id})
            if gpu in by_uuid
            else (quota, allocation.cores_of(gpu))
            for gpu, quota in allocation.quota().items()
        }
        for allocation in table.allocations
    }


def limit_slices(
    requested: int, gpu_slices: int, *, alone: bool, elastic: bool, max_slices: int | None = None
) -> int:
    """Slices that a container may use of one GPU: its request, or up to the GPU while it is elastic and alone on it.

    Placement and admission count the request only, so what an elastic container uses beyond it keeps no other out.
    """
    if not (elastic and alone):
        return requested
    return max(requested, min(gpu_slices if max_slices is None else max_slices, gpu_slices))


def _limit_now(allocation: Allocation, gpu: Gpu, quota: int, *, alone: bool) -> tuple[int, int]:
    elastic = (
        allocation.policy.elastic
        and alone
        and not (allocation.ended or allocation.waiting or allocation.origin.undecided)
    )
    if not elastic:
        return quota, allocation.cores_of(gpu.uuid)
    whole = gpu.slices if allocation.physical.get(gpu.uuid) else gpu.own_slices
    most = limit_slices(
        quota // gpu.slice_bytes, whole, alone=True, elastic=True, max_slices=allocation.policy.max_slices
    )
    return max(quota, gpu.bytes_of(most)), 0


def physical_now(allocation: Allocation, gpus: Sequence[Gpu], limits: Mapping[str, int]) -> dict[str, int]:
    """How much of each GPU's LIMITS may be the GPU's own memory: what an elastic container has beyond its quota is
    the GPU's own too, as far as that goes, since no other container uses it.
    """
    own = {gpu.uuid: gpu.bytes_of(gpu.own_slices) for gpu in gpus}
    quota = allocation.quota()
    return {
        gpu: max(1, min(count + max(0, limits.get(gpu, 0) - quota[gpu]), own.get(gpu, count)))
        for gpu, count in allocation.physical.items()
    }


def resized(
    table: AllocationTable,
    allocation: Allocation,
    gpus: Sequence[Gpu],
    present: Present,
    *,
    memory: Mapping[str, int] | None = None,
    cores: Mapping[str, int] | None = None,
) -> Allocation | ResizeRefusal:
    """ALLOCATION with the MEMORY in bytes and CORES in per cent that are given for some of its GPUs, or why not.

    Shrinking always works. Growing needs room beside what the others on the GPU were promised, or hold where that is
    more: all by_uuid or none.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    sizes = {gpu: rounded(count) for gpu, count in (memory or {}).items()}
    shares = dict(cores or {})
    for gpu in {**sizes, **shares}:
        refusal = _refusal(
            table, allocation, by_uuid.get(gpu), gpu, present, size=sizes.get(gpu), share=shares.get(gpu)
        )
        if refusal is not None:
            return refusal
    return with_limits(allocation, sizes, shares)


def with_limits(allocation: Allocation, memory: Mapping[str, int], cores: Mapping[str, int]) -> Allocation:
    """ALLOCATION with these limits, unasked; the same allocation where it has them already."""
    limit_by_gpu = {limit.gpu: limit for limit in allocation.limits}
    limits = []
    for hold in allocation.holds:
        limit = limit_by_gpu.get(hold.gpu, LiveLimit(hold.gpu))
        if hold.gpu in memory:
            size = memory[hold.gpu]
            limit = replace(limit, memory_bytes=None if size == hold.memory_bytes else size)
        if hold.gpu in cores:
            share = cores[hold.gpu]
            given = allocation.given_cores.get(hold.gpu, allocation.policy.cores)
            limit = replace(limit, cores=None if share == given else share)
        if limit.memory_bytes is not None or limit.cores is not None:
            limits.append(limit)
    if tuple(limits) == allocation.limits:
        return allocation
    return replace(allocation, limits=tuple(limits), resizes=allocation.resizes + 1)


def _refusal(
    table: AllocationTable,
    allocation: Allocation,
    device: Gpu | None,
    gpu: str,
    present: Present,
    *,
    size: int | None,
    share: int | None,
) -> ResizeRefusal | None:
    quota = allocation.quota()
    if gpu not in quota:
        return ResizeRefusal(
            f"{allocation.name} has no slices of {gpu}; it has some of {', '.join(quota)}", mistake=True
        )
    if size is not None and size < MIB:
        return ResizeRefusal("less than 1 MiB is no limit; delete the pod to take all away", mistake=True)
    if share is not None and not 0 <= share <= CORES_PER_GPU:
        return ResizeRefusal(
            f"{share} is no share of a GPU's compute; say 0 to {CORES_PER_GPU}", mistake=True
        )
    others = [other for other in table.allocations if other.id != allocation.id]
    if size is not None and size > quota[gpu]:
        if device is None:
            return ResizeRefusal(f"{gpu} is no longer on this node, so its share cannot grow")
        shared_out = allocation.physical.get(gpu, 0) > 0
        whole = device.bytes_of(device.slices if shared_out else device.own_slices)
        if size > whole:
            return ResizeRefusal(f"{gpu} has {units.format_bytes(whole)} in all", mistake=True)
        held = {
            other.id: max(other.promised.get(gpu, 0), present.get(other.id, {}).get(gpu, 0))
            for other in others
        }
        real = sum(real_part(other, gpu, held[other.id]) for other in others)
        taken = others_bytes(allocation, device, sum(held.values()), real)
        if taken + size > whole:
            free = max(0, whole - taken - quota[gpu])
            return ResizeRefusal(
                f"{units.format_bytes(size - quota[gpu])} more of {gpu} asked for, and {units.format_bytes(free)} are "
                f"free: {units.format_bytes(whole)} in all, {allocation.name} has {units.format_bytes(quota[gpu])}"
                + "".join(
                    f", {_holder(other, gpu, present)}" for other in others if _holder(other, gpu, present)
                )
            )
    if share is not None and share > allocation.cores_of(gpu):
        given = sum(other.cores_of(gpu) for other in others if gpu in other.promised)
        if given + share > CORES_PER_GPU:
            return ResizeRefusal(
                f"{CORES_PER_GPU - given}% of the compute of {gpu} are free, {share}% asked for"
            )
    return None


def _holder(allocation: Allocation, gpu: str, present: Present) -> str:
    promised, used = allocation.promised.get(gpu, 0), present.get(allocation.id, {}).get(gpu, 0)
    if not promised and not used:
        return ""
    more = f" and uses {units.format_bytes(used)}" if used > promised else ""
    return f"{allocation.name} has {units.format_bytes(promised)}{more}"
