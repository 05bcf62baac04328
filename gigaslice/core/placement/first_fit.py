# SPDX-License-Identifier: Apache-2.0
"""An order of GPUs in which the first that fits is the choice of placement: for schedulers of others. Pure.

Exact for what a fragment has room for, and for whole GPUs. Under `gaia` a whole GPU that is opened for a part of it is
the one that a whole request would get, not the cheapest to break: one order cannot say both. Several GPUs at a time are
no matter of an order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gigaslice.core.model import NodeState, Request
from gigaslice.core.placement.policy import RULES, Policy
from gigaslice.core.placement.pool_state import set_up

__all__ = ["chooses_alike", "first_fit_order"]


def first_fit_order(state: NodeState, policy: Policy = Policy.GAIA) -> tuple[str, ...]:
    """Return the UUIDs of a node's GPUs in that order; those with nothing left are last."""
    key = RULES[policy].order
    order = []
    for pool_state in set_up(state, Request(gpus=1)):
        for gpu, position in enumerate(pool_state.tree.members):
            left = pool_state.free[gpu] > 0
            rank = key(pool_state, gpu) if left else (position,)
            order.append((not left, rank, state.gpus[position].uuid))
    return tuple(uuid for _, _, uuid in sorted(order))


def chooses_alike(order: Sequence[str], other: Sequence[str], free: Mapping[str, int]) -> bool:
    """Tell whether first fit over both orders chooses the same GPU for every size, where so much of each is free."""
    return all(
        _first(order, free, size) == _first(other, free, size) for size in set(free.values()) if size > 0
    )


def _first(order: Sequence[str], free: Mapping[str, int], size: int) -> str | None:
    return next((gpu for gpu in order if free.get(gpu, 0) >= size), None)
