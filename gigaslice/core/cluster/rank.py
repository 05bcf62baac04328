# SPDX-License-Identifier: Apache-2.0
"""Which of the nodes that a pod fits on comes first: the keys of the Gaia algorithms, compared between nodes. Pure.

The smallest key is the best. One GPU: a GPU in use before one that would have to be opened, then the closest remainder,
then where pairs are broken already, then the node with the fewest idle GPUs. Several: the worst link of the set, by its
absolute score since costs are relative to a node, then the node with the fewest idle GPUs, then the sum of links, then
how many idle GPUs are opened. A collective runs at its worst link; behind that, a node that stays whole for a large job
is worth more than the sum (docs/simulation.md). A pod of several containers is compared container by container.
"""

from __future__ import annotations

from itertools import combinations

from gigaslice.core.cluster.hardware import NodeRoom, Taken
from gigaslice.core.cluster.problem import NodeProblem
from gigaslice.core.cluster.search import Assigned, take
from gigaslice.core.model import Request
from gigaslice.core.placement.pairs import pair_score
from gigaslice.core.placement.pool_state import set_up
from gigaslice.core.placement.singular import tier

__all__ = ["RankKey", "rank_key"]

RankKey = tuple[int, ...]


def rank_key(problem: NodeProblem, room: NodeRoom, assigned: Assigned) -> RankKey:
    """Returns the key of a node where a pod would get these GPUs."""
    key: list[int] = []
    for block, taken in zip(problem.blocks, assigned, strict=True):
        if block.lends and len(problem.blocks) > 1:
            continue
        idle = sum(gpu.free > 0 and not gpu.foreign and not gpu.own for gpu in room)
        if len(taken) == 1:
            key += (1, *_one(problem, room, taken[0], block.host), idle)
        else:
            worst, *others = _several(problem, room, taken)
            key += (len(taken), worst, idle, *others)
        room = take(problem.hardware, block, room, taken)
    return tuple(key)


def _one(problem: NodeProblem, room: NodeRoom, taken: Taken, host: bool) -> tuple[int, int, int]:
    hardware, left = problem.hardware, room[taken.gpu]
    if left.foreign or left.own:
        return 0, left.free - taken.slices, 0
    size = hardware.view(host)[taken.gpu].slices
    if taken.slices < size:
        return 1, size - taken.slices, 0
    for pool in set_up(hardware.state(room, host), Request()):
        if taken.gpu in pool.tree.members:
            return 1, 0, tier(pool, pool.tree.members.index(taken.gpu))[0]
    raise AssertionError(taken)


def _several(problem: NodeProblem, room: NodeRoom, taken: tuple[Taken, ...]) -> tuple[int, int, int]:
    scores = [
        pair_score(problem.hardware.topology, first.gpu, other.gpu) for first, other in combinations(taken, 2)
    ]
    opened = sum(not room[share.gpu].foreign and not room[share.gpu].own for share in taken)
    return -min(scores), -sum(scores), opened
