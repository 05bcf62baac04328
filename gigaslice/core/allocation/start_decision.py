# SPDX-License-Identifier: Apache-2.0
"""The start decision: whether the GPUs of a container have room for all it was promised. Pure.

The kubelet frees devices by its own rules: after a forced deletion, or when it picks devices across GPUs at random, it
can admit a container before the container's memory is free. Refusing the allocation then would fail the pod for good.
So the container is allocated, and held back at its start, the one call that the kubelet repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gigaslice.core import units
from gigaslice.core.allocation.host_memory import others_bytes, own_view, real_part
from gigaslice.core.allocation.table import Allocation, AllocationTable, Hold
from gigaslice.core.errors import UnknownGpuError
from gigaslice.core.model import CORES_PER_GPU, NodeState, Share
from gigaslice.core.placement import Missing

__all__ = ["describe", "shortfall", "start_shortfall"]


def shortfall(
    table: AllocationTable, allocation: Allocation, node: NodeState, used: Mapping[str, Mapping[str, int]]
) -> tuple[Missing, ...]:
    """What is still missing before ALLOCATION may start; nothing means go.

    NODE gives the GPUs; its occupants do not count. used: bytes of the living processes of every allocation, by
    id and GPU. A neighbour counts with what it was promised, or with what it uses where that is more: one whose slices
    the kubelet has taken back was promised nothing, and its memory counts until its processes are dead. One that waits
    itself and came later counts with its use only. So do a pod's own containers where one of the two is an init
    container, which has ended before a later one starts. A GPU that a pod has for itself is promised to it altogether,
    and one that ALLOCATION's pod is to have for itself must be free of every other pod's containers, and hold its pod's
    own together: as long as it has not started yet, since one that has is where it is.
    """
    lacks = _shortfall_now(table, allocation, node, used)
    if not (allocation.policy.exclusive and allocation.waiting):
        return lacks
    beside = replace(allocation, policy=replace(allocation.policy, exclusive=False))
    strangers = [other.id for other in table.allocations if not _same_pod(allocation, other)]
    gpus = {lack.gpu for lack in lacks}
    within = _shortfall_now(table.without(strangers), beside, node, used)
    return lacks + tuple(lack for lack in within if lack.gpu not in gpus)


def _shortfall_now(
    table: AllocationTable, allocation: Allocation, node: NodeState, used: Mapping[str, Mapping[str, int]]
) -> tuple[Missing, ...]:
    others: dict[str, int] = {}
    real: dict[str, int] = {}
    cores: dict[str, int] = {}
    whole = {gpu.uuid: gpu.bytes_of(gpu.slices) for gpu in node.gpus}
    for other in table.allocations:
        if other.id == allocation.id:
            continue
        behind = (other.waiting and other.number > allocation.number) or (
            allocation.id in other.origin.supersedes and not allocation.ended
        )
        ours = _same_pod(allocation, other)
        if ours and allocation.policy.exclusive:
            continue
        apart = ours and _one_after_the_other(allocation, other)
        promised = {} if behind or apart else dict(other.promised)
        if other.policy.exclusive and not ours:
            promised = {gpu: max(count, whole.get(gpu, 0)) for gpu, count in promised.items()}
        present = used.get(other.id, {})
        for gpu in promised:
            cores[gpu] = cores.get(gpu, 0) + other.cores_of(gpu)
        for gpu in {*promised, *present}:
            count = max(promised.get(gpu, 0), present.get(gpu, 0))
            others[gpu] = others.get(gpu, 0) + count
            real[gpu] = real.get(gpu, 0) + real_part(other, gpu, count)
    others = {
        gpu.uuid: others_bytes(allocation, gpu, others.get(gpu.uuid, 0), real.get(gpu.uuid, 0))
        for gpu in node.gpus
    }
    gpus = tuple(
        gpu
        if allocation.physical.get(gpu.uuid) or allocation.policy.exclusive or allocation.whole
        else alone_view
        for gpu, alone_view in zip(node.gpus, own_view(node.gpus), strict=True)
    )
    unit = {gpu.uuid: gpu.slice_bytes for gpu in node.gpus}
    slices = {gpu.uuid: gpu.slices for gpu in node.gpus} if allocation.policy.exclusive else {}
    quota = allocation.quota()
    shares = tuple(
        Share(
            hold.gpu,
            max(slices.get(hold.gpu, 0), -(-quota[hold.gpu] // unit.get(hold.gpu, hold.slice_bytes))),
        )
        for hold in allocation.holds
    )
    for share, hold in zip(shares, allocation.holds, strict=True):
        resized = unit.get(hold.gpu, hold.slice_bytes) != hold.slice_bytes and not allocation.policy.exclusive
        if allocation.limits or resized:  # may be no whole slices, and what rounding adds is not missing
            rounded = share.slices * unit.get(share.gpu, 0)
            others[share.gpu] = others.get(share.gpu, 0) - max(0, rounded - quota[share.gpu])
        if resized:  # nor is what no slice has any more
            others[share.gpu] -= _lost_since(hold, node)
    lacks = start_shortfall(NodeState.build(gpus, node.topology), shares, others)
    over = {
        hold.gpu: cores.get(hold.gpu, 0) + allocation.cores_of(hold.gpu) - CORES_PER_GPU
        for hold in allocation.holds
        if allocation.cores_of(hold.gpu)
    }
    short = {lack.gpu for lack in lacks}
    return lacks + tuple(
        Missing(gpu, 0, 0, cores=count) for gpu, count in over.items() if count > 0 and gpu not in short
    )


def _lost_since(hold: Hold, node: NodeState) -> int:
    """Bytes of a GPU's own memory that were in its slices when a hold was given, and are in none of now."""
    gpu = next((gpu for gpu in node.gpus if gpu.uuid == hold.gpu and not gpu.host_bytes), None)
    if gpu is None:
        return 0
    return max(0, gpu.memory_bytes // hold.slice_bytes * hold.slice_bytes - gpu.bytes_of(gpu.slices))


def start_shortfall(
    state: NodeState, shares: Iterable[Share], others_bytes: Mapping[str, int]
) -> tuple[Missing, ...]:
    """What is missing before a job with these shares of the GPUs of a node may start; nothing means go.

    An unhealthy GPU is always missing; one that has vanished lacks the whole share.

    Args:
        state: the node; its occupants do not count.
        shares: what the job is to have.
        others_bytes: for each GPU the bytes that everything else on it uses now, 0 for a GPU that is not named.
    """
    lacks = [_shortfall(state, share, others_bytes.get(share.gpu, 0)) for share in shares]
    return tuple(lack for lack in lacks if lack is not None)


def _shortfall(state: NodeState, share: Share, others: int) -> Missing | None:
    try:
        gpu = state.gpu(share.gpu)
    except UnknownGpuError:
        return Missing(share.gpu, share.slices, 0, unhealthy=True)
    lacking = max(0, gpu.bytes_of(share.slices) + others - gpu.bytes_of(gpu.slices))
    if not lacking and gpu.healthy:
        return None
    return Missing(share.gpu, -(-lacking // gpu.slice_bytes), lacking, unhealthy=not gpu.healthy)


def describe(
    missing: tuple[Missing, ...],
    table: AllocationTable,
    allocation: Allocation,
    used: Mapping[str, Mapping[str, int]],
    unhealthy: Mapping[str, str] | None = None,
) -> str:
    """One sentence for the pod's event: what the container waits for, on which GPU, and which containers hold it.

    unhealthy: what is wrong with GPUs, where that is known.
    """
    why = {gpu: f" ({text})" for gpu, text in (unhealthy or {}).items()}
    gpus = {lack.gpu for lack in missing}
    lacks = ", ".join(_lack(lack, why, alone=allocation.policy.exclusive) for lack in missing)
    holders = ", ".join(
        _holder(other, used.get(other.id, {}), gpus)
        for other in table.allocations
        if other.id != allocation.id
        and gpus & {*other.promised, *(g for g, n in used.get(other.id, {}).items() if n)}
    )
    return (
        f"waiting for {lacks}"
        + (f"; held by {holders}" if holders else "")
        + "; starts by itself once that is free"
    )


def _lack(lack: Missing, why: Mapping[str, str], *, alone: bool) -> str:
    if lack.unhealthy:
        return f"{lack.gpu} is not healthy{why.get(lack.gpu, '')}"
    if not lack.bytes:
        return f"{lack.cores}% of the compute of {lack.gpu}"
    return f"{units.format_bytes(lack.bytes)} of {lack.gpu}" + (", which is to be its alone" if alone else "")


def _same_pod(allocation: Allocation, other: Allocation) -> bool:
    return any(other.is_of(consumer.uid) for consumer in allocation.consumers if consumer.uid)


def _one_after_the_other(allocation: Allocation, other: Allocation) -> bool:
    """Whether two containers of a pod never run at a time: the earlier of them is an init container."""
    first = allocation if allocation.number < other.number else other
    return bool(first.consumers) and all(consumer.init for consumer in first.consumers)


def _holder(allocation: Allocation, present: Mapping[str, int], gpus: set[str]) -> str:
    if not allocation.promised:
        memory = sum(count for gpu, count in present.items() if gpu in gpus)
        return f"{allocation.name} (ended, its processes still hold {units.format_bytes(memory)})"
    memory = sum(count for gpu, count in allocation.promised.items() if gpu in gpus)
    alone = ", exclusively" if allocation.policy.exclusive else ""
    return f"{allocation.name} ({units.format_bytes(memory)}{alone})"
