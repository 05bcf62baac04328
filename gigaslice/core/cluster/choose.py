# SPDX-License-Identifier: Apache-2.0
"""Which GPUs each container of a pod gets on a node: what placement chooses, as long as all others still fit. Pure.

Containers are served in the order of admission, each by `gigaslice.core.placement.place`, which the agents use too. Its
answer stands unless the containers after it would then find no room although there is some; then the search's answer
for that container is taken. An init container comes last: its GPUs are those that the pod has anyway, as far as they
go, because containers that start later have them back.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from gigaslice.core.cluster.hardware import NOTHING, GpuRoom, NodeRoom, Taken
from gigaslice.core.cluster.problem import ContainerBlock, NodeProblem
from gigaslice.core.cluster.search import Assigned, Matcher, take
from gigaslice.core.cluster.sequential_ranking import ranking_of
from gigaslice.core.model import NodeState, Placement, Request
from gigaslice.core.placement import Policy, place
from gigaslice.core.placement.tree import bits

__all__ = ["choose_gpus", "fits"]


def fits(problem: NodeProblem, room: NodeRoom) -> bool:
    """Whether all containers of a pod fit into the room together."""
    if problem.never is not None:
        return False
    ranking = ranking_of(problem)
    if ranking is not None:
        if ranking.key(room) is not None:
            return True
        if ranking.exact or not all(fits(alone, room) for alone in problem.alone):
            return False
    if problem.together:
        return any(
            Matcher(problem.hardware, problem.blocks, gpus).solve(0, room) is not None
            for gpus in _sets(problem, room)
        )
    return Matcher(problem.hardware, problem.blocks).solve(0, room) is not None


def choose_gpus(problem: NodeProblem, room: NodeRoom, policy: Policy = Policy.GAIA) -> Assigned | None:
    """Returns what each container gets, by block; None where they do not fit together."""
    if problem.never is not None:
        return None
    if not problem.together:
        return _choose(problem, room, problem.hardware.all_gpus, policy)
    preferred = _preferred_set(problem, room, policy)
    for gpus in (*([preferred] if preferred else ()), *_sets(problem, room)):
        assigned = _choose(problem, room, gpus, policy)
        if assigned is not None:
            return assigned
    return None


def _choose(problem: NodeProblem, room: NodeRoom, within: int, policy: Policy) -> Assigned | None:
    matcher = Matcher(problem.hardware, problem.blocks, within)
    chosen: list[tuple[Taken, ...]] = []
    before: list[NodeRoom] = []
    plan: Assigned | None = None
    for number, block in enumerate(problem.blocks):
        before.append(room)
        taken = None if block.lends else _placed(problem, block, room, within, policy)
        if taken is not None:
            left = take(problem.hardware, block, room, taken)
            rest = matcher.solve(number + 1, left)
            if rest is not None:
                plan, room = (*chosen, taken, *rest), left
                chosen.append(taken)
                continue
        if plan is None:
            plan = matcher.solve(0, room)
            if plan is None:
                return None
        chosen.append(plan[number])
        if not block.lends:
            room = take(problem.hardware, block, room, plan[number])
    for number, block in enumerate(problem.blocks):
        if block.lends:
            back = _given_back(before[number], room)
            chosen[number] = (
                _placed(problem, block, back, within, policy)
                or _placed(problem, block, before[number], within, policy)
                or chosen[number]
            )
    return tuple(chosen)


def _given_back(before: NodeRoom, after: NodeRoom) -> NodeRoom:
    """Returns what the containers that start later have, as room for one that ends before them."""
    return tuple(
        GpuRoom(
            gpu.free - left.free, gpu.own_free - left.own_free, gpu.cores - left.cores, gpu.foreign, gpu.own
        )
        if gpu.free > left.free
        else NOTHING
        for gpu, left in zip(before, after, strict=True)
    )


def _placed(
    problem: NodeProblem, block: ContainerBlock, room: NodeRoom, within: int, policy: Policy
) -> tuple[Taken, ...] | None:
    """Returns where placement puts a container; None where that finds nothing."""
    hardware = problem.hardware
    free, taken = within, list[Taken]()
    for request, gpus in block.asks:
        placed: list[Taken] | None = None
        state = hardware.state(room, block.host, block.memory_bytes)
        if request.exclusive:
            own = sum(1 << gpu for gpu in bits(gpus & free) if room[gpu].own and not room[gpu].foreign)
            placed = _place_on(state, replace(request, exclusive=False), own, policy)
        if placed is None:
            placed = _place_on(state, request, gpus & free, policy)
        if placed is None:
            return None
        taken += placed
        free &= ~sum(1 << share.gpu for share in placed)
    return tuple(taken)


def _place_on(state: NodeState, request: Request, gpus: int, policy: Policy) -> list[Taken] | None:
    if not gpus:
        return None
    placement = place(state, replace(request, only=frozenset(str(gpu) for gpu in bits(gpus))), policy)
    if not isinstance(placement, Placement):
        return None
    return [Taken(int(share.gpu), share.slices, share.cores) for share in placement.shares]


def _preferred_set(problem: NodeProblem, room: NodeRoom, policy: Policy) -> int:
    """Returns the GPUs that an agent would choose for the first container with all others in mind; 0 for none."""
    block = problem.blocks[0]
    if problem.most == 0 or len(block.asks) != 1:
        return 0
    request = replace(block.asks[0].request, gpus=problem.together, parts=(), total=problem.most, slices=None)
    state = problem.hardware.state(room, block.host, block.memory_bytes)
    shares = _place_on(state, request, block.asks[0].gpus, policy)
    return sum(1 << share.gpu for share in shares or ())


def _sets(problem: NodeProblem, room: NodeRoom) -> list[int]:
    """Returns the sets of GPUs that all containers could be on, one of each kind, in order."""
    hardware, block = problem.hardware, problem.blocks[0]
    allowed = 0
    for units in block.alternatives:
        for unit in units:
            allowed |= unit.gpus
    tried, gpu_sets = set(), []
    masks = sorted(
        {
            unit.gpus
            for container_block in problem.blocks
            for units in container_block.alternatives
            for unit in units
        }
    )
    for gpus in combinations(bits(allowed), problem.together):
        kind = tuple(
            sorted(
                (
                    hardware.gpus[gpu].model,
                    hardware.gpus[gpu].slices,
                    room[gpu],
                    [m >> gpu & 1 for m in masks],
                )
                for gpu in gpus
            )
        )
        key = repr(kind)
        if key not in tried:
            tried.add(key)
            gpu_sets.append(sum(1 << gpu for gpu in gpus))
    return gpu_sets
