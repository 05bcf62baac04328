# SPDX-License-Identifier: Apache-2.0
"""Free device IDs that no container can get, since the kubelet counts device IDs and the GPUs count bytes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gigaslice.core.allocation.table import Allocation, AllocationTable, Hold
from gigaslice.core.deviceplugin.device_id import gpu_device_ids, gpu_name, parse_device_id
from gigaslice.core.deviceplugin.origin import is_plugin, kept, plugin
from gigaslice.core.model import Gpu

__all__ = ["unheld", "withheld"]


def withheld(table: AllocationTable, gpus: Sequence[Gpu], uncounted: Collection[str] = ()) -> frozenset[str]:
    """The free device IDs that cannot be had: containers count for more than theirs, or have what is not counted.

    The kubelet counts device IDs. A grown container has no more of them than before, and one that has lent them to a
    container on another GPU has none; nor has what another API has given out. Where slices have been made smaller
    since, as many device IDs as before are less memory, and where they have been made larger, some are none any more.
    UNCOUNTED: allocations whose devices the
    kubelet counts as free and whose pods the scheduler does not count either. Nothing else is withheld, and never a
    device ID that a container has: the kubelet takes a container whose devices are unhealthy for broken. Device IDs of
    the grown containers' GPUs come first, and of each GPU those with the largest numbers.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    units_of = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
    growth: dict[str, int] = {}
    promised: dict[str, int] = {}
    for allocation in table.allocations:
        given = {
            hold.gpu: 0 if allocation.id in uncounted else _by_device_ids(allocation, hold, by_uuid)
            for hold in allocation.holds
        }
        for gpu, count in allocation.promised.items():
            promised[gpu] = promised.get(gpu, 0) + count
            growth[gpu] = growth.get(gpu, 0) + max(0, count - given[gpu])
    if not any(growth.values()):
        return frozenset()
    taken = frozenset(
        device_id
        for allocation in table.allocations
        if allocation.id not in uncounted
        for device_id in kept(allocation)
    )
    free = {
        gpu.uuid: [device_id for device_id in gpu_device_ids(gpu) if device_id not in taken] for gpu in gpus
    }
    room = {
        gpu.uuid: max(0, gpu.bytes_of(gpu.slices) - promised.get(gpu.uuid, 0)) // gpu.slice_bytes
        for gpu in gpus
    }
    grown = sum(-(-count // units_of[gpu]) for gpu, count in growth.items() if gpu in units_of)
    lost = min(grown, sum(map(len, free.values())) - sum(room.values()))
    hidden: list[str] = []
    for gpu in sorted(free, key=lambda uuid: (-growth.get(uuid, 0), uuid)):
        surplus = min(max(0, len(free[gpu]) - room[gpu]), max(0, lost - len(hidden)))
        hidden += free[gpu][len(free[gpu]) - surplus :]
    return frozenset(hidden)


def unheld(table: AllocationTable, gpus: Sequence[Gpu]) -> frozenset[str]:
    """Every device ID that no container has: what is withheld while another API gives out all that is new."""
    taken = frozenset(device_id for allocation in table.allocations for device_id in kept(allocation))
    return frozenset(device_id for gpu in gpus for device_id in gpu_device_ids(gpu)) - taken


def _by_device_ids(allocation: Allocation, hold: Hold, gpus: Mapping[str, Gpu]) -> int:
    """What the device IDs of a hold make the kubelet count for it; nothing where another API gave it out."""
    if not is_plugin(allocation):
        return 0
    gpu = gpus.get(hold.gpu)
    if gpu is None or gpu.slice_bytes == hold.slice_bytes or allocation.whole:
        return hold.memory_bytes if hold.counted_bytes is None else hold.kept_bytes
    tokens = next((tokens for tokens in plugin(allocation).tokens if tokens.gpu == hold.gpu), None)
    own = kept(allocation).intersection(tokens.device_ids) if tokens is not None else ()
    return gpu.bytes_of(sum(_is_listed(device_id, gpus) for device_id in own))


def _is_listed(device_id: str, gpus: Mapping[str, Gpu]) -> bool:
    """Whether a GPU has a slice of that name, in the size that slices have now."""
    gpu = gpus.get(gpu_name(device_id))
    return gpu is not None and parse_device_id(device_id).number < gpu.slices
