# SPDX-License-Identifier: Apache-2.0
"""What is left on the GPUs of each pool, laid out for decisions: the usage half of the Gaia tree (III-B).

A GPU is WHOLE without holders, a FRAGMENT with holders and slices left, FULL with none left. An unhealthy GPU
stays in its tree with nothing left and is neither WHOLE nor FRAGMENT, so costs never move and its sibling
counts as broken.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gigaslice.core.model import CORES_PER_GPU, NodeState, Request
from gigaslice.core.placement.tree import Tree, bits, build_tree


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool with its tree and what is left; GPUs are numbered inside the pool, sets of GPUs are bit masks.

    rank: order among the pools. slices: of a whole GPU. used, used_cores: what holders have. free,
    free_cores: what can be given out. whole, fragment, unhealthy: the GPUs in that state. usable: GPUs that the
    request may have at all.
    """

    rank: int
    model: str
    slices: int
    tree: Tree
    used: tuple[int, ...]
    used_cores: tuple[int, ...]
    free: tuple[int, ...]
    free_cores: tuple[int, ...]
    whole: int
    fragment: int
    unhealthy: int
    usable: int

    def fitting(self, slices: int, cores: int) -> int:
        """Return the usable GPUs with that much left; a whole GPU's worth fits only on a WHOLE GPU."""
        if slices == self.slices:
            return self.whole & self.usable
        return sum(
            1 << gpu
            for gpu in bits(self.usable)
            if self.free[gpu] >= slices and self.free_cores[gpu] >= cores
        )

    def opened_then_free(self) -> tuple[int, ...]:
        """Return a weight per GPU by which any set with fewer whole GPUs is lighter, then one with less left."""
        scale = 1 + sum(self.free)
        return tuple(scale * (self.whole >> gpu & 1) + free for gpu, free in enumerate(self.free))

    def left_after(self, taken: int) -> int:
        """Return how many subtrees would be partly broken once the set `taken` is in use: see Tree.partial."""
        return self.tree.partial(self.whole & ~taken)


def set_up(state: NodeState, request: Request) -> tuple[PoolState, ...]:
    """Return the state of every pool, in pool order."""
    usage = state.usage()
    pool_states = []
    for rank, pool in enumerate(state.pools()):
        gpus = [state.gpus[position] for position in pool.members]
        used = tuple(usage.slices[position] for position in pool.members)
        used_cores = tuple(usage.cores[position] for position in pool.members)
        held = [bool(usage.holders[position]) for position in pool.members]
        free = tuple(max(0, pool.slices - u) if c.healthy else 0 for c, u in zip(gpus, used, strict=True))
        pool_states.append(
            PoolState(
                rank=rank,
                model=pool.model,
                slices=pool.slices,
                tree=build_tree(state.topology, pool.members),
                used=used,
                used_cores=used_cores,
                free=free,
                free_cores=tuple(
                    max(0, CORES_PER_GPU - u) if c.healthy else 0
                    for c, u in zip(gpus, used_cores, strict=True)
                ),
                whole=_mask(f > 0 and not h for f, h in zip(free, held, strict=True)),
                fragment=_mask(f > 0 and h for f, h in zip(free, held, strict=True)),
                unhealthy=_mask(not c.healthy for c in gpus),
                usable=_mask(not request.only or c.uuid in request.only for c in gpus),
            )
        )
    return tuple(pool_states)


def _mask(flags: Iterable[bool]) -> int:
    return sum(1 << gpu for gpu, flag in enumerate(flags) if flag)
