# SPDX-License-Identifier: Apache-2.0
"""Which pods would have to move so that a whole GPU, or two near ones, become free. Only reported, never done. Pure.

Free memory that lies in parts on many GPUs serves no pod that asks for a whole one. To free a GPU all its pods must go
to GPUs that are partly used already: a move that opens another whole GPU gains nothing. How many bytes move is
therefore fixed by the GPU, and the cheapest ones are tried first. Every move is what the placement code would decide
for the pod at that moment, with the GPU cordoned, so an administrator who follows a plan gets what it says: cordon the
GPU, restart the pods in the order of the plan, uncordon it.

What else keeps a pod on a node (its selectors, its volumes) is not looked at, and pods that nothing would make again
are left where they are.

The search can take a second. So it is a generator that stops after each small step, for a process that has other work
to do in between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import TypeVar

from gigaslice.core.model import NodeState, Placement, Share
from gigaslice.core.placement.tree import bits, build_tree

__all__ = ["FreeingPlan", "MovablePod", "PlaceOn", "PodMove", "Steps", "finished", "planning", "plans"]

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that stops after every step of a millisecond or two at most, and at last returns what came of it."""

_MOST_ORDERS = 24
"""Orders in which the pods of a plan are tried: all of four pods."""
_MOST_NODES = 100
"""Nodes that are asked for one pod."""


@dataclass(frozen=True, slots=True)
class MovablePod:
    """A pod that may be restarted. name: as the occupants of its node are named; node: where it is."""

    name: str
    node: str


PlaceOn = Callable[[str, NodeState, MovablePod], "tuple[Share, ...] | None"]
"""(node, its state without the pod, pod) -> what the pod would get there, or None: the placement code."""


@dataclass(frozen=True, slots=True)
class PodMove:
    """One pod that is restarted. node: where it goes. size: bytes of all that it holds."""

    pod: MovablePod
    node: str
    shares: tuple[Share, ...]
    size: int


@dataclass(frozen=True, slots=True)
class FreeingPlan:
    """Moves, in this order, that free GPUs of a node. size: bytes that move altogether."""

    node: str
    gpus: tuple[str, ...]
    moves: tuple[PodMove, ...]
    size: int


@dataclass(frozen=True, slots=True)
class _Target:
    """GPUs to be freed. names: of the pods on them."""

    node: str
    gpus: tuple[str, ...]
    names: tuple[str, ...]
    size: int

    @property
    def order(self) -> tuple[int, int, str, tuple[str, ...]]:
        return self.size, len(self.names), self.node, self.gpus


def finished(steps: Steps[T]) -> T:
    """Does all of the work at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def plans(
    nodes: Mapping[str, NodeState],
    movable: Mapping[str, MovablePod],
    place: PlaceOn,
    *,
    gpus: int = 1,
    most: int = 5,
    tries: int = 100,
) -> list[FreeingPlan]:
    """Finds what would free whole GPUs, at once: see `planning`."""
    return finished(planning(nodes, movable, place, gpus=gpus, most=most, tries=tries))


def planning(
    nodes: Mapping[str, NodeState],
    movable: Mapping[str, MovablePod],
    place: PlaceOn,
    *,
    gpus: int = 1,
    most: int = 5,
    tries: int = 100,
) -> Steps[list[FreeingPlan]]:
    """Finds what would free whole GPUs, step by step.

    Args:
        nodes: The nodes that may take pods, with all that is held there.
        movable: The pods that may be restarted, by the name of the occupant.
        place: The placement code.
        gpus: How many GPUs of one node are to be free together: 1, or 2 that are as near as any in their pool.
        most: So many plans at most.
        tries: So many GPUs at most are looked at, which bounds the time.

    Returns:
        Plans that each stand for themselves, those that move the fewest bytes first.
    """
    plans: list[FreeingPlan] = []
    planner = _Planner(nodes, movable, place)
    targets: list[_Target] = []
    for name, state in nodes.items():
        planner.learn(name, state)
        targets += _targets(name, state, movable, gpus)
        yield
    for number, target in enumerate(sorted(targets, key=lambda gpu_set: gpu_set.order)):
        if len(plans) == most or number == tries:
            break
        plan = yield from planner.plan(target)
        if plan is not None:
            plans.append(plan)
    return plans


def _targets(name: str, state: NodeState, movable: Mapping[str, MovablePod], count: int) -> Iterator[_Target]:
    """The sets of COUNT GPUs of a node that are in use, and could be freed if their pods found room elsewhere."""
    holders = state.usage().holders
    sizes = {occupant.name: _bytes(state, occupant.shares) for occupant in state.occupants}
    for members in _sets(state, count):
        names = tuple(sorted({pod for gpu in members for pod in holders[gpu]}))
        if not names or not all(state.gpus[gpu].healthy for gpu in members):
            continue
        if all(pod in movable and movable[pod].node == name for pod in names):
            gpus = tuple(state.gpus[gpu].uuid for gpu in members)
            yield _Target(name, gpus, names, sum(sizes[pod] for pod in names))


def _sets(state: NodeState, count: int) -> Iterator[tuple[int, ...]]:
    """The sets of so many GPUs of one pool that no other set of the pool is nearer to each other than."""
    for pool in state.pools():
        if count == 1:
            yield from ((gpu,) for gpu in pool.members)
        elif len(pool.members) >= count:
            tree = build_tree(state.topology, pool.members)
            sets = [
                sum(1 << gpu for gpu in members) for members in combinations(range(len(pool.members)), count)
            ]
            nearest = min(map(tree.bottleneck, sets))
            for gpu_set in sets:
                if tree.bottleneck(gpu_set) == nearest:
                    yield tuple(pool.members[gpu] for gpu in bits(gpu_set))


class _Planner:
    """The cluster as it is, and what is found out about it once."""

    def __init__(
        self, nodes: Mapping[str, NodeState], movable: Mapping[str, MovablePod], place: PlaceOn
    ) -> None:
        self._nodes = nodes
        self._movable = movable
        self._place = place
        self._whole: dict[str, frozenset[str]] = {}
        self._parts: dict[str, list[int]] = {}

    def learn(self, name: str, state: NodeState) -> None:
        """Looks at a node; before plans are made, at each."""
        self._whole[name] = _whole(state)
        self._parts[name] = _parts(state, self._whole[name])

    def plan(self, target: _Target) -> Steps[FreeingPlan | None]:
        start = self._nodes[target.node]
        sizes = {name: _bytes(start, start.occupant(name).shares) for name in target.names}
        for uuid in target.gpus:
            start = start.with_health(uuid, healthy=False)
        for order in _orders(target.names, sizes):
            changed = {target.node: start}
            moves = []
            for name in order:
                changed[target.node] = changed[target.node].without(name)
                move = yield from self._move(changed, self._movable[name], sizes[name])
                if move is None:
                    break
                moves.append(move)
                there = changed.get(move.node, self._nodes[move.node])
                changed[move.node] = there.with_occupant(name, Placement(move.shares))
            else:
                return FreeingPlan(target.node, target.gpus, tuple(moves), target.size)
        return None

    def _move(self, changed: Mapping[str, NodeState], pod: MovablePod, size: int) -> Steps[PodMove | None]:
        """Where a pod goes: onto partly used GPUs alone, and there where the least is left.

        Nodes are asked in the order of the least that can be left there, so most are never asked.
        """
        best: tuple[int, PodMove] | None = None
        need = max(share.slices for share in self._nodes[pod.node].occupant(pod.name).shares)
        for number, (bound, _, name) in enumerate(sorted(self._bounds(changed, pod, need))):
            if number == _MOST_NODES or (best is not None and bound >= best[0]):
                break
            state = changed.get(name, self._nodes[name])
            shares = self._place(name, state, pod)
            yield
            if shares is None or any(share.gpu in self._whole[name] for share in shares):
                continue
            left = sum(state.free(share.gpu) - share.slices for share in shares)
            if best is None or left < best[0]:
                best = (left, PodMove(pod, name, shares, size))
        return None if best is None else best[1]

    def _bounds(
        self, changed: Mapping[str, NodeState], pod: MovablePod, need: int
    ) -> Iterator[tuple[int, bool, str]]:
        """The nodes that could take the largest part of a pod, with the least that would be left there."""
        for name, before in self._parts.items():
            parts = _parts(changed[name], self._whole[name]) if name in changed else before
            at = bisect_left(parts, need)
            if at < len(parts):
                yield parts[at] - need, name != pod.node, name


def _orders(names: Sequence[str], sizes: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Orders in which pods are moved: the largest first, which packs best, and then as many others as are worth it."""
    largest_first = sorted(names, key=lambda name: (-sizes[name], name))
    for number, order in enumerate(permutations(largest_first)):
        if number == _MOST_ORDERS:
            return
        yield order


def _whole(state: NodeState) -> frozenset[str]:
    """The healthy GPUs that no pod holds."""
    holders = state.usage().holders
    return frozenset(
        gpu.uuid for gpu, held in zip(state.gpus, holders, strict=True) if gpu.healthy and not held
    )


def _parts(state: NodeState, whole: frozenset[str]) -> list[int]:
    """The slices that are free on each healthy GPU but those of WHOLE, ascending."""
    usage = state.usage()
    return sorted(
        gpu.slices - used
        for gpu, used in zip(state.gpus, usage.slices, strict=True)
        if gpu.healthy and gpu.slices > used and gpu.uuid not in whole
    )


def _bytes(state: NodeState, shares: Sequence[Share]) -> int:
    sizes = {gpu.uuid: gpu.slice_bytes for gpu in state.gpus}
    return sum(share.slices * sizes.get(share.gpu, 0) for share in shares)
