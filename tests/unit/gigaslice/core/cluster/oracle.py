# SPDX-License-Identifier: Apache-2.0
"""The rules of an assignment, by enumeration: every way to serve every container, tried one after the other.

Written from the rules alone and for nodes of a few GPUs. It shares nothing with the code that it judges: no trees, no
preference, no requests for placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import NamedTuple


class Amount(NamedTuple):
    """Of one GPU: slices, and the compute that is promised."""

    slices: int
    cores: int


Ways = dict[int, Amount]  # by GPU


@dataclass(frozen=True)
class OracleGpu:
    """size: slices. used, cores: what other pods hold. shut: unhealthy, or another pod's alone."""

    model: str
    size: int
    used: int = 0
    cores: int = 0
    shut: bool = False

    @property
    def held(self) -> bool:
        return self.used > 0


@dataclass(frozen=True)
class OracleContainer:
    """What a container asks for, in one of three ways: slices, whole gpus, or classes as (GPUs, count, slices or
    0, compute or 0).

    parts, gpus, whole_first: how slices are divided. lends: it is an init container. allowed: GPUs of annotations.
    """

    slices: int = 0
    gpus: int = 0
    classes: tuple[tuple[frozenset[int], int, int, int], ...] = ()
    divided: int = 0
    parts: tuple[int, ...] = ()
    whole_first: bool = False
    cores: int = 0
    exclusive: bool = False
    lends: bool = False
    allowed: frozenset[int] | None = None


def ways(gpus: Sequence[OracleGpu], one: OracleContainer) -> Iterator[Ways]:
    """Every division of a container over different GPUs, whether there is room or not."""
    everything = frozenset(range(len(gpus))) if one.allowed is None else one.allowed
    if one.classes:
        yield from _of_classes(gpus, one.classes, everything, one.cores)
        return
    pools: dict[tuple[str, int], list[int]] = {}
    for number, gpu in enumerate(gpus):
        if number in everything:
            pools.setdefault((gpu.model, gpu.size), []).append(number)
    sized = [(members, sizes) for (_, size), members in pools.items() if (sizes := _sizes(one, size))]
    sized = [
        (members, sizes)
        for members, sizes in sized
        if len(sizes) <= len(members) and max(sizes) <= gpus[members[0]].size
    ]
    for members, sizes in sized:
        for chosen in permutations(members, len(sizes)):
            yield {
                gpu: amount(gpus[gpu], slices, one.cores) for gpu, slices in zip(chosen, sizes, strict=True)
            }


def amount(gpu: OracleGpu, slices: int, cores: int) -> Amount:
    """A whole GPU comes with all its compute; nothing else does, whoever else may be on it."""
    return Amount(slices, 100 if slices == gpu.size else cores)


def _sizes(one: OracleContainer, size: int) -> list[int]:
    if one.gpus:
        return [size] * one.gpus
    if one.parts:
        return list(one.parts)
    if one.whole_first and one.slices > size and one.slices % size:
        return [size] * (one.slices // size) + [one.slices % size]
    count = one.divided or -(-one.slices // size)
    return [one.slices // count + (number < one.slices % count) for number in range(count)]


def _of_classes(
    gpus: Sequence[OracleGpu],
    classes: Sequence[tuple[frozenset[int], int, int, int]],
    allowed: frozenset[int],
    cores: int,
) -> Iterator[Ways]:
    if not classes:
        yield {}
        return
    (members, count, slices, own_cores), rest = classes[0], classes[1:]
    for chosen in combinations(sorted(members & allowed), count):
        for other in _of_classes(gpus, rest, allowed - set(chosen), cores):
            yield {
                **other,
                **{gpu: amount(gpus[gpu], slices or gpus[gpu].size, own_cores or cores) for gpu in chosen},
            }


@dataclass(frozen=True)
class Left:
    """What a pod has taken so far, per GPU: slices, and compute."""

    slices: tuple[int, ...]
    cores: tuple[int, ...]


def fits_now(gpus: Sequence[OracleGpu], left: Left, one: OracleContainer, way: Mapping[int, Amount]) -> bool:
    """Whether there is room for a division beside other pods and what the pod has already.

    No GPU's compute is promised beyond 100 per cent, by the containers of one pod or of several.
    """
    for number, (slices, cores) in way.items():
        gpu = gpus[number]
        if gpu.shut or slices > gpu.size - gpu.used - left.slices[number]:
            return False
        if one.exclusive and gpu.held:
            return False
        if slices == gpu.size and (gpu.held or left.slices[number]):
            return False
        if cores and slices < gpu.size and cores > 100 - gpu.cores - left.cores[number]:
            return False
    return True


def taken(left: Left, way: Mapping[int, Amount]) -> Left:
    slices, cores = list(left.slices), list(left.cores)
    for number, one in way.items():
        slices[number] += one.slices
        cores[number] += one.cores
    return Left(tuple(slices), tuple(cores))


def feasible(gpus: Sequence[OracleGpu], containers: Sequence[OracleContainer], together: int = 0) -> bool:
    """Whether there is any assignment. together: on how many GPUs all containers are; 0 for no such rule."""
    nothing = Left((0,) * len(gpus), (0,) * len(gpus))
    if not together:
        return _feasible(gpus, containers, nothing, frozenset(range(len(gpus))))
    return any(
        _feasible(gpus, containers, nothing, frozenset(chosen))
        for chosen in combinations(range(len(gpus)), together)
    )


def fewest(gpus: Sequence[OracleGpu], containers: Sequence[OracleContainer]) -> int:
    """On how few GPUs the first container can be, if all others are to fit as well. It does not lend."""
    first, rest = containers[0], containers[1:]
    nothing = Left((0,) * len(gpus), (0,) * len(gpus))
    return min(
        len(way)
        for way in ways(gpus, first)
        if fits_now(gpus, nothing, first, way)
        and _feasible(gpus, rest, taken(nothing, way), frozenset(range(len(gpus))))
    )


def _feasible(
    gpus: Sequence[OracleGpu], containers: Sequence[OracleContainer], left: Left, within: frozenset[int]
) -> bool:
    if not containers:
        return True
    one, rest = containers[0], containers[1:]
    return any(
        _feasible(gpus, rest, left if one.lends else taken(left, way), within)
        for way in ways(gpus, one)
        if within.issuperset(way) and fits_now(gpus, left, one, way)
    )


def valid(
    gpus: Sequence[OracleGpu], containers: Sequence[OracleContainer], found: Sequence[Mapping[int, Amount]]
) -> bool:
    """Whether an assignment keeps every rule, and says of each share what it promises."""
    left = Left((0,) * len(gpus), (0,) * len(gpus))
    for one, way in zip(containers, found, strict=True):
        if dict(way) not in list(ways(gpus, one)) or not fits_now(gpus, left, one, way):
            return False
        if not one.lends:
            left = taken(left, way)
    return True
