"""Who may use how much of a GPU's time now, and what containers get back because a neighbour had the GPU meanwhile.

Each container limits itself: it is charged the time that its work is under way. Two things only somebody who sees all
containers of a GPU can know. While several have work under way, the GPU goes round among their processes, so a
container is charged more than it got: what the others had is its credit. And the time that a container does not use can
be lent to those that are elastic, in proportion to their weights, until its owner wants it back. Containers without a
share are limited by nobody and say nothing of themselves; while the driver shows them at work, nothing is lent.

Pure: sightings and the time go in, numbers for the limits pages come out. One ``Arbiter`` per GPU; it remembers the
sightings before. What containers say about themselves is bounded here: nobody gains by claiming to be busy, since a
claim only raises the credit of the others. Tests: tests/unit/gigaslice/limits/test_compute_arbiter.py,
tests/unit/compute/test_shares.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Arbiter", "Sighting", "Verdict", "lend"]

WHOLE = 1000
"""Permille of a GPU."""
MARGIN = 50
"""Permille kept for an owner beyond what it used lately, so that it can begin to use more."""
LENDING_PERIOD = 0.05
"""Seconds between two decisions about lending."""
FADING = 0.6
"""What is left of an earlier demand after a lending period in which there was less. A rise counts at once."""
IDLE = 0.02
"""Part of the GPU that containers without a share may use and still count as idle."""
LONGEST_GAP = 1.0
"""Seconds between two looks beyond which nothing is known about the time in between."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A container on one GPU at one instant. share, weight, elastic: what it was promised. flying: its processes that
    have work under way. spent: seconds it was charged, ever since. waiting: its launches are being held back."""

    share: int
    flying: int
    spent: float
    waiting: bool = False
    elastic: bool = False
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the container's page should say: seconds of credit ever since, and permille of the GPU's time now."""

    credit: float
    granted: int


@dataclass(slots=True)
class _Known:
    credit: float
    spent: float
    others: float
    granted: int
    demand: float = 0.0
    looks: int = 0
    busy: int = 0


def lend(demands: Mapping[str, int], borrowers: Mapping[str, int]) -> dict[str, int]:
    """What each of BORROWERS (weight by name) gets beyond its demand when DEMANDS (permille) leave some of the GPU."""
    lent = dict.fromkeys(borrowers, 0)
    left = WHOLE - sum(demands.values())
    open_to = {name for name in borrowers if demands.get(name, 0) < WHOLE}
    while left > 0 and open_to:
        total = sum(max(1, borrowers[name]) for name in open_to)
        full = {
            name
            for name in open_to
            if demands.get(name, 0) + lent[name] + left * max(1, borrowers[name]) // total >= WHOLE
        }
        for name in full:
            lent[name] = WHOLE - demands.get(name, 0)
        if not full:
            for name in open_to:
                lent[name] += left * max(1, borrowers[name]) // total
            break
        left = WHOLE - sum(demands.values()) - sum(lent.values())
        open_to -= full
    return lent


class Arbiter:
    """One GPU's arbiter."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._seen_at = 0.0
        self._lent_at = 0.0

    def look(
        self,
        now: float,
        sightings: Mapping[str, Sighting],
        published: Mapping[str, float] | None = None,
        unlimited: float = 0.0,
    ) -> dict[str, Verdict]:
        """The verdict on each container that is seen. PUBLISHED: credit that its page has already, for one that this
        arbiter meets for the first time (its predecessor wrote it). UNLIMITED: part of the GPU that containers without
        a share have used lately."""
        passed = now - self._seen_at if self._known else 0.0
        self._seen_at = now
        if not 0 <= passed <= LONGEST_GAP:
            passed = 0.0
        self._forget(sightings)
        flying = {name: max(0, seen.flying) for name, seen in sightings.items()}
        everybody = sum(flying.values())
        for name, seen in sightings.items():
            others = _others(flying[name], everybody)
            known = self._known.get(name)
            if known is None:
                credit = (published or {}).get(name, 0.0)
                self._known[name] = _Known(credit, seen.spent, others, seen.share, float(seen.share))
                continue
            charged = min(max(0.0, seen.spent - known.spent), passed)
            known.credit += charged * (known.others + others) / 2
            known.spent, known.others = seen.spent, others
            known.looks += 1
            known.busy += seen.waiting or seen.flying > 0
        if now - self._lent_at >= LENDING_PERIOD or now < self._lent_at:
            self._lent_at = now
            self._lend(sightings, unlimited)
        return {
            name: Verdict(self._known[name].credit, min(WHOLE, max(1, self._granted(name, seen))))
            for name, seen in sightings.items()
        }

    def _granted(self, name: str, seen: Sighting) -> int:
        known = self._known[name]
        return max(seen.share, known.granted) if seen.elastic else seen.share

    def _lend(self, sightings: Mapping[str, Sighting], unlimited: float) -> None:
        """A container that is at work or held back for as much of the time as its share wants its share: that it got
        less may be the borrowers' doing. One that is there less often cannot use more than that. One without a share
        can use whatever there is, so its use leaves nothing to lend."""
        for name in sightings:
            known = self._known[name]
            if known.looks:
                known.demand = max(WHOLE * known.busy / known.looks, known.demand * FADING)
                known.looks = known.busy = 0
        demands = {
            name: min(seen.share, round(self._known[name].demand) + MARGIN)
            for name, seen in sightings.items()
        }
        wanting = {
            name: seen.weight
            for name, seen in sightings.items()
            if seen.elastic and self._known[name].demand > MARGIN and unlimited <= IDLE
        }
        lent = lend(demands, wanting)
        for name, seen in sightings.items():
            self._known[name].granted = max(seen.share, demands[name] + lent.get(name, 0))

    def _forget(self, sightings: Mapping[str, Sighting]) -> None:
        for name in [name for name in self._known if name not in sightings]:
            del self._known[name]


def _others(own: int, everybody: int) -> float:
    """Part of the GPU that others have while this container has work under way: the GPU goes round among processes.
    For one that has none right now: what it would be if it had."""
    return 1 - own / everybody if own else everybody / (everybody + 1)


def active(sightings: Sequence[Sighting]) -> bool:
    """Whether there is anything to decide: two containers that share a GPU, at least one of them busy."""
    return len(sightings) > 1 and any(seen.flying or seen.waiting for seen in sightings)
