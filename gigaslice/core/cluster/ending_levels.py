# SPDX-License-Identifier: Apache-2.0
"""What pods that end give back of a GPU, and what that leaves of it at which price. Pure.

A price is pods first, then slices. Which of these are tried together is decided by `ending_pods`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gigaslice.core.cluster.hardware import GpuRoom
from gigaslice.core.cluster.problem import NodeProblem

__all__ = [
    "NOBODY",
    "NOTHING_HELD",
    "EndingNeeds",
    "EndingOption",
    "Level",
    "Load",
    "Price",
    "most_of",
    "price_sum",
    "price_total",
    "serves_as_much",
]

Price = tuple[int, int]
"""Pods, slices."""


class Load(NamedTuple):
    """What is held of one GPU, or what pods give back of it."""

    slices: int
    real: int
    cores: int
    holdings: int
    exclusive: int

    def plus(self, other: Load, sign: int = 1) -> Load:
        """Both together; with SIGN -1 this without the other."""
        return Load(
            self.slices + sign * other.slices,
            self.real + sign * other.real,
            self.cores + sign * other.cores,
            self.holdings + sign * other.holdings,
            self.exclusive + sign * other.exclusive,
        )


NOTHING_HELD = Load(0, 0, 0, 0, 0)


class EndingOption(NamedTuple):
    """Pods that end together, what they give back of a GPU, and their price."""

    price: Price
    load: Load
    uids: tuple[str, ...]

    def beside(self, other: EndingOption) -> EndingOption:
        """The pods of both."""
        return EndingOption(
            price_sum(self.price, other.price), self.load.plus(other.load), self.uids + other.uids
        )


NOBODY = EndingOption((0, 0), NOTHING_HELD, ())


class Level(NamedTuple):
    """What one GPU would have left at a price. usable: as far as the pod tells amounts apart."""

    price: Price
    room: GpuRoom
    usable: GpuRoom
    uids: tuple[str, ...]


class EndingNeeds(NamedTuple):
    """What any answer has: so many GPUs, and so many slices on them altogether.

    least: slices below which a GPU in use is of no use; 0 where only idle ones serve. most, most_cores: slices and
    compute above which a GPU in use is of no more use. most_gpus: so many GPUs are needed at most.
    """

    gpus: int
    slices: int
    least: int
    most: int
    most_cores: int
    most_gpus: int

    @classmethod
    def of(cls, problem: NodeProblem) -> EndingNeeds:
        """What a pod needs on a kind of node."""
        blocks = problem.blocks
        units = [unit for block in blocks for units in block.alternatives for unit in units]
        return cls(
            max((min(map(len, block.alternatives), default=1) for block in blocks), default=1),
            sum(
                min((sum(unit.slices for unit in units) for units in block.alternatives), default=0)
                for block in blocks
                if not block.lends
            ),
            min((unit.slices for unit in units if unit.slices), default=0),
            sum(max((unit.slices for units in block.alternatives for unit in units), default=0) for block in blocks),
            sum(max((unit.cores for units in block.alternatives for unit in units), default=0) for block in blocks),
            sum(max(map(len, block.alternatives), default=0) for block in blocks),
        )  # fmt: skip


def price_sum(first: Price, second: Price) -> Price:
    """Both together."""
    return first[0] + second[0], first[1] + second[1]


def price_total(prices: Iterable[Price]) -> Price:
    """All together."""
    pods = slices = 0
    for price in prices:
        pods, slices = pods + price[0], slices + price[1]
    return pods, slices


def most_of(levels: Sequence[Level]) -> GpuRoom:
    """Returns a room that serves whatever any of them does."""
    rooms = [level.room for level in levels]
    return GpuRoom(
        max(room.free for room in rooms),
        max(room.own_free for room in rooms),
        max(room.cores for room in rooms),
        all(room.foreign for room in rooms),
    )


def serves_as_much(room: GpuRoom, other: GpuRoom) -> bool:
    """Whether whatever OTHER serves, ROOM does."""
    return (
        room.free >= other.free
        and room.own_free >= other.own_free
        and room.cores >= other.cores
        and (other.foreign or not room.foreign)
    )
