# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs as devices of the kubelet, beside slices of the same GPUs. Pure.

A GPU that is given out whole has one device ID. The names of devices are device IDs here as well: a race between the
two lists can end with a GPU under another one's name. Each of the two lists shows the kubelet as many healthy devices
as there are free GPUs, or free slices.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.inventory.source import Inventory
from agent.providers.resource import Device
from gigaslice.core.allocation.availability import availability
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.allocation.whole_gpus import free_gpus
from gigaslice.core.deviceplugin.device_id import gpu_device_ids, whole_gpu_device_id
from gigaslice.core.deviceplugin.origin import kept, plugin
from gigaslice.core.model import Gpu, NodeState, Placement, Request
from gigaslice.core.placement import Policy, place
from gigaslice.core.placement.pairs import best_effort

__all__ = ["devices", "prefer", "slices_withheld"]


def devices(table: AllocationTable, gpus: Sequence[Gpu], *, closed: bool = False) -> tuple[Device, ...]:
    """Returns every GPU as a device. As many free ones are healthy as there are free GPUs, the free GPUs'
    own names first; none where the node is closed to new containers.

    A device that a container has is as healthy as the GPU behind it.
    """
    health = {gpu.uuid: gpu.healthy for gpu in gpus}
    behind = {
        device_id: tokens.gpu
        for allocation in table.allocations
        if allocation.whole
        for tokens in plugin(allocation).tokens
        for device_id in kept(allocation).intersection(tokens.device_ids)
    }
    free = () if closed else free_gpus(table, gpus)
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
    left = {gpu_left.gpu.uuid: gpu_left for gpu_left in availability(table, gpus) if gpu_left.gpu.healthy}
    taken = {uuid for uuid, gpu_left in left.items() if gpu_left.whole}
    if not taken:
        return frozenset()
    taken_ids = frozenset(device_id for allocation in table.allocations for device_id in kept(allocation))
    lost = sum(left[uuid].gpu.slices for uuid in taken)
    hidden: list[str] = []
    for uuid in sorted(left, key=lambda uuid: (uuid not in taken, left[uuid].gpu.index)):
        free = [device_id for device_id in gpu_device_ids(left[uuid].gpu) if device_id not in taken_ids]
        surplus = len(free) - left[uuid].free_slices
        count = max(0, min(surplus, lost - len(hidden)))
        hidden += free[len(free) - count :]
    return frozenset(hidden)


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
        placed = place(node, Request(gpus=size, only=rest), policy)
        chosen = placed.uuids if isinstance(placed, Placement) else ()
    if not chosen:
        position = {gpu.uuid: number for number, gpu in enumerate(gpus)}
        fixed = [position[uuid] for uuid in must_include if uuid in position]
        candidates = best_effort(
            inventory.topology, [*fixed, *(position[uuid] for uuid in sorted(rest))], fixed, size
        )
        chosen = tuple(gpus[number].uuid for number in candidates or ())
    order = [*must_include, *chosen, *sorted(rest), *available]
    return tuple(dict.fromkeys(order))[:size]
