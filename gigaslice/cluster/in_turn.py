"""The rank of a node for a pod of several simple containers, placed one after the other without a search. Pure.

Placement's answer for a container stands as long as the containers after it still fit (see `choose`). Where all of them
have been placed so, each with the others in mind by then, every one of these answers stands, so no search is needed
beside it. This follows the policy `gaia` for containers that have a part of one GPU, or whole GPUs, and any GPU of the
node may serve; None means that only placement and search can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gigaslice.cluster.hardware import Hardware, NodeRoom, Tally
from gigaslice.cluster.problem import Block, Problem
from gigaslice.cluster.rank import RankKey
from gigaslice.placement import fragment, link, singular
from gigaslice.placement.pairs import pair_score
from gigaslice.placement.pool_state import PoolState
from gigaslice.placement.tree import Tree, bits, build_tree

__all__ = ["InTurn"]


class _Step(NamedTuple):
    """One container. slices: of one GPU; 0 for so many whole GPUs."""

    lends: bool
    gpus: int
    slices: int


@dataclass(frozen=True, slots=True)
class InTurn:
    """A pod of such containers on a kind of node."""

    hardware: Hardware
    steps: tuple[_Step, ...]

    @classmethod
    def of(cls, problem: Problem) -> InTurn | None:
        """Returns the rules for a pod on a kind of node; None where it has other containers."""
        size = problem.hardware.one_pool
        if not size or problem.hardware.lends or problem.together or problem.never is not None:
            return None
        steps = [_step(block, problem.hardware.all_gpus, size) for block in problem.blocks]
        if len(steps) < 2 or None in steps:
            return None
        return cls(problem.hardware, tuple(step for step in steps if step is not None))

    def key(self, room: NodeRoom, tally: Tally) -> RankKey | None:
        """Returns the rank of a node; None where a container would find no GPU in its turn."""
        free = [one.free for one in room]
        idle, full = tally.idle, tally.full
        access = _tree(self.hardware).access_cost
        key: list[int] = []
        for lends, count, slices in self.steps:
            if not slices:
                taken = _whole(self.hardware, idle, full, count)
                if taken is None:
                    return None
                if not lends:
                    key += taken.key_with(idle.bit_count())
                    idle, full = idle & ~taken.gpus, full | taken.gpus
                    for gpu in bits(taken.gpus):
                        free[gpu] = 0
                continue
            fitting = [
                (left, access[gpu], gpu)
                for gpu, left in enumerate(free)
                if left >= slices and not idle >> gpu & 1
            ]
            if fitting:
                left, _, gpu = min(fitting)
                rank = (1, 0, left - slices, 0)
            else:
                opened = _opened(self.hardware, idle)
                if opened is None:
                    return None
                gpu, left = opened, self.hardware.one_pool
                rank = (1, 1, left - slices, 0)
            if lends:
                continue
            key += (*rank, idle.bit_count())
            idle &= ~(1 << gpu)
            free[gpu] = left - slices
            full |= (left == slices) << gpu
        return tuple(key)


def _step(block: Block, all_gpus: int, size: int) -> _Step | None:
    if block.exclusive or block.cores or len(block.asks) != 1 or len(block.alternatives) != 1:
        return None
    request, units = block.asks[0].request, block.alternatives[0]
    if request.whole_first or request.parts or len(set(units)) != 1 or units[0].gpus != all_gpus:
        return None
    whole = units[0].slices % size == 0
    return (
        _Step(block.lends, len(units), 0 if whole else units[0].slices) if whole or len(units) == 1 else None
    )


@lru_cache(maxsize=256)
def _tree(hardware: Hardware) -> Tree:
    return build_tree(hardware.topology, tuple(range(len(hardware.gpus))))


class _Taken(NamedTuple):
    """Whole GPUs, and what they count for in the rank of a node."""

    gpus: int
    key: RankKey

    def key_with(self, idle: int) -> RankKey:
        """Returns what they count for on a node with so many idle GPUs."""
        return (*self.key, idle) if self.key[0] == 1 else (*self.key[:2], idle, *self.key[2:])


@lru_cache(maxsize=1 << 16)
def _opened(hardware: Hardware, idle: int) -> int | None:
    """Returns the idle GPU that a part opens."""
    return fragment.open_gpu(_pool_state(hardware, idle, 0))


@lru_cache(maxsize=1 << 16)
def _whole(hardware: Hardware, idle: int, full: int, count: int) -> _Taken | None:
    """Returns the idle GPUs that a container gets."""
    state = _pool_state(hardware, idle, full)
    if count == 1:
        gpu = singular.choose(state)
        return None if gpu is None else _Taken(1 << gpu, (1, 1, 0, singular.tier(state, gpu)[0]))
    found = link.choose(state, idle, count)
    if found is None:
        return None
    gpus = bits(found)
    scores = [
        pair_score(hardware.topology, one, other) for at, one in enumerate(gpus) for other in gpus[at + 1 :]
    ]
    return _Taken(found, (count, -min(scores), -sum(scores), count))


def _pool_state(hardware: Hardware, idle: int, full: int) -> PoolState:
    """Returns a pool in which just these GPUs are idle and full; how much is left on others does not matter."""
    size, slices, everything = len(hardware.gpus), hardware.one_pool, hardware.all_gpus
    free = tuple(slices if idle >> gpu & 1 else 0 if full >> gpu & 1 else 1 for gpu in range(size))
    nothing = (0,) * size
    return PoolState(
        rank=0,
        model=hardware.gpus[0].model,
        slices=slices,
        tree=_tree(hardware),
        used=tuple(slices - one for one in free),
        used_cores=nothing,
        free=free,
        free_cores=nothing,
        whole=idle,
        fragment=everything & ~idle & ~full,
        unhealthy=0,
        usable=everything,
    )
