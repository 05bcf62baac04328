# SPDX-License-Identifier: Apache-2.0
"""Whether a pod fits on a node as it is now, and if not, the first reason that holds. Pure."""

from __future__ import annotations

from functools import lru_cache

from gigaslice.core.cluster.choose import fits
from gigaslice.core.cluster.hardware import NOTHING, NodeRoom
from gigaslice.core.cluster.problem import NodeProblem
from gigaslice.core.cluster.refusal import RefusalReason
from gigaslice.core.model import CORES_PER_GPU

__all__ = ["reason_without_room", "refusal_reason"]


def refusal_reason(problem: NodeProblem, room: NodeRoom, unhealthy: int = 0) -> RefusalReason | None:
    """Returns why a pod does not fit; None where it does. The reason depends on the arguments alone.

    Args:
        problem: The pod on this kind of node.
        room: What is left; nothing on unhealthy GPUs.
        unhealthy: The set of GPUs that get no containers.
    """
    if problem.never is not None:
        return problem.never
    return None if fits(problem, room) else reason_without_room(problem, room, unhealthy)


def reason_without_room(problem: NodeProblem, room: NodeRoom, unhealthy: int) -> RefusalReason:
    """Returns why a pod does not fit that could fit on this kind of node, and does not fit into the room."""
    if not _fits_when_idle(problem, 0):
        return RefusalReason.TOO_FEW if len(problem.blocks) == 1 else RefusalReason.TOGETHER_NEVER
    if unhealthy and not _fits_when_idle(problem, unhealthy):
        return RefusalReason.UNHEALTHY
    if len(problem.blocks) == 1 and not problem.together:
        return _short_of(problem, room)
    for alone in problem.alone:
        if not fits(alone, room):
            return _short_of(alone, room)
    return RefusalReason.TOGETHER


@lru_cache(maxsize=256)  # a kind of node stands for thousands of nodes
def _fits_when_idle(problem: NodeProblem, unhealthy: int) -> bool:
    idle = problem.hardware.idle()
    return fits(
        problem, tuple(NOTHING if unhealthy >> gpu & 1 else gpu_room for gpu, gpu_room in enumerate(idle))
    )


def _short_of(problem: NodeProblem, room: NodeRoom) -> RefusalReason:
    """Returns what a pod of one container lacks."""
    (block,) = problem.blocks
    if block.cores:
        all_compute = tuple(gpu._replace(cores=CORES_PER_GPU) if gpu.free else gpu for gpu in room)
        if fits(problem, all_compute):
            return RefusalReason.NO_COMPUTE
    units = block.alternatives[0]
    sizes = problem.hardware.view(block.host)
    whole = all(unit.slices in (0, *(gpu.slices for gpu in sizes)) for unit in units)
    return RefusalReason.NO_GPU if whole or block.exclusive or len(units) > 1 else RefusalReason.NO_ROOM
