"""What has happened since the agent started, as plain numbers: written where it happens, read by `metrics`."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["Counters", "Histogram", "Totals"]

_Part = TypeVar("_Part", bound=Hashable)


class Histogram:
    """Counts observations in buckets up to each of BOUNDS, and beyond the last."""

    def __init__(self, *bounds: float) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Notes one VALUE."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Upper bound as Prometheus writes it, and how many observations are at most that."""
        total = 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            total += count
            yield ("+Inf" if bound is None else repr(bound)), total


class Totals:
    """Sums that only rise, of numbers that others keep and that can fall or vanish.

    A container's numbers are kept by its processes, and end with them, or are given back in part; and two allocations
    can have the same labels, of a pod and of the one that had its name before. Each is read regularly, and what it
    has risen is added to the sum of its labels. A sum ends with the last allocation that has its labels.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, tuple[str, ...]], float] = {}
        self._highest: dict[tuple[str, str, tuple[str, ...]], dict[Hashable, float]] = {}

    def note(
        self,
        name: str,
        labels: tuple[str, ...],
        allocation: str,
        parts: Mapping[_Part, float],
        *,
        begin: bool = False,
    ) -> None:
        """Adds by how much PARTS, the present numbers of ALLOCATION by process, have risen since the last time.

        A new part counts in full, unless this is to BEGIN with: then it may have been counted by an agent before us.
        """
        before = self._highest.get((allocation, name, labels), {})
        risen = 0.0
        highest: dict[Hashable, float] = {}
        for key, count in parts.items():
            known = before.get(key, count if begin else 0)
            risen += max(0, count - known)
            highest[key] = max(count, known)
        self._highest[allocation, name, labels] = highest
        self._sums[name, labels] = self._sums.get((name, labels), 0) + risen

    def keep(self, allocations: Collection[str]) -> None:
        """Forgets what belongs to none of ALLOCATIONS."""
        self._highest = {key: parts for key, parts in self._highest.items() if key[0] in allocations}
        there = {(name, labels) for _, name, labels in self._highest}
        self._sums = {key: total for key, total in self._sums.items() if key in there}

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        for (name, labels), total in self._sums.items():
            yield name, labels, total


def _latencies() -> Histogram:
    return Histogram(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass
class Counters:
    """The agent's own numbers.

    allocate: seconds of each Allocate call. allocate_failures: calls that failed their pods. gate_waits: starts that
    were sent round again. registrations: streams that the kubelet opened, one after each. evictions: of pods that took
    more than they may. parts: of the agent that failed and were started again, by name. totals: numbers of containers.
    """

    allocate: Histogram = field(default_factory=_latencies)
    allocate_failures: int = 0
    gate_waits: int = 0
    registrations: int = 0
    evictions: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)

    def part_failed(self, name: str) -> None:
        """Notes that the part NAME has failed."""
        self.parts[name] = self.parts.get(name, 0) + 1
