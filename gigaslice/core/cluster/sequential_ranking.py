# SPDX-License-Identifier: Apache-2.0
"""The rank of a node for a pod of simple containers, placed one after the other without a search. Pure.

Thousands of nodes are ranked when a shape of request is seen for the first time. A search and a placement for each of
them take up to a millisecond a node; this takes some microseconds.

Placement's answer for a container stands as long as the containers after it still fit (see `choose`). Where every
container has found its GPUs in its turn, every one of these answers stands, so the pod fits, and the node's rank
follows. Where one has not, only the search can tell whether another order would have helped. For a pod of one container
there is no other order, so then it does not fit.

This follows the policy `gaia`, for containers that have a part of one GPU, equal parts of several, or whole GPUs, on
nodes whose GPUs are all alike and may all serve the pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gigaslice.core.cluster.hardware import Hardware, NodeRoom
from gigaslice.core.cluster.problem import ContainerBlock, NodeProblem
from gigaslice.core.cluster.rank import RankKey
from gigaslice.core.placement import fragment, link, singular
from gigaslice.core.placement.pairs import pair_score
from gigaslice.core.placement.pool_state import PoolState
from gigaslice.core.placement.subset import Search, Weights, cheapest
from gigaslice.core.placement.tree import Tree, bits, build_tree

__all__ = ["SequentialRanking", "ranking_of"]


class _Step(NamedTuple):
    """One container.

    Attributes:
        ranked: Whether it counts for the rank, and keeps its GPUs while later containers are placed.
        gpus: On how many GPUs it is.
        slices: Of each; 0 for whole GPUs.
        cores: Per cent of each.
    """

    ranked: bool
    gpus: int
    slices: int
    cores: int


@dataclass(frozen=True, slots=True)
class SequentialRanking:
    """A pod of such containers on a kind of node. exact: without a rank, the pod does not fit."""

    hardware: Hardware
    steps: tuple[_Step, ...]

    @property
    def exact(self) -> bool:
        """Whether a pod that has no rank does not fit."""
        return len(self.steps) == 1

    def key(self, room: NodeRoom) -> RankKey | None:
        """Returns the rank of a node; None where a container would find no GPU in its turn."""
        left = _RoomLeft(self.hardware, room)
        key: list[int] = []
        for step in self.steps:
            if not step.slices:
                part = left.whole_gpus(step)
            elif step.gpus > 1:
                part = left.equal_parts(step)
            else:
                part = left.part(step)
            if part is None:
                return None
            if step.ranked:
                key += part
        return tuple(key)


class _RoomLeft:
    """What the containers so far leave of a room. Each method takes what a container gets, and returns its rank."""

    def __init__(self, hardware: Hardware, room: NodeRoom) -> None:
        self._hardware = hardware
        self._free = [gpu.free for gpu in room]
        self._cores = [gpu.cores for gpu in room]
        self._idle = self._full = 0
        for number, gpu in enumerate(room):
            if not gpu.free:
                self._full |= 1 << number
            elif not gpu.foreign:
                self._idle |= 1 << number

    def whole_gpus(self, step: _Step) -> RankKey | None:
        idle = self._idle
        whole = _whole(self._hardware, idle, self._full, step.gpus)
        if whole is None:
            return None
        if step.ranked:
            self._idle, self._full = idle & ~whole.gpus, self._full | whole.gpus
            for number in bits(whole.gpus):
                self._free[number] = 0
        return whole.key_with(idle.bit_count())

    def equal_parts(self, step: _Step) -> RankKey | None:
        """They are the last container's: which GPUs it has matters to no other one."""
        fitting = sum(
            1 << number
            for number, (free, cores) in enumerate(zip(self._free, self._cores, strict=True))
            if free >= step.slices and cores >= step.cores
        )
        links = _parts(self._hardware, fitting, fitting & self._idle, step.gpus)
        return None if links is None else (step.gpus, links[0], self._idle.bit_count(), *links[1:])

    def part(self, step: _Step) -> RankKey | None:
        idle = self._idle
        number = self._fragment(step.slices, step.cores)
        opens = number is None
        if number is None:
            number = _opened(self._hardware, idle)
        if number is None:
            return None
        left = (self._hardware.one_pool if opens else self._free[number]) - step.slices
        if step.ranked:
            self._idle &= ~(1 << number)
            self._free[number] = left
            self._cores[number] -= step.cores
            self._full |= (not left) << number
        return 1, int(opens), left, 0, idle.bit_count()

    def _fragment(self, slices: int, cores: int) -> int | None:
        """Returns the GPU in use that a part is put on; None where it has to open one."""
        access = _tree(self._hardware).access_cost
        fitting = [
            (free, self._cores[number] if cores else 0, access[number], number)
            for number, free in enumerate(self._free)
            if free >= slices and self._cores[number] >= cores and not self._idle >> number & 1
        ]
        return min(fitting)[-1] if fitting else None


@lru_cache(maxsize=1024)
def ranking_of(problem: NodeProblem) -> SequentialRanking | None:
    """Returns how a pod is ranked on a kind of node; None where it has other containers, or other GPUs."""
    size = problem.hardware.one_pool
    if not size or problem.hardware.lends or problem.together or problem.never is not None:
        return None
    several = len(problem.blocks) > 1
    steps = []
    for number, block in enumerate(problem.blocks):
        step = _step(block, problem.hardware.all_gpus, size, several)
        if step is None or (step.slices and step.gpus > 1 and number + 1 < len(problem.blocks)):
            return None
        steps.append(step)
    return SequentialRanking(problem.hardware, tuple(steps))


def _step(block: ContainerBlock, all_gpus: int, size: int, several: bool) -> _Step | None:
    if block.exclusive or len(block.asks) != 1 or len(block.alternatives) != 1:
        return None
    request, units = block.asks[0].request, block.alternatives[0]
    if request.whole_first or request.parts or len(set(units)) != 1 or units[0].gpus != all_gpus:
        return None
    ranked = not (block.lends and several)
    if units[0].slices % size == 0:
        return _Step(ranked, len(units), 0, 0)
    if len(units) > 1 and not ranked:
        return None
    return _Step(ranked, len(units), units[0].slices, units[0].cores)


@lru_cache(maxsize=256)
def _tree(hardware: Hardware) -> Tree:
    return build_tree(hardware.topology, tuple(range(len(hardware.gpus))))


class _Whole(NamedTuple):
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
def _whole(hardware: Hardware, idle: int, full: int, count: int) -> _Whole | None:
    """Returns the idle GPUs that a container gets."""
    state = _pool_state(hardware, idle, full)
    if count == 1:
        gpu = singular.choose(state)
        return None if gpu is None else _Whole(1 << gpu, (1, 1, 0, singular.tier(state, gpu)[0]))
    gpus = link.choose(state, idle, count)
    return None if gpus is None else _Whole(gpus, (count, *_scores(hardware, gpus), count))


@lru_cache(maxsize=1 << 16)
def _parts(hardware: Hardware, fitting: int, idle: int, count: int) -> tuple[int, int, int] | None:
    """Returns what equal parts of several GPUs count for: the links of the best set, and how many GPUs it opens."""
    opened = tuple(idle >> number & 1 for number in range(len(hardware.gpus)))
    nothing = (0,) * len(opened)
    gpus = cheapest(Search(_tree(hardware), idle, fitting, count, Weights(opened, nothing)))
    return None if gpus is None else (*_scores(hardware, gpus), (gpus & idle).bit_count())


def _scores(hardware: Hardware, gpus: int) -> tuple[int, int]:
    """Returns the worst and the summed link of a set, as scores with the sign turned."""
    chosen = bits(gpus)
    scores = [
        pair_score(hardware.topology, first, second)
        for at, first in enumerate(chosen)
        for second in chosen[at + 1 :]
    ]
    return -min(scores), -sum(scores)


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
        used=tuple(slices - left for left in free),
        used_cores=nothing,
        free=free,
        free_cores=nothing,
        whole=idle,
        fragment=everything & ~idle & ~full,
        unhealthy=0,
        usable=everything,
    )
