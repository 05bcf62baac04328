# SPDX-License-Identifier: Apache-2.0
"""What has happened since the agent started, as plain numbers: written where it happens, read by `metrics`."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import Histogram

__all__ = ["Counters", "Totals"]

_Part = TypeVar("_Part", bound=Hashable)


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
            highest_before = before.get(key, count if begin else 0)
            risen += max(0, count - highest_before)
            highest[key] = max(count, highest_before)
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


_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


_WAITS = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
)  # a prepared claim may have waited


def _latencies() -> Histogram:
    return Histogram("gigaslice_allocate_duration_seconds", "", registry=None, buckets=_LATENCIES)


def _claim_calls() -> dict[str, Histogram]:
    return {
        operation: Histogram(
            f"gigaslice_claim_{operation}_duration_seconds", "", registry=None, buckets=_WAITS
        )
        for operation in ("prepare", "unprepare")
    }


@dataclass
class Counters:
    """The agent's own numbers.

    allocate: seconds of each Allocate call. allocate_failures: calls that failed their pods. gate_waits: starts that
    were sent round again. registrations: streams that the kubelet opened, one after each. evictions: of pods that took
    more than they may. claim_calls: seconds of the kubelet's calls about claims, by operation. claim_errors: claims
    answered with an error, by operation. parts: of the agent that failed and were started again, by name. totals:
    numbers of containers.
    """

    allocate: Histogram = field(default_factory=_latencies)
    allocate_failures: int = 0
    gate_waits: int = 0
    registrations: int = 0
    evictions: int = 0
    claim_calls: dict[str, Histogram] = field(default_factory=_claim_calls)
    claim_errors: dict[str, int] = field(default_factory=lambda: {"prepare": 0, "unprepare": 0})
    parts: dict[str, int] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)

    def part_failed(self, name: str) -> None:
        """Notes that the part NAME has failed."""
        self.parts[name] = self.parts.get(name, 0) + 1
