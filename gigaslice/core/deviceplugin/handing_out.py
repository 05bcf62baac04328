# SPDX-License-Identifier: Apache-2.0
"""What becomes of earlier holders when the kubelet hands device IDs out again, or shows them as free. Pure.

An allocation that may be of an init container of the same pod lends its device IDs. Of the others those that are known
to be over have ended; the rest may live, so they are forgotten, and count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.deviceplugin.origin import held, plugin, with_origin

__all__ = [
    "counted_elsewhere",
    "lenders",
    "of_device_ids",
    "with_freed",
    "with_handed_out",
]


def of_device_ids(table: AllocationTable, device_ids: frozenset[str]) -> tuple[Allocation, ...]:
    """The allocations that were answered to exactly these device IDs, newest first: the container that the kubelet
    means by them now.
    """
    if not device_ids:
        return ()
    return tuple(
        allocation
        for allocation in reversed(table.allocations)
        if plugin(allocation).device_ids == device_ids
    )


def counted_elsewhere(table: AllocationTable, allocation: Allocation) -> bool:
    """Whether a device ID of ALLOCATION is another one's in the kubelet's count: see `held`."""
    device_ids = plugin(allocation).device_ids
    others = (other for other in table.allocations if other.id != allocation.id)
    return any(not held(other).isdisjoint(device_ids) for other in others)


def with_handed_out(
    table: AllocationTable,
    device_ids: Iterable[str],
    before: int | None = None,
    pod: str = "",
    *,
    expired: Collection[str] = (),
    started: Collection[str] = (),
    since: float = -math.inf,
) -> tuple[AllocationTable, tuple[str, ...]]:
    """The allocation table after the kubelet hands DEVICE_IDS to a new container, and the ids of the allocations that
    had them.

    Args:
        table: The allocation table.
        device_ids: What the container gets.
        before: Only allocations with smaller numbers lose anything.
        pod: UID of the container's pod, where that is known.
        expired: Allocations whose pods have ended.
        started: Allocations that lend nothing any more, since processes have used them.
        since: The least `created` of a lender: the kubelet allocates all containers of a pod at once and before it
            starts one.
    """
    taken = frozenset(device_ids)
    changed = []
    for allocation in table.allocations:
        common = held(allocation) & taken
        if not common or (before is not None and allocation.number >= before):
            continue
        if _lends(allocation, pod, started, since):
            changed.append(with_origin(allocation, lent=plugin(allocation).lent | common))
        else:
            changed.append(_lost(allocation, expired))
    return table.replaced(changed), tuple(allocation.id for allocation in changed)


def lenders(
    table: AllocationTable, device_ids: frozenset[str], pod: str, started: Collection[str], since: float
) -> frozenset[str]:
    """Ids of the allocations that would lend DEVICE_IDS rather than lose them: see `with_handed_out`."""
    return frozenset(
        allocation.id
        for allocation in table.allocations
        if not held(allocation).isdisjoint(device_ids) and _lends(allocation, pod, started, since)
    )


def with_freed(
    table: AllocationTable, device_ids: Iterable[str], expired: Collection[str] = ()
) -> AllocationTable:
    """The allocation table after the kubelet shows DEVICE_IDS as free: their holders have ended if EXPIRED names them,
    or else are forgotten. A kubelet that has lost its checkpoint shows the devices of running containers as free.
    """
    free = frozenset(device_ids)
    return table.replaced(
        _lost(allocation, expired)
        for allocation in table.allocations
        if not held(allocation).isdisjoint(free)
    )


def _lost(allocation: Allocation, expired: Collection[str]) -> Allocation:
    if allocation.id in expired:
        return replace(allocation, ended=True)
    return with_origin(allocation, forgotten=True)


def _lends(allocation: Allocation, pod: str, started: Collection[str], since: float) -> bool:
    origin = plugin(allocation)
    if origin.owner is not None and pod:
        return origin.owner.init and origin.owner.uid == pod
    if origin.container is not None or allocation.id in started or allocation.created < since:
        return False
    return origin.owner is None or origin.owner.init
