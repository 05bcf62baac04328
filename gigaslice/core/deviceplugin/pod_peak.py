# SPDX-License-Identifier: Apache-2.0
"""What init containers count for beside the other containers of their pod: what the pod has at most at a time. Pure.

Of each GPU a pod has the larger of two: what its main containers have together, and what one of its init containers
has, beside the sidecars before it. The scheduler counts so (`gigaslice.core.cluster.pod_holdings`), for as long as the
pod lives, since its init containers run again when its sandbox is made anew. Device IDs do not say it: the kubelet
hands those of an init container to a later one, wherever that one's GPUs are. So what the main containers leave of the
pod's most is counted for its init containers. Only containers that are known count here; of others the device IDs
decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gigaslice.core.allocation.table import Allocation, AllocationTable, Hold
from gigaslice.core.deviceplugin.origin import plugin

__all__ = ["with_peak", "with_peaks", "without_peak"]


def with_peaks(table: AllocationTable) -> AllocationTable:
    """Returns the allocation table with what the init containers of all pods count for."""
    owners = (plugin(allocation).owner for allocation in table.allocations)
    for uid in sorted({owner.uid for owner in owners if owner and owner.init}):
        table = with_peak(table, uid)
    return table


def with_peak(table: AllocationTable, uid: str) -> AllocationTable:
    """Returns the allocation table with what the init containers of the pod of that UID count for."""
    pod = table.of_pod(uid)
    inits = [allocation for allocation in pod if _is_init(allocation)]
    if not inits:
        return table
    left = _left_to_init(pod)
    changed = []
    for allocation in sorted(inits, key=_minus_memory):
        holds = []
        for hold in allocation.holds:
            counted = min(hold.memory_bytes, left.get(hold.gpu, 0))
            left[hold.gpu] = left.get(hold.gpu, 0) - counted
            holds.append(_counting(hold, None if counted == hold.kept_bytes else counted))
        changed.append(_holding(allocation, tuple(holds)))
    return table.replaced(changed)


def without_peak(table: AllocationTable, uid: str) -> AllocationTable:
    """Returns the allocation table as another container of the pod sees it: its init containers have ended by then."""
    return table.replaced(
        _holding(allocation, tuple(_counting(hold, None) for hold in allocation.holds))
        for allocation in table.of_pod(uid)
        if _is_init(allocation)
    )


def _left_to_init(pod: Iterable[Allocation]) -> dict[str, int]:
    """Returns by how much the pod's most exceeds what its main containers have, by GPU. POD: in order of admission."""
    beside: dict[str, int] = {}
    peak: dict[str, int] = {}
    for allocation in pod:
        for hold in allocation.holds:
            now = beside.get(hold.gpu, 0) + hold.memory_bytes
            peak[hold.gpu] = max(peak.get(hold.gpu, 0), now)
            if not _is_init(allocation):
                beside[hold.gpu] = now
    return {gpu: most - beside.get(gpu, 0) for gpu, most in peak.items()}


def _is_init(allocation: Allocation) -> bool:
    owner = plugin(allocation).owner
    return owner is not None and owner.init


def _minus_memory(allocation: Allocation) -> int:
    return -sum(hold.memory_bytes for hold in allocation.holds)


def _counting(hold: Hold, counted_bytes: int | None) -> Hold:
    return hold if hold.counted_bytes == counted_bytes else replace(hold, counted_bytes=counted_bytes)


def _holding(allocation: Allocation, holds: tuple[Hold, ...]) -> Allocation:
    return allocation if allocation.holds == holds else replace(allocation, holds=holds)
