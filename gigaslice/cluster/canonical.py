"""Rooms that are the same to a pod, as one room: then thousands of nodes that all differ share a few searches. Pure.

Whether a pod fits does not depend on which of several like GPUs has what left. Of what is left on a GPU in use only the
largest sum of parts that still goes in matters: with parts of 8 and 4 slices, 13 left are 12, and 7 are 4. And of like
GPUs a pod of three parts uses three at most, so the three with the most left stand for all. An idle GPU stays as it is,
since only such a one is given as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from gigaslice.cluster.hardware import NOTHING, GpuRoom, NodeRoom
from gigaslice.cluster.problem import Problem

__all__ = ["Canonical"]

_MOST_SUMS = 512
_MOST_REMEMBERED = 10_000


class Canonical:
    """Rooms of one kind of node as a pod tells them apart. Not for nodes that lend host memory."""

    def __init__(self, problem: Problem) -> None:
        hardware = problem.hardware
        units = [unit for block in problem.blocks for one in block.alternatives for unit in one]
        masks = sorted({unit.gpus for unit in units})
        kinds: dict[object, list[int]] = {}
        for number, gpu in enumerate(hardware.gpus):
            kind = (gpu.model, gpu.slices, *(mask >> number & 1 for mask in masks))
            kinds.setdefault(kind, []).append(number)
        self._kinds = [(gpus, any(mask >> gpus[0] & 1 for mask in masks)) for gpus in kinds.values()]
        self._slices = _sums(
            {unit.slices for one in block.alternatives for unit in one} for block in problem.blocks
        )
        self._cores = _sums(
            {unit.cores for one in block.alternatives for unit in one} for block in problem.blocks
        )
        self._most = len(hardware.gpus)
        if self._cores == [0]:
            self._most = sum(max(map(len, block.alternatives), default=0) for block in problem.blocks)
        self._known: dict[GpuRoom, tuple[bool, GpuRoom]] = {}

    def __call__(self, room: NodeRoom) -> NodeRoom:
        """Returns the room that stands for this one: a pod fits into both or into neither, for the same reason."""
        found = [NOTHING] * len(room)
        known = self._known
        if len(known) > _MOST_REMEMBERED:
            known.clear()
        for gpus, matters in self._kinds:
            if not matters:
                continue
            rows = []
            for gpu in gpus:
                one = room[gpu]
                row = known.get(one)
                if row is None:
                    row = known[one] = self._clipped(one)
                rows.append(row)
            rows.sort(reverse=True)
            for gpu, (_, one) in zip(gpus, rows[: self._most], strict=False):
                found[gpu] = one
        return tuple(found)

    def _clipped(self, one: GpuRoom) -> tuple[bool, GpuRoom]:
        """Returns what matters of a GPU's room, behind whether it is idle: such a GPU serves whatever another does."""
        if not one.foreign:
            return True, one
        free = _largest(self._slices, one.free)
        return False, GpuRoom(free, free, _largest(self._cores, one.cores), True) if free else NOTHING


def _sums(choices: Iterable[set[int]]) -> list[int] | None:
    """Returns, ascending, all that can come together on one GPU, which has one part of each container at most.

    None where that is too much to be of use.
    """
    found = {0}
    for amounts in choices:
        found |= {one + amount for one in found for amount in amounts}
        if len(found) > _MOST_SUMS:
            return None
    return sorted(found)


def _largest(sums: list[int] | None, most: int) -> int:
    """Returns the largest of the sums that is not above a number."""
    return most if sums is None else sums[bisect_right(sums, most) - 1]
