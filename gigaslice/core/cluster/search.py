# SPDX-License-Identifier: Apache-2.0
"""Whether all containers of a pod fit on a node together, exactly: one assignment is found if there is any. Pure.

A depth-first search over the units of each container. GPUs that no unit tells apart and that have the same left are
tried once, and what has led nowhere is remembered, so that the many equal GPUs of a machine cost nothing. The order is
best fit; which assignment is the best one is not decided here (see `choose`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gigaslice.core.cluster.hardware import GpuRoom, Hardware, NodeRoom, Taken
from gigaslice.core.cluster.problem import ContainerBlock, GpuAmount
from gigaslice.core.model import CORES_PER_GPU

__all__ = ["Matcher", "take"]

_MOST_STEPS = 100_000
"""Partial assignments tried before a pod counts as not fitting: seconds of work, which no pod of a real user needs."""

Assigned = tuple[tuple[Taken, ...], ...]
"""Per block, what it takes."""


def take(hardware: Hardware, block: ContainerBlock, room: NodeRoom, taken: Sequence[Taken]) -> NodeRoom:
    """Returns the room that is left for the pod's other containers."""
    left = list(room)
    for gpu, slices, cores in taken:
        gpu_room = left[gpu]
        real = hardware.real_slices(gpu, slices, block.host)
        left[gpu] = GpuRoom(
            gpu_room.free - slices,
            gpu_room.own_free - real,
            max(0, gpu_room.cores - cores),
            gpu_room.foreign,
            own=True,
        )
    return tuple(left)


class Matcher:
    """The search for one pod on one kind of node. within: the GPUs that may be used at all."""

    def __init__(
        self, hardware: Hardware, blocks: Sequence[ContainerBlock], within: int | None = None
    ) -> None:
        self._hardware = hardware
        self._blocks = tuple(blocks)
        self._within = hardware.all_gpus if within is None else within
        masks = sorted({unit.gpus for block in blocks for units in block.alternatives for unit in units})
        self._alike = [
            (gpu.slices, own.slices, tuple(mask >> number & 1 for mask in masks))
            for number, (gpu, own) in enumerate(zip(hardware.gpus, hardware.own, strict=True))
        ]
        self._dead_ends: set[object] = set()
        self._steps = 0

    def solve(self, start: int, room: NodeRoom) -> Assigned | None:
        """Returns what the blocks from START on take; None where they do not fit into the room together."""
        if start == len(self._blocks):
            return ()
        key = (start, tuple(sorted(zip(self._alike, room, strict=True))))
        if key in self._dead_ends:
            return None
        block = self._blocks[start]
        for taken in self._ways(block, room):
            rest = self.solve(start + 1, room if block.lends else take(self._hardware, block, room, taken))
            if rest is not None:
                return (taken, *rest)
            if block.lends:  # what it takes changes nothing for the others
                break
        if self._steps <= _MOST_STEPS:
            self._dead_ends.add(key)
        return None

    def _ways(self, block: ContainerBlock, room: NodeRoom) -> Iterator[tuple[Taken, ...]]:
        order = sorted(
            (gpu for gpu in range(len(room)) if self._within >> gpu & 1),
            key=lambda gpu: (not (room[gpu].foreign or room[gpu].own), room[gpu].free, gpu),
        )
        for units in block.alternatives:
            yield from self._fill(block, units, room, order, ())

    def _fill(
        self,
        block: ContainerBlock,
        units: tuple[GpuAmount, ...],
        room: NodeRoom,
        order: list[int],
        taken: tuple[Taken, ...],
    ) -> Iterator[tuple[Taken, ...]]:
        """Yields the ways to serve the units after those that are TAKEN, whose GPUs are in the order of search."""
        number = len(taken)
        if number == len(units):
            yield taken
            return
        unit = units[number]
        first = order.index(taken[-1].gpu) + 1 if number and units[number - 1] == unit else 0
        used = {share.gpu for share in taken}
        fitting = [
            (gpu, fit)
            for gpu in order[first:]
            if gpu not in used and (fit := self._fit(block, unit, gpu, room[gpu])) is not None
        ]
        equal = next((n for n, other in enumerate(units[number:]) if other != unit), len(units) - number)
        if len(fitting) < equal:
            return
        tried = set()
        for gpu, fit in fitting:
            kind = (self._alike[gpu], room[gpu])
            if kind in tried:
                continue
            tried.add(kind)
            self._steps += 1
            if self._steps > _MOST_STEPS:
                return
            yield from self._fill(block, units, room, order, (*taken, fit))

    def _fit(self, block: ContainerBlock, unit: GpuAmount, gpu: int, room: GpuRoom) -> Taken | None:
        if not unit.gpus >> gpu & 1:
            return None
        size = self._hardware.view(block.host)[gpu].slices
        slices = unit.slices or size
        if not 0 < slices <= self._hardware.free(room, gpu, block.host, block.memory_bytes):
            return None
        held = room.foreign or room.own
        if slices == size:
            return None if held else Taken(gpu, slices, CORES_PER_GPU)
        if block.exclusive and room.foreign:
            return None
        return Taken(gpu, slices, unit.cores) if unit.cores <= room.cores else None
