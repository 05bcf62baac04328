# SPDX-License-Identifier: Apache-2.0
"""Two and a half GPUs as two whole ones and half of a third: the requests that say "whole GPUs first".

The Gaia paper leaves numbers such as 2.5 to future work because unequal GPUs cannot compute in parallel. By default a
container therefore gets equal parts, an ordinary multi-slice request; this way is for programs that can use a
smaller GPU. The extra part comes from a fragment rather than from a whole GPU, even across a slower link.
"""

from collections.abc import Iterator

from gigaslice.core.placement.pool_state import PoolState
from gigaslice.core.placement.subset import Search, Weights, cheapest
from gigaslice.core.placement.tree import bits

_Key = tuple[int, int, int, int, int, int, int, tuple[int, ...], int]


def choose(pool_state: PoolState, whole_count: int, tail: int, cores: int) -> tuple[int, int] | None:
    """Return `whole_count` whole GPUs and another GPU with `tail` slices left; None if they are not there."""
    best: tuple[_Key, int, int] | None = None
    for extra in _extras(pool_state, tail, cores):
        for gpus in _whole_sets(pool_state, whole_count, extra):
            lowest = next(gpu for gpu in _alike(pool_state, tail, cores, extra) if not gpus >> gpu & 1)
            key = _key(pool_state, gpus, lowest)
            if best is None or key < best[0]:
                best = (key, gpus, lowest)
    return best[1:] if best else None


def _key(pool_state: PoolState, gpus: int, extra: int) -> _Key:
    tree, together = pool_state.tree, gpus | 1 << extra
    return (
        tree.bottleneck(gpus),
        tree.total(gpus),
        pool_state.whole >> extra & 1,
        tree.bottleneck(together),
        tree.total(together),
        pool_state.free[extra],
        pool_state.left_after(together),
        tuple(bits(gpus)),
        extra,
    )


def _alike(pool_state: PoolState, tail: int, cores: int, gpu: int) -> list[int]:
    """Return the GPUs that can stand in for `gpu` as the extra one without changing any cost."""
    return [
        other
        for other in bits(pool_state.fitting(tail, cores))
        if pool_state.tree.twins[other] == pool_state.tree.twins[gpu]
        and pool_state.free[other] == pool_state.free[gpu]
        and (pool_state.whole >> other & 1) == (pool_state.whole >> gpu & 1)
    ]


def _extras(pool_state: PoolState, tail: int, cores: int) -> list[int]:
    """Return one GPU, the last, of every kind of GPU that could give the extra part."""
    fitting = bits(pool_state.fitting(tail, cores))
    return [gpu for gpu in fitting if _alike(pool_state, tail, cores, gpu)[-1] == gpu]


def _whole_sets(pool_state: PoolState, count: int, extra: int) -> Iterator[int]:
    """Yield the best sets of whole GPUs to go with `extra`, one per limit on how far from it they may be.

    On a uniform tree that distance follows from the set, so one search is enough.
    """
    tree, whole = pool_state.tree, pool_state.whole & pool_state.usable & ~(1 << extra)
    weights = Weights((0,) * len(tree.cost), tree.cost[extra])
    limits = {max(tree.cost[extra])} if tree.uniform else {tree.cost[extra][gpu] for gpu in bits(whole)}
    for limit in sorted(limits):
        near = sum(1 << gpu for gpu in bits(whole) if tree.cost[extra][gpu] <= limit)
        gpus = cheapest(Search(tree, pool_state.whole & ~(1 << extra), near, count, weights))
        if gpus is not None:
            yield gpus
