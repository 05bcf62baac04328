"""Exactly one whole card (Gaia Scheduler, Algorithm 3): take it from where good pairs are already broken.

The paper looks at "the cousin" of a card in a binary tree. Parents here can be wide (NVSwitch) and a sibling
can be partly used, so its rule is the first of three tiers:

* A: every other card under the parent has nothing left, as in the paper;
* B: some other card under the parent is in use; the parent with the fewest whole cards first;
* C: the parent is intact; lowest access cost, as in the paper's line 9.
"""

from agent.placement.pool_state import PoolState
from agent.placement.tree import bits


def choose(pool_state: PoolState) -> int | None:
    """Return the whole card to give away, or None if there is none."""
    return min(
        bits(pool_state.whole & pool_state.usable), key=lambda card: _key(pool_state, card), default=None
    )


def _key(pool_state: PoolState, card: int) -> tuple[int, int, int, int, int]:
    tier, crowd = _tier(pool_state, card)
    return (tier, crowd, pool_state.tree.access_cost[card], pool_state.left_after(1 << card), card)


def _tier(pool_state: PoolState, card: int) -> tuple[int, int]:
    """Return the tier (0 = A) and, in tier B, how many whole cards the parent has."""
    parent = pool_state.tree.parent[card]
    others = parent & ~(1 << card)
    if not others:
        return 2, 0
    if all(pool_state.free[other] == 0 for other in bits(others)):
        return 0, 0
    if others & pool_state.whole == others:
        return 2, 0
    return 1, (parent & pool_state.whole).bit_count()
