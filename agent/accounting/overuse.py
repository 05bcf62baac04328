# SPDX-License-Identifier: Apache-2.0
"""When overuse is reported, and when it evicts a pod: which overuse, for how long, and how much. Pure.

An offence is reported when it was found in several rounds in a row, not when it has just begun or is about to end. Its
grace period begins then; one that pauses begins again. Time is an argument; the clock must be monotonic. Tests:
tests/unit/agent/accounting/test_overuse.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["ROUNDS", "Offence", "OffenceHistory", "OffenceKind", "OverusePolicy", "due", "track"]

ROUNDS = 3
"""In a row until an offence is reported."""


class OffenceKind(Enum):
    """What a container does."""

    WITHOUT_LIBRARY = "without-library"
    """It has processes without the library."""
    OVER = "over"
    """It exceeds its quota because of them."""
    GROWTH = "growth"
    """It keeps making its ledger grow on the node's disk."""
    LIMIT = "limit"
    """It exceeds its current limit: the limit was lowered, or the memory is undeclared."""


@dataclass(frozen=True, slots=True)
class OverusePolicy:
    """What the administrator has set.

    Attributes:
        mode: "report", "dry-run" or "evict".
        grace: Seconds from the first report to an eviction.
        above: Bytes beyond a quota that are tolerated.
        over_limit: Whether OffenceKind.LIMIT evicts.
    """

    mode: str = "report"
    grace: float = 60.0
    above: int = 0
    over_limit: bool = False

    def evicts(self, kind: OffenceKind) -> bool:
        """Whether an offence of that kind can evict a pod, or would in a dry run."""
        return self.mode != "report" and (
            kind in (OffenceKind.OVER, OffenceKind.GROWTH) or (kind is OffenceKind.LIMIT and self.over_limit)
        )


@dataclass(frozen=True, slots=True)
class Offence:
    """One container's overuse in one round. bytes_over: beyond its quota on all its GPUs, or on the disk."""

    allocation: str
    kind: OffenceKind
    bytes_over: int = 0

    @property
    def key(self) -> tuple[str, OffenceKind]:
        """Identifies it across rounds."""
        return self.allocation, self.kind


@dataclass(frozen=True, slots=True)
class OffenceHistory:
    """An offence over time. rounds: in a row. reported_at: None before its report."""

    rounds: int = 0
    reported_at: float | None = None


Histories = Mapping[tuple[str, OffenceKind], OffenceHistory]


def track(
    before: Histories, offences: Iterable[Offence], now: float
) -> tuple[Histories, tuple[Offence, ...]]:
    """Returns the histories after a round with OFFENCES, and the offences to report now."""
    after: dict[tuple[str, OffenceKind], OffenceHistory] = {}
    fresh = []
    for offence in offences:
        history = before.get(offence.key, OffenceHistory())
        history = replace(history, rounds=history.rounds + 1)
        if history.reported_at is None and history.rounds >= ROUNDS:
            history = replace(history, reported_at=now)
            fresh.append(offence)
        after[offence.key] = history
    return after, tuple(fresh)


def due(
    policy: OverusePolicy, histories: Histories, offences: Iterable[Offence], now: float
) -> tuple[Offence, ...]:
    """The OFFENCES whose pods are to be evicted now."""
    return tuple(
        offence
        for offence in offences
        if policy.evicts(offence.kind)
        and offence.bytes_over > policy.above
        and (reported_at := histories.get(offence.key, OffenceHistory()).reported_at) is not None
        and now - reported_at >= policy.grace
    )
