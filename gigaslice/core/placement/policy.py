# SPDX-License-Identifier: Apache-2.0
"""The table of placement policies: for each, how one GPU is chosen and how several are.

`gaia` follows the paper. The others are what people know from elsewhere: `best-effort` (NVIDIA's allocator)
and `max-sum` (HAMi) differ from it for several GPUs only, because for one GPU they have no rule that keeps
pairs whole; `binpack` and `spread` go by how full GPUs are, and by links only to break ties.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from gigaslice.core.model import Topology
from gigaslice.core.placement import fragment, link, multislice, pairs, singular
from gigaslice.core.placement.pool_state import PoolState
from gigaslice.core.placement.subset import Search, Weights, cheapest
from gigaslice.core.placement.tree import bits


class Policy(Enum):
    """The names of the policies, as the configuration spells them: `Policy("gaia")`."""

    GAIA = "gaia"
    BEST_EFFORT = "best-effort"
    MAX_SUM = "max-sum"
    BINPACK = "binpack"
    SPREAD = "spread"


Parts = Sequence[tuple[PoolState, int]]
"""Pools in order, each with the slices one GPU of it must give."""

One = Callable[[Parts, int], tuple[PoolState, int] | None]
"""(parts, cores) -> the pool and the GPU."""

Several = Callable[[Topology, PoolState, int, int], int | None]
"""(topology, pool, candidates, count) -> the set of GPUs."""


OrderKey = Callable[[PoolState, int], tuple[Fraction | int, ...]]
"""(pool, GPU that has something left) -> what orders the GPUs of all pools: see `first_fit`."""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One row of the table."""

    one: One
    several: Several
    order: OrderKey


def _gaia_order(pool_state: PoolState, gpu: int) -> tuple[Fraction | int, ...]:
    if pool_state.fragment >> gpu & 1:
        return 0, *fragment.key(pool_state, gpu)
    return 1, pool_state.rank, *singular.key(pool_state, gpu)


def _gaia_one(parts: Parts, cores: int) -> tuple[PoolState, int] | None:
    filled = fragment.fill(parts, cores)
    if filled is not None:
        return filled
    for pool_state, slices in parts:
        gpu = singular.choose(pool_state) if slices == pool_state.slices else fragment.open_gpu(pool_state)
        if gpu is not None:
            return pool_state, gpu
    return None


def _gaia_several(topology: Topology, pool_state: PoolState, candidates: int, count: int) -> int | None:
    del topology
    if candidates & pool_state.whole == candidates:
        return link.choose(pool_state, candidates, count)
    return multislice.choose(pool_state, candidates, count)


def _best_effort_several(
    topology: Topology, pool_state: PoolState, candidates: int, count: int
) -> int | None:
    members = pool_state.tree.members
    gpus = pairs.best_effort(topology, [members[gpu] for gpu in bits(candidates)], (), count)
    return None if gpus is None else sum(1 << members.index(gpu) for gpu in gpus)


def _max_sum_several(topology: Topology, pool_state: PoolState, candidates: int, count: int) -> int | None:
    del topology  # the greatest sum of scores is the least sum of costs
    return _by_weight(pool_state, candidates, count, before=(0,) * len(pool_state.free), by_worst=False)


def _binpack_one(parts: Parts, cores: int) -> tuple[PoolState, int] | None:
    return _least(parts, cores, _binpack_order)


def _binpack_order(pool_state: PoolState, gpu: int) -> tuple[Fraction | int, ...]:
    return pool_state.free[gpu], pool_state.rank, gpu


def _binpack_several(topology: Topology, pool_state: PoolState, candidates: int, count: int) -> int | None:
    del topology
    return _by_weight(pool_state, candidates, count, before=pool_state.free)


def _spread_one(parts: Parts, cores: int) -> tuple[PoolState, int] | None:
    return _least(parts, cores, _spread_order)


def _spread_order(pool_state: PoolState, gpu: int) -> tuple[Fraction | int, ...]:
    parent = pool_state.tree.parent[gpu]
    busy_neighbours = (parent & ~pool_state.whole).bit_count()
    return Fraction(-pool_state.free[gpu], pool_state.slices), busy_neighbours, pool_state.rank, gpu


def _spread_several(topology: Topology, pool_state: PoolState, candidates: int, count: int) -> int | None:
    del topology
    return _by_weight(pool_state, candidates, count, before=tuple(-free for free in pool_state.free))


def _least(parts: Parts, cores: int, key: OrderKey) -> tuple[PoolState, int] | None:
    fitting = [
        (pool_state, gpu) for pool_state, slices in parts for gpu in bits(pool_state.fitting(slices, cores))
    ]
    return min(fitting, key=lambda choice: key(*choice), default=None)


def _by_weight(
    pool_state: PoolState, candidates: int, count: int, *, before: Sequence[int], by_worst: bool = True
) -> int | None:
    weights = Weights(before, pool_state.opened_then_free())
    return cheapest(Search(pool_state.tree, pool_state.whole, candidates, count, weights, by_worst))


RULES: dict[Policy, PolicyRule] = {
    Policy.GAIA: PolicyRule(_gaia_one, _gaia_several, _gaia_order),
    Policy.BEST_EFFORT: PolicyRule(_gaia_one, _best_effort_several, _gaia_order),
    Policy.MAX_SUM: PolicyRule(_gaia_one, _max_sum_several, _gaia_order),
    Policy.BINPACK: PolicyRule(_binpack_one, _binpack_several, _binpack_order),
    Policy.SPREAD: PolicyRule(_spread_one, _spread_several, _spread_order),
}
