# SPDX-License-Identifier: Apache-2.0
"""Part of one GPU (Gaia Scheduler, Algorithm 2): fill broken GPUs first, open a whole one last.

The paper's text says a fragment must have "greater" remaining resources, its line 3 says m <= Resources;
equality is right, or the last 0.1 of Table II could never be given out.
"""

from collections.abc import Sequence

from gigaslice.core.placement.pool_state import PoolState
from gigaslice.core.placement.tree import bits


def fill(parts: Sequence[tuple[PoolState, int]], cores: int) -> tuple[PoolState, int] | None:
    """Return the pool and the GPU of the fitting fragment with the least left, over all pools; None if none fits.

    parts: pools with the slices one GPU of each must give. cores: compute share in per cent.
    """
    fitting = [
        (pool_state, gpu)
        for pool_state, slices in parts
        for gpu in bits(pool_state.fitting(slices, cores) & pool_state.fragment)
    ]
    return min(fitting, key=lambda choice: key(choice[0], choice[1], cores), default=None)


def key(pool_state: PoolState, gpu: int, cores: int = 0) -> tuple[int, ...]:
    """Return what orders fragments over all pools: of those that fit, the least is filled first."""
    free_cores = pool_state.free_cores[gpu] if cores else 0
    return pool_state.free[gpu], free_cores, pool_state.rank, pool_state.tree.access_cost[gpu], gpu


def open_gpu(pool_state: PoolState) -> int | None:
    """Return the whole GPU that is cheapest to break; of equals the one that breaks the fewest subtrees."""
    return min(
        bits(pool_state.whole & pool_state.usable),
        key=lambda gpu: (pool_state.tree.access_cost[gpu], pool_state.left_after(1 << gpu), gpu),
        default=None,
    )
