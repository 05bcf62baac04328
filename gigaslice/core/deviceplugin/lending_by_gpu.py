# SPDX-License-Identifier: Apache-2.0
"""Which of its device IDs an init container lends, where the GPUs of the borrower are not those of their names. Pure.

An init container lends the device IDs that the kubelet hands to a later container of its pod, and what they stand for
is the later container's. Under an assignment device IDs are names without a place. The init container gives up slices
of the GPUs that the later container has, as the scheduler has counted: else both would count on one GPU, and the pod
could wait for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.deviceplugin.device_id import device_order
from gigaslice.core.deviceplugin.origin import GpuTokens, kept, plugin, with_origin
from gigaslice.core.model import Share

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
            served = _served(allocation, frozenset(device_ids) & kept(allocation), left)
            if served is not None:
                changed.append(served)
    return table.replaced(changed)


def _served(allocation: Allocation, taken: frozenset[str], left: dict[str, int]) -> Allocation | None:
    """Returns an allocation that lends so from the GPUs that are LEFT; None where it does so already."""
    origin, own = plugin(allocation), kept(allocation)
    free = {tokens.gpu: len(own.intersection(tokens.device_ids)) for tokens in origin.tokens}
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
    if all(len(taken.intersection(tokens.device_ids)) == lent[tokens.gpu] for tokens in origin.tokens):
        return None
    lending = sorted(taken, key=device_order)
    keeping = sorted(own - taken, key=device_order)
    served: list[GpuTokens] = []
    for tokens in origin.tokens:
        before = [device_id for device_id in tokens.device_ids if device_id in origin.lent]
        first, lending = _cut(lending, lent[tokens.gpu])
        rest, keeping = _cut(keeping, free[tokens.gpu] - lent[tokens.gpu])
        served.append(GpuTokens(tokens.gpu, (*before, *first, *rest)))
    return with_origin(allocation, tokens=tuple(served))


def _cut(device_ids: Iterable[str], count: int) -> tuple[list[str], list[str]]:
    all_ids = list(device_ids)
    return all_ids[:count], all_ids[count:]
