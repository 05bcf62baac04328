# SPDX-License-Identifier: Apache-2.0
"""Exactly one whole GPU (Gaia Scheduler, Algorithm 3): take it from where good pairs are already broken.

The paper compares "the cousin" of a GPU in a binary tree. Parents here can be wide (NVSwitch) and a sibling
can be partly used, so its rule is the first of three tiers:

* A: every other GPU under the parent has nothing left, as in the paper;
* B: some other GPU under the parent is in use; the parent with the fewest whole GPUs first;
* C: the parent is intact; lowest access cost, as in the paper's line 9.
"""

from gigaslice.core.placement.pool_state import PoolState
from gigaslice.core.placement.tree import bits


def choose(pool_state: PoolState) -> int | None:
    """Return the whole GPU to give away, or None if there is none."""
    return min(bits(pool_state.whole & pool_state.usable), key=lambda gpu: key(pool_state, gpu), default=None)


def key(pool_state: PoolState, gpu: int) -> tuple[int, int, int, int, int]:
    """Return what orders whole GPUs of one pool: the least is given away first."""
    rank, crowd = tier(pool_state, gpu)
    return (rank, crowd, pool_state.tree.access_cost[gpu], pool_state.left_after(1 << gpu), gpu)


def tier(pool_state: PoolState, gpu: int) -> tuple[int, int]:
    """Return the tier (0 = A) and, in tier B, how many whole GPUs the parent has."""
    parent = pool_state.tree.parent[gpu]
    others = parent & ~(1 << gpu)
    if not others:
        return 2, 0
    if all(pool_state.free[other] == 0 for other in bits(others)):
        return 0, 0
    if others & pool_state.whole == others:
        return 2, 0
    return 1, (parent & pool_state.whole).bit_count()
