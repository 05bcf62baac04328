"""When overuse is spoken of, and when it ends a pod: what lasts, for how long, and how much of it. Pure.

An offence is spoken of when it was there in several measuring rounds in a row: what has just begun or is about to end
is no news. From then on its grace runs; one that pauses begins anew. Time is an argument, and a clock that only goes
forward is expected. Tests: tests/unit/agent/accounting/test_overuse.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["ROUNDS", "Kind", "Offence", "Policy", "Watch", "due", "follow"]

ROUNDS = 3
"""In a row until something is said."""


class Kind(Enum):
    """What a container does."""

    UNHOOKED = "unhooked"
    """Has processes without the library."""
    OVER = "over"
    """Holds more than it may, because of these."""
    GROWTH = "growth"
    """Makes its ledger grow on the node's disk, again and again."""
    LIMIT = "limit"
    """Its processes hold more than the limit of now: that was lowered, or no call has declared the memory."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What people have decided. mode: "report", "dry-run" or "evict".

    grace: seconds from the first word to an eviction. above: bytes beyond a quota that are let pass. over_limit:
    whether Kind.LIMIT is a reason to evict.
    """

    mode: str = "report"
    grace: float = 60.0
    above: int = 0
    over_limit: bool = False

    def evicts(self, kind: Kind) -> bool:
        """Whether an offence of that kind can end a pod, or would in a dry run."""
        return self.mode != "report" and (
            kind in (Kind.OVER, Kind.GROWTH) or (kind is Kind.LIMIT and self.over_limit)
        )


@dataclass(frozen=True, slots=True)
class Offence:
    """One container's, in one round. bytes_over: bytes too many on all its GPUs, or on the disk."""

    allocation: str
    kind: Kind
    bytes_over: int = 0

    @property
    def key(self) -> tuple[str, Kind]:
        """What makes it the same as that of the round before."""
        return self.allocation, self.kind


@dataclass(frozen=True, slots=True)
class Watch:
    """An offence over time. rounds: in a row. said: when it was spoken of, None before."""

    rounds: int = 0
    said: float | None = None


Watches = Mapping[tuple[str, Kind], Watch]


def follow(before: Watches, offences: Iterable[Offence], now: float) -> tuple[Watches, tuple[Offence, ...]]:
    """The watches after a round with OFFENCES, and those of which to speak now."""
    after: dict[tuple[str, Kind], Watch] = {}
    fresh = []
    for one in offences:
        watch = before.get(one.key, Watch())
        watch = replace(watch, rounds=watch.rounds + 1)
        if watch.said is None and watch.rounds >= ROUNDS:
            watch = replace(watch, said=now)
            fresh.append(one)
        after[one.key] = watch
    return after, tuple(fresh)


def due(policy: Policy, watches: Watches, offences: Iterable[Offence], now: float) -> tuple[Offence, ...]:
    """The OFFENCES that end their pods now."""
    return tuple(
        one
        for one in offences
        if policy.evicts(one.kind)
        and one.bytes_over > policy.above
        and (said := watches.get(one.key, Watch()).said) is not None
        and now - said >= policy.grace
    )
