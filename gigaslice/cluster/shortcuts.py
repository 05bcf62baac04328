"""The common pod, one container whose GPUs are interchangeable, judged and ranked without a search. Pure.

Thousands of nodes are judged for a shape of request that is seen for the first time. For most shapes counting is
enough, and what depends on links has few forms: which GPUs are idle, which are in use, how many are needed. The answers
are those of search and placement, which tests hold them to; None means that only those can tell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from gigaslice.cluster.hardware import Hardware, NodeRoom, Tally
from gigaslice.cluster.problem import Problem, Unit
from gigaslice.cluster.rank import RankKey
from gigaslice.model import NodeState
from gigaslice.placement.pairs import pair_score
from gigaslice.placement.subset import Search, Weights, cheapest
from gigaslice.placement.tree import Tree, bits, build_tree

__all__ = ["Counting", "quick_fits", "quick_key"]


@dataclass(frozen=True, slots=True)
class _PoolOfNode:
    """One pool: its GPUs, its tree, and for each GPU the others under its parent."""

    gpus: int
    size: int
    tree: Tree
    siblings: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counting:
    """A pod whose one container may have any GPU of a node, all of which are alike: a tally says everything.

    Attributes:
        hardware: The node's.
        whole: How many idle GPUs it asks for.
        left: What it leaves of each of them: of a GPU that it has for itself, not of a whole one.
        parts: For each smaller part, how many GPUs have that much or more in use by then, and the part.
        ranks: Whether `key` can tell, too.
    """

    hardware: Hardware
    whole: int
    left: int
    parts: tuple[tuple[int, int], ...]
    ranks: bool

    @classmethod
    def of(cls, problem: Problem) -> Counting | None:
        """Returns the rules for a pod on a kind of node; None where counting is not enough."""
        size, block = problem.hardware.one_pool, problem.blocks[0]
        if problem.never is not None or not size or not _lone(problem) or len(block.alternatives) != 1:
            return None
        units = block.alternatives[0]
        if any(unit.gpus != problem.hardware.all_gpus for unit in units):
            return None
        alone = len(units) if block.exclusive else sum(unit.slices % size == 0 for unit in units)
        parts = tuple((at, units[at].slices) for at in range(alone, len(units)))
        if any(unit.cores or unit.slices % size == 0 for unit in units[alone:]):
            return None
        ranks = _one_request(problem) and not (alone and parts)
        return cls(problem.hardware, alone, -units[0].slices % size if alone else 0, parts, ranks)

    def fits(self, tally: Tally) -> bool:
        """Whether the pod fits."""
        if self.whole and tally.idle.bit_count() < self.whole:
            return False
        free = tally.free
        return all(at < len(free) and free[at] >= slices for at, slices in self.parts)

    def key(self, tally: Tally) -> RankKey | None:
        """Returns the rank of a node that the pod fits on, for the policy `gaia`; None where that takes more."""
        if not self.ranks:
            return None
        idle = tally.idle.bit_count()
        if self.whole > 1:
            worst, *others = _links(self.hardware, 0, tally.idle, tally.idle, self.whole)
            return (self.whole, worst, idle, *others)
        if self.whole:
            tier = 0 if self.left else _tier(self.hardware, 0, tally.idle, tally.idle, tally.full)
            return 1, 1, self.left, tier, idle
        if len(self.parts) > 1:
            return None
        slices = self.parts[0][1]
        at = bisect_left(tally.used, slices)
        if at < len(tally.used):
            return 1, 0, tally.used[at] - slices, 0, idle
        return 1, 1, self.hardware.one_pool - slices, 0, idle


def quick_fits(problem: Problem, room: NodeRoom) -> bool | None:
    """Returns whether a pod fits into the room; None where that takes a search."""
    if not _simple(problem):
        return None
    return any(_enough(problem.hardware, units, room) for units in problem.blocks[0].alternatives)


def quick_key(problem: Problem, room: NodeRoom) -> RankKey | None:
    """Returns the rank of a node that a pod fits on, for the policy `gaia`; None where that takes placement."""
    block = problem.blocks[0]
    if not _simple(problem) or not _one_request(problem):
        return None
    idle = sum(1 << gpu for gpu, one in enumerate(room) if one.free > 0 and not one.foreign)
    for gpus, alike in groupby(block.alternatives, key=len):
        rank = _one if gpus == 1 else _several
        key = rank(problem.hardware, list(alike), room, idle)
        if key is not None:
            return key or None
    return None


def _lone(problem: Problem) -> bool:
    return len(problem.blocks) == 1 and not problem.together and not problem.hardware.lends


def _simple(problem: Problem) -> bool:
    if not _lone(problem) or problem.blocks[0].exclusive:
        return False
    return all(len({unit.gpus for unit in units}) == 1 for units in problem.blocks[0].alternatives)


def _one_request(problem: Problem) -> bool:
    """Whether placement is asked once, for equal parts."""
    block = problem.blocks[0]
    if len(block.asks) != 1 or block.asks[0].request.whole_first or block.asks[0].request.parts:
        return False
    return all(len(set(units)) == 1 for units in block.alternatives)


def _fitting(hardware: Hardware, unit: Unit, room: NodeRoom) -> int:
    """Returns the GPUs that could serve a unit."""
    found = 0
    for gpu, one in enumerate(room):
        if not unit.gpus >> gpu & 1:
            continue
        size = hardware.gpus[gpu].slices
        slices = unit.slices or size
        if slices == size:
            fits = one.free == size > 0 and not one.foreign
        else:
            fits = one.free >= slices and one.cores >= unit.cores
        found |= fits << gpu
    return found


def _enough(hardware: Hardware, units: tuple[Unit, ...], room: NodeRoom) -> bool:
    """Whether units, largest first, find different GPUs: who could serve a unit could serve each smaller one."""
    number = len(units)
    while number:
        unit = units[number - 1]
        if _fitting(hardware, unit, room).bit_count() < number:
            return False
        while number and units[number - 1] == unit:
            number -= 1
    return True


def _one(
    hardware: Hardware, alternatives: Sequence[tuple[Unit, ...]], room: NodeRoom, idle: int
) -> RankKey | None:
    """Returns the rank for a single GPU; empty where that takes placement, None where there is no room."""
    fitting = 0
    for (unit,) in alternatives:
        fitting |= _fitting(hardware, unit, room)
    slices = {
        gpu: unit.slices or hardware.gpus[gpu].slices for (unit,) in alternatives for gpu in bits(unit.gpus)
    }
    used = [room[gpu].free - slices[gpu] for gpu in bits(fitting & ~idle)]
    if used:
        if len({unit.slices for (unit,) in alternatives}) > 1:
            return ()
        return 1, 0, min(used), 0, idle.bit_count()
    for number, pool in enumerate(_pools(hardware)):
        here = fitting & idle & pool.gpus
        if here:
            left = pool.size - slices[bits(here)[0]]
            full = sum(1 << gpu for gpu in bits(pool.gpus) if room[gpu].free == 0)
            tier = 0 if left else _tier(hardware, number, here, idle & pool.gpus, full)
            return 1, 1, left, tier, idle.bit_count()
    return None


def _several(
    hardware: Hardware, alternatives: Sequence[tuple[Unit, ...]], room: NodeRoom, idle: int
) -> RankKey | None:
    """Returns the rank for as many GPUs of a pool as each alternative has units; None where there is no room."""
    for number, pool in enumerate(_pools(hardware)):
        for units in alternatives:
            if not units[0].gpus & pool.gpus:
                continue
            fitting = _fitting(hardware, units[0], room) & pool.gpus
            if fitting.bit_count() >= len(units):
                worst, *others = _links(hardware, number, fitting, fitting & idle, len(units))
                return (len(units), worst, idle.bit_count(), *others)
    return None


@lru_cache(maxsize=256)
def _pools(hardware: Hardware) -> tuple[_PoolOfNode, ...]:
    """Returns the pools of a node, in the order in which they are tried."""
    found = []
    for pool in NodeState(hardware.gpus, hardware.topology).pools():
        tree = build_tree(hardware.topology, pool.members)
        siblings = [0] * len(hardware.gpus)
        for number, gpu in enumerate(pool.members):
            others = tree.parent[number] & ~(1 << number)
            siblings[gpu] = sum(1 << pool.members[other] for other in bits(others))
        gpus = sum(1 << gpu for gpu in pool.members)
        found.append(_PoolOfNode(gpus, pool.slices, tree, tuple(siblings)))
    return tuple(found)


@lru_cache(maxsize=1 << 15)
def _tier(hardware: Hardware, pool: int, candidates: int, idle: int, full: int) -> int:
    """Returns the best tier of Singular among the candidates: see `gigaslice.placement.singular`."""
    siblings = _pools(hardware)[pool].siblings
    best = 2
    for gpu in bits(candidates):
        others = siblings[gpu]
        if not others or others & idle == others:
            continue
        best = min(best, 0 if others & full == others else 1)
    return best


@lru_cache(maxsize=1 << 16)
def _links(hardware: Hardware, pool: int, candidates: int, idle: int, count: int) -> tuple[int, int, int]:
    """Returns the worst and the summed link of the best set, as scores with the sign turned, and how many it opens."""
    tree = _pools(hardware)[pool].tree
    members = {gpu: number for number, gpu in enumerate(tree.members)}
    opened = tuple(idle >> gpu & 1 for gpu in tree.members)
    chosen = cheapest(
        Search(
            tree,
            sum(1 << members[gpu] for gpu in bits(idle)),
            sum(1 << members[gpu] for gpu in bits(candidates)),
            count,
            Weights(opened, (0,) * len(opened)),
        )
    )
    if chosen is None:
        raise AssertionError("there are enough candidates")
    gpus = [tree.members[number] for number in bits(chosen)]
    scores = [
        pair_score(hardware.topology, one, other) for at, one in enumerate(gpus) for other in gpus[at + 1 :]
    ]
    return -min(scores), -sum(scores), (chosen & sum(1 << members[gpu] for gpu in bits(idle))).bit_count()
