"""The rules of an assignment, by enumeration: every way to serve every container, tried one after the other.

Written from the rules alone and for nodes of a few GPUs. It shares nothing with the code that it judges: no trees, no
preference, no requests for placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

Ways = dict[int, int]  # GPU -> slices


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
    """What a container asks for, in one of three ways: slices, whole gpus, or classes as (GPUs, count, slices or 0).

    parts, gpus, whole_first: how slices are divided. lends: it is an init container. allowed: GPUs of annotations.
    """

    slices: int = 0
    gpus: int = 0
    classes: tuple[tuple[frozenset[int], int, int], ...] = ()
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
        yield from _of_classes(gpus, one.classes, everything)
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
    fewest = min((len(sizes) for _, sizes in sized), default=0)
    for members, sizes in sized:
        if len(sizes) == fewest:
            for chosen in permutations(members, len(sizes)):
                yield dict(zip(chosen, sizes, strict=True))


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
    classes: Sequence[tuple[frozenset[int], int, int]],
    allowed: frozenset[int],
) -> Iterator[Ways]:
    if not classes:
        yield {}
        return
    (members, count, slices), rest = classes[0], classes[1:]
    for chosen in combinations(sorted(members & allowed), count):
        for other in _of_classes(gpus, rest, allowed - set(chosen)):
            yield {**other, **{gpu: slices or gpus[gpu].size for gpu in chosen}}


@dataclass(frozen=True)
class Left:
    """What a pod has taken so far, per GPU: slices, and compute."""

    slices: tuple[int, ...]
    cores: tuple[int, ...]


def fits_now(gpus: Sequence[OracleGpu], left: Left, one: OracleContainer, way: Mapping[int, int]) -> bool:
    """Whether there is room for a division beside other pods and what the pod has already."""
    for number, slices in way.items():
        gpu = gpus[number]
        if gpu.shut or slices > gpu.size - gpu.used - left.slices[number]:
            return False
        if one.exclusive and gpu.held:
            return False
        alone = not gpu.held and not left.slices[number]
        if slices == gpu.size:
            if not alone:
                return False
        elif not (one.exclusive and alone) and one.cores > 100 - gpu.cores - left.cores[number]:
            return False
    return True


def taken(gpus: Sequence[OracleGpu], left: Left, one: OracleContainer, way: Mapping[int, int]) -> Left:
    slices, cores = list(left.slices), list(left.cores)
    for number, count in way.items():
        slices[number] += count
        cores[number] += 100 if count == gpus[number].size else one.cores
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


def _feasible(
    gpus: Sequence[OracleGpu], containers: Sequence[OracleContainer], left: Left, within: frozenset[int]
) -> bool:
    if not containers:
        return True
    one, rest = containers[0], containers[1:]
    return any(
        _feasible(gpus, rest, left if one.lends else taken(gpus, left, one, way), within)
        for way in ways(gpus, one)
        if within.issuperset(way) and fits_now(gpus, left, one, way)
    )


def valid(
    gpus: Sequence[OracleGpu], containers: Sequence[OracleContainer], found: Sequence[Mapping[int, int]]
) -> bool:
    """Whether an assignment keeps every rule."""
    left = Left((0,) * len(gpus), (0,) * len(gpus))
    for one, way in zip(containers, found, strict=True):
        if dict(way) not in list(ways(gpus, one)) or not fits_now(gpus, left, one, way):
            return False
        if not one.lends:
            left = taken(gpus, left, one, way)
    return True
