"""The same part of several GPUs (Inspur scheduler, figure 7: four slices of 8 GB, one on each of four GPUs).

The papers leave open which GPUs. Fragments come first, Gaia's stated aim, so that whole GPUs stay for Link;
a job bound by communication says `Prefer.LINK` and gets the best links even if that opens a GPU.
"""

from gigaslice.model import Prefer
from gigaslice.placement.pool_state import PoolState
from gigaslice.placement.subset import Search, Weights, cheapest


def choose(pool_state: PoolState, candidates: int, count: int, prefer: Prefer) -> int | None:
    """Return the best set of `count` of the candidates, or None if there are too few."""
    if prefer is Prefer.LINK:
        weights = Weights((0,) * len(pool_state.free), pool_state.opened_then_free())
    else:
        opened = tuple(pool_state.whole >> gpu & 1 for gpu in range(len(pool_state.free)))
        weights = Weights(opened, pool_state.free)
    return cheapest(Search(pool_state.tree, pool_state.whole, candidates, count, weights))
