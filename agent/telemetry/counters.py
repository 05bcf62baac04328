"""What has happened since the agent started, as plain numbers: written where it happens, read by `metrics`."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Counters", "Histogram"]


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


def _latencies() -> Histogram:
    return Histogram(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass
class Counters:
    """The agent's own numbers.

    allocate: seconds of each Allocate call. allocate_failures: calls that failed their pods. gate_waits: starts that
    were sent round again. registrations: streams that the kubelet opened, one after each. evictions: of pods that took
    more than they may.
    """

    allocate: Histogram = field(default_factory=_latencies)
    allocate_failures: int = 0
    gate_waits: int = 0
    registrations: int = 0
    evictions: int = 0
