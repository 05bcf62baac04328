"""Which of its device IDs an init container lends, where the GPUs of the borrower are not those of their names. Pure.

An init container lends the device IDs that the kubelet hands to a later container of its pod, and what they stand for
is the later container's. Under an assignment device IDs are names without a place. The init container gives up slices
of the GPUs that the later container has, as the scheduler has counted: else both would count on one GPU, and the pod
could wait for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from gigaslice.allocation.table import Allocation, AllocationTable, Hold, device_order
from gigaslice.model import Share

__all__ = ["served_by_gpu"]


def served_by_gpu(
    table: AllocationTable, lenders: Collection[str], device_ids: Collection[str], shares: Sequence[Share]
) -> AllocationTable:
    """Returns the allocation table with the device IDs of the lenders served from other GPUs of theirs.

    How much a lender has of each GPU stays. Of the device IDs that it lends as many as possible are now served from
    the GPUs of the borrower.

    Args:
        table: The allocation table before the borrower takes anything over.
        lenders: Ids of the allocations that lend.
        device_ids: What the borrower gets.
        shares: The borrower's shares of GPUs; 1 of each where the device IDs are whole GPUs.
    """
    left = {share.gpu: share.slices for share in shares}
    changed = []
    for allocation in table.allocations:
        if allocation.id in lenders:
            one = _served(allocation, frozenset(device_ids) & allocation.kept, left)
            if one is not None:
                changed.append(one)
    return table.replaced(changed)


def _served(allocation: Allocation, taken: frozenset[str], left: dict[str, int]) -> Allocation | None:
    """Returns an allocation that lends so from the GPUs that are LEFT; None where it does so already."""
    free = {hold.gpu: len(allocation.kept.intersection(hold.device_ids)) for hold in allocation.holds}
    lent: dict[str, int] = {}
    count = len(taken)
    for gpu, room in free.items():
        lent[gpu] = min(room, left.get(gpu, 0), count)
        left[gpu] = left.get(gpu, 0) - lent[gpu]
        count -= lent[gpu]
    for gpu, room in free.items():
        more = min(room - lent[gpu], count)
        lent[gpu] += more
        count -= more
    if all(len(taken.intersection(hold.device_ids)) == lent[hold.gpu] for hold in allocation.holds):
        return None
    lending = sorted(taken, key=device_order)
    keeping = sorted(allocation.kept - taken, key=device_order)
    holds: list[Hold] = []
    for hold in allocation.holds:
        before = [one for one in hold.device_ids if one in allocation.lent]
        first, lending = _cut(lending, lent[hold.gpu])
        rest, keeping = _cut(keeping, free[hold.gpu] - lent[hold.gpu])
        holds.append(replace(hold, device_ids=(*before, *first, *rest)))
    return replace(allocation, holds=tuple(holds))


def _cut(ids: Iterable[str], count: int) -> tuple[list[str], list[str]]:
    found = list(ids)
    return found[:count], found[count:]
