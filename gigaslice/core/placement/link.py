# SPDX-License-Identifier: Apache-2.0
"""Several whole GPUs (Gaia Scheduler, Algorithm 4, repaired): the set with the best links.

The printed algorithm never ends its climb, adds nothing to its result, misses requests that only the root can
serve, and prices a big subtree at 0. Its meaning is kept: climb to the lowest subtree with enough whole GPUs
(the worst link of the set decides), then the cheapest GPUs below it (the sum of links decides).
"""

from gigaslice.core.placement.pool_state import PoolState
from gigaslice.core.placement.subset import Search, Weights, cheapest


def choose(pool_state: PoolState, candidates: int, count: int) -> int | None:
    """Return the best set of `count` of the candidates, which are whole GPUs; None if there are too few."""
    nothing = (0,) * len(pool_state.free)
    return cheapest(Search(pool_state.tree, pool_state.whole, candidates, count, Weights(nothing, nothing)))
