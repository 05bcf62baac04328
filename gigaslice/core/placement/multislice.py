# SPDX-License-Identifier: Apache-2.0
"""The same part of several GPUs (Inspur scheduler, figure 7: four slices of 8 GB, one on each of four GPUs).

The papers leave open which GPUs. Fragments come first, Gaia's stated aim, so that whole GPUs stay for Link. The policy
`max-sum` is for nodes where the links come first.
"""

from gigaslice.core.placement.pool_state import PoolState
from gigaslice.core.placement.subset import Search, Weights, cheapest


def choose(pool_state: PoolState, candidates: int, count: int) -> int | None:
    """Return the best set of `count` of the candidates, or None if there are too few."""
    opened = tuple(pool_state.whole >> gpu & 1 for gpu in range(len(pool_state.free)))
    weights = Weights(opened, pool_state.free)
    return cheapest(Search(pool_state.tree, pool_state.whole, candidates, count, weights))
