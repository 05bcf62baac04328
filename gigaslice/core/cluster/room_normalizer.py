# SPDX-License-Identifier: Apache-2.0
"""Rooms that are the same to a pod, as one room: thousands of nodes that all differ share a few searches. Pure.

Whether a pod fits does not depend on which of several like GPUs has what left. Of a GPU in use only the largest sum of
parts that still goes in matters: with parts of 8 and 4 slices, 13 left are 12, and 7 are 4. And of like GPUs a pod of
three parts uses three at most, so the three with the most left stand for all. An idle GPU stays as it is, since only
such a one is given as a whole.

How a node ranks does depend on the rest, so this is for the question whether a pod fits, and why not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from gigaslice.core.cluster.hardware import NOTHING, GpuRoom, NodeRoom
from gigaslice.core.cluster.problem import NodeProblem
from gigaslice.core.model import CORES_PER_GPU

__all__ = ["RoomNormalizer"]

_MOST_SUMS = 512
"""Where there are more sums, hardly two amounts have the same largest one below them, so amounts stay as they are."""


class RoomNormalizer:
    """The rooms of one kind of node as a pod tells them apart. Not for nodes that lend host memory."""

    def __init__(self, problem: NodeProblem) -> None:
        hardware, blocks = problem.hardware, problem.blocks
        masks = sorted({unit.gpus for block in blocks for units in block.alternatives for unit in units})
        kinds: dict[object, list[int]] = {}
        for number, gpu in enumerate(hardware.gpus):
            members = tuple(mask >> number & 1 for mask in masks)
            if any(members):
                kinds.setdefault((gpu.model, gpu.slices, members), []).append(number)
        self._kinds = list(kinds.values())
        slices = [{unit.slices for units in block.alternatives for unit in units} for block in blocks]
        cores = [{unit.cores for units in block.alternatives for unit in units} for block in blocks]
        self._slices = _sums(slices, max(gpu.slices for gpu in hardware.gpus))
        self._cores = _sums(cores, CORES_PER_GPU)
        self._most = len(hardware.gpus)
        if self._cores == [0]:  # else a GPU with less memory left may have more compute left
            self._most = sum(max(map(len, block.alternatives), default=0) for block in blocks)

    def normalized(self, room: NodeRoom) -> NodeRoom:
        """Returns the room that stands for this one: a pod fits into both or neither, for the same reason."""
        stand_in = [NOTHING] * len(room)
        for gpus in self._kinds:
            # idle GPUs first: such a one serves whatever another one does
            usable = sorted(
                ((not gpu.foreign, self.usable(gpu)) for gpu in map(room.__getitem__, gpus)), reverse=True
            )
            for number, (_, gpu) in zip(gpus, usable[: self._most], strict=False):
                stand_in[number] = gpu
        return tuple(stand_in)

    def usable(self, gpu: GpuRoom) -> GpuRoom:
        """Returns what this pod could use of a GPU at most: equal ones serve it alike."""
        if not gpu.foreign:
            return gpu
        free = _largest(self._slices, gpu.free)
        return GpuRoom(free, free, _largest(self._cores, gpu.cores), foreign=True) if free else NOTHING


def _sums(choices: Iterable[set[int]], most: int) -> list[int] | None:
    """Returns, ascending, the sums up to MOST that can be of one GPU; None for too many.

    Args:
        choices: Per container the parts that it may have. A GPU has one part of each container at most.
        most: What a GPU has when it is idle.
    """
    sums = {0}
    for parts in choices:
        sums |= {total + part for total in sums for part in parts if total + part <= most}
        if len(sums) > _MOST_SUMS:
            return None
    return sorted(sums)


def _largest(sums: list[int] | None, most: int) -> int:
    """Returns the largest of the sums that is not above a number."""
    return most if sums is None else sums[bisect_right(sums, most) - 1]
