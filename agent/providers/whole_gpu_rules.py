"""Whole GPUs and slices in one allocation table: what is left of each. Pure.

A GPU that is given out whole is an allocation like any other, with one device ID of the size of the GPU. So placement,
start decision, checkpoint and reconciliation count it without a rule of their own. The names of devices are device IDs
here as well: a race between the two lists can end with a GPU under another one's name. Each of the two lists shows the
kubelet as many healthy devices as there are free GPUs, or free slices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agent.inventory.source import Inventory
from agent.providers.provider import Device
from gigaslice.allocation.table import AllocationTable, Hold, whole_gpu_device_id
from gigaslice.model import Gpu, NodeState, Placement, Request, gpu_device_ids
from gigaslice.placement import Policy, place
from gigaslice.placement.pairs import best_effort

__all__ = ["WholeGpuChoice", "assign", "choose", "devices", "free_gpus", "prefer", "slices_withheld"]


@dataclass(frozen=True, slots=True)
class WholeGpuChoice:
    """The GPUs that serve a request. waiting: some of them are not free yet."""

    holds: tuple[Hold, ...]
    waiting: bool


def free_gpus(table: AllocationTable, gpus: Sequence[Gpu]) -> frozenset[str]:
    """Returns the healthy GPUs of which no container has any slice."""
    used = {share.gpu for one in table.occupants(gpus) for share in one.shares}
    return frozenset(gpu.uuid for gpu in gpus if gpu.healthy and gpu.slices and gpu.uuid not in used)


def devices(table: AllocationTable, gpus: Sequence[Gpu]) -> tuple[Device, ...]:
    """Returns every GPU as a device. As many free ones are healthy as there are free GPUs, the free GPUs'
    own names first.

    A device that a container has is as healthy as the GPU behind it.
    """
    health = {gpu.uuid: gpu.healthy for gpu in gpus}
    behind = {
        device_id: hold.gpu
        for allocation in table.allocations
        if allocation.whole
        for hold in allocation.holds
        for device_id in allocation.kept.intersection(hold.device_ids)
    }
    free = free_gpus(table, gpus)
    unheld = [gpu.uuid for gpu in gpus if whole_gpu_device_id(gpu.uuid) not in behind]
    named_first = sorted(unheld, key=lambda uuid: (uuid not in free, not health[uuid]))
    good = {uuid for uuid in named_first[: len(free)] if health[uuid]}
    return tuple(
        Device(
            gpu.uuid,
            health.get(behind[whole_gpu_device_id(gpu.uuid)], False)
            if whole_gpu_device_id(gpu.uuid) in behind
            else gpu.uuid in good,
            gpu.numa_node,
        )
        for gpu in gpus
    )


def slices_withheld(table: AllocationTable, gpus: Sequence[Gpu]) -> frozenset[str]:
    """Returns the free slices that no container can get because their GPUs are given out whole.

    Never a slice that a container has: the kubelet takes a container whose devices are unhealthy for broken. Where
    another GPU's container has some of a whole GPU's names, slices named after that other GPU are withheld instead.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus if gpu.healthy}
    taken = {
        share.gpu for allocation in table.allocations if allocation.whole for share in allocation.shares
    } & set(by_uuid)
    if not taken:
        return frozenset()
    held = frozenset(device_id for allocation in table.allocations for device_id in allocation.kept)
    used: dict[str, int] = {}
    for one in table.occupants(gpus):
        for share in one.shares:
            used[share.gpu] = used.get(share.gpu, 0) + share.slices
    lost = sum(by_uuid[uuid].slices for uuid in taken)
    found: list[str] = []
    for uuid in sorted(by_uuid, key=lambda uuid: (uuid not in taken, by_uuid[uuid].index)):
        free = [device_id for device_id in gpu_device_ids(by_uuid[uuid]) if device_id not in held]
        surplus = len(free) - max(0, by_uuid[uuid].slices - used.get(uuid, 0))
        count = max(0, min(surplus, lost - len(found)))
        found += free[len(free) - count :]
    return frozenset(found)


def choose(table: AllocationTable, gpus: Sequence[Gpu], requested: Sequence[str]) -> WholeGpuChoice | None:
    """Chooses the GPUs behind requested devices: those of the same names if they are free, else others that are.

    When too few are free, the container waits for the least used ones. None when there are not so many GPUs.
    """
    free = free_gpus(table, gpus)
    used = {
        share.gpu: share.slices + 1 for one in table.occupants(gpus) for share in one.shares
    }  # the +1: any holder counts
    nodes = {gpu.numa_node for gpu in gpus if gpu.uuid in requested}

    def rank(gpu: Gpu) -> tuple[object, ...]:
        return (
            gpu.uuid not in free,
            not gpu.healthy,
            gpu.uuid not in requested,
            gpu.numa_node not in nodes,
            used.get(gpu.uuid, 0),
            gpu.index,
        )

    chosen = sorted((gpu for gpu in gpus if gpu.slices), key=rank)[: len(requested)]
    return _given(chosen, free, requested) if len(chosen) == len(requested) else None


def assign(
    table: AllocationTable, gpus: Sequence[Gpu], requested: Sequence[str], assigned: Collection[str]
) -> WholeGpuChoice:
    """Gives exactly the assigned GPUs for as many requested devices, whatever their names."""
    chosen = [gpu for gpu in gpus if gpu.uuid in assigned]
    return _given(chosen, free_gpus(table, gpus), requested)


def _given(chosen: Sequence[Gpu], free: frozenset[str], requested: Sequence[str]) -> WholeGpuChoice:
    others = [uuid for uuid in requested if uuid not in {gpu.uuid for gpu in chosen}]
    names = {gpu.uuid: gpu.uuid if gpu.uuid in requested else others.pop(0) for gpu in chosen}
    holds = tuple(
        Hold(gpu.uuid, gpu.bytes_of(gpu.slices), (whole_gpu_device_id(names[gpu.uuid]),))
        for gpu in sorted(chosen, key=lambda gpu: gpu.index)
    )
    return WholeGpuChoice(holds, waiting=any(gpu.uuid not in free for gpu in chosen))


def prefer(
    table: AllocationTable,
    inventory: Inventory,
    policy: Policy,
    available: Sequence[str],
    *,
    must_include: Sequence[str] = (),
    size: int,
) -> tuple[str, ...]:
    """Returns as many devices as asked for, chosen for their links; with some fixed, those best linked to them."""
    gpus = inventory.gpus
    free = free_gpus(table, gpus)
    rest = frozenset(uuid for uuid in available if uuid in free and uuid not in must_include)
    chosen: tuple[str, ...] = ()
    if not must_include and rest:
        node = NodeState.build(gpus, inventory.topology, table.occupants(gpus))
        found = place(node, Request(gpus=size, only=rest), policy)
        chosen = found.uuids if isinstance(found, Placement) else ()
    if not chosen:
        position = {gpu.uuid: number for number, gpu in enumerate(gpus)}
        fixed = [position[uuid] for uuid in must_include if uuid in position]
        candidates = best_effort(
            inventory.topology, [*fixed, *(position[uuid] for uuid in sorted(rest))], fixed, size
        )
        chosen = tuple(gpus[number].uuid for number in candidates or ())
    order = [*must_include, *chosen, *sorted(rest), *available]
    return tuple(dict.fromkeys(order))[:size]
