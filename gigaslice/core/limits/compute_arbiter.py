# SPDX-License-Identifier: Apache-2.0
"""How much of a GPU's time each container may use now, and what it gets back for the time that neighbours had.

Each container limits itself: it is charged the time that its work is under way. Two things show only where all
containers of a GPU are seen. While several have work under way, the GPU goes round among their processes, so a
container is charged more than it got: what the others had is its credit. And the time that a container does not use
can be lent to those that are elastic, in proportion to their weights, until its owner needs it again. Containers
without a share have no limit and report nothing; while the driver shows them at work, nothing is lent.

Pure: samples and the time go in, numbers for the limits pages come out. One ``ComputeArbiter`` per GPU; it remembers
the samples before. What containers report about themselves is bounded here: no container gains by claiming to be
busy, since a claim only raises the credit of the others. Tests:
tests/unit/gigaslice/core/limits/test_compute_arbiter.py, tests/unit/gigaslice/core/limits/test_compute_shares.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ComputeAllowance", "ComputeArbiter", "ComputeSample", "lend"]

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
"""Seconds between two samples beyond which nothing is known about the time in between."""
MEMORY = 0.3
"""Seconds of a container's work over which the part that others had is a mean. Containers that are held back work in
bursts of some tens of milliseconds, in step with each other. A mean over less than several bursts follows each of them,
too late: with 0.05 s a container was given up to 5 % of a GPU too much or too little."""
ABSENCE = 0.1
"""Seconds without work and without a launch that waits after which a container counts as away. Those means begin anew
whenever one comes or goes."""
LATENESS = 0.01
"""Seconds by which a container's account may be behind: its processes charge it a poll at a time."""


@dataclass(frozen=True, slots=True)
class ComputeSample:
    """A container on one GPU at one instant.

    Attributes:
        share: permille of the GPU's time that it was promised.
        flying: its processes that have work under way.
        spent: seconds it was charged, ever since.
        waiting: its launches are being held back.
        elastic: it may borrow time that others leave.
        weight: how much of that it gets beside other borrowers.
    """

    share: int
    flying: int
    spent: float
    waiting: bool = False
    elastic: bool = False
    weight: int = 1


@dataclass(frozen=True, slots=True)
class ComputeAllowance:
    """What the container's page should say: seconds of credit ever since, and permille of the GPU's time allowed
    now.
    """

    credit: float
    allowed: int


@dataclass(slots=True)
class _Container:
    credit: float
    spent: float
    allowed: int
    demand: float
    others: float | None = None
    """Part of the GPU that others had while this container had work under way, as far as samples have shown."""
    weight: float = 0.0
    """Seconds of work that this is the mean of, at most MEMORY."""
    busy_at: float = float("-inf")
    samples: int = 0
    busy: int = 0

    def account(self, sample: ComputeSample, all_flying: int, passed: float) -> None:
        """Takes in a sample, PASSED seconds after the one before."""
        others = self._mean_of_others(max(0, sample.flying), all_flying, passed)
        charged = min(max(0.0, sample.spent - self.spent), passed)
        self.credit += charged * others
        self.spent = max(self.spent + charged, sample.spent - LATENESS)
        self.samples += 1
        self.busy += sample.waiting or sample.flying > 0

    def _mean_of_others(self, flying: int, all_flying: int, passed: float) -> float:
        """The GPU goes round among processes. Only samples with work of this container count, and they count alike:
        what the others do while it has none says nothing about the time that it is charged.
        """
        if not flying:
            return all_flying / (all_flying + 1) if self.others is None else self.others
        others = 1 - flying / all_flying
        self.weight = min(MEMORY, self.weight + passed)
        step = min(1.0, passed / self.weight) if self.weight else 1.0
        self.others = others if self.others is None else self.others + (others - self.others) * step
        return self.others


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


class ComputeArbiter:
    """Decides for one GPU."""

    def __init__(self) -> None:
        self._containers: dict[str, _Container] = {}
        self._present: set[str] = set()
        self._decided_at = 0.0
        self._lent_at = 0.0

    def decide(
        self,
        now: float,
        samples: Mapping[str, ComputeSample],
        published: Mapping[str, float] | None = None,
        unlimited: float = 0.0,
    ) -> dict[str, ComputeAllowance]:
        """What each of the containers may use until the next decision.

        Args:
            now: seconds that only go forward.
            samples: the containers of the GPU that have a share.
            published: credit that their pages have already, for containers that this arbiter meets for the first time
                (its predecessor wrote it).
            unlimited: part of the GPU that containers without a share have used lately.
        """
        passed = now - self._decided_at if self._containers else 0.0
        self._decided_at = now
        if not 0 <= passed <= LONGEST_GAP:
            passed = 0.0
        self._meet(samples, published or {})
        self._note_presence(now, samples)
        all_flying = sum(max(0, sample.flying) for sample in samples.values())
        for name, sample in samples.items():
            self._containers[name].account(sample, all_flying, passed)
        if now - self._lent_at >= LENDING_PERIOD or now < self._lent_at:
            self._lent_at = now
            self._lend(samples, unlimited)
        return {
            name: ComputeAllowance(
                self._containers[name].credit, min(WHOLE, max(1, self._allowed(name, sample)))
            )
            for name, sample in samples.items()
        }

    def _allowed(self, name: str, sample: ComputeSample) -> int:
        container = self._containers[name]
        return max(sample.share, container.allowed) if sample.elastic else sample.share

    def _lend(self, samples: Mapping[str, ComputeSample], unlimited: float) -> None:
        """Lends what owners leave.

        A container that is at work or held back for as much of the time as its share needs all of its share: that it
        got less may be the borrowers' doing. One that is there less often cannot use more than that. One without a
        share can use whatever there is, so its use leaves nothing to lend.
        """
        for name in samples:
            container = self._containers[name]
            if container.samples:
                container.demand = max(WHOLE * container.busy / container.samples, container.demand * FADING)
                container.samples = container.busy = 0
        demands = {
            name: min(sample.share, round(self._containers[name].demand) + MARGIN)
            for name, sample in samples.items()
        }
        borrowers = {
            name: sample.weight
            for name, sample in samples.items()
            if sample.elastic and self._containers[name].demand > MARGIN and unlimited <= IDLE
        }
        lent = lend(demands, borrowers)
        for name, sample in samples.items():
            self._containers[name].allowed = max(sample.share, demands[name] + lent.get(name, 0))

    def _meet(self, samples: Mapping[str, ComputeSample], published: Mapping[str, float]) -> None:
        self._containers = {
            name: self._containers.get(name)
            or _Container(published.get(name, 0.0), sample.spent, sample.share, float(sample.share))
            for name, sample in samples.items()
        }

    def _note_presence(self, now: float, samples: Mapping[str, ComputeSample]) -> None:
        for name, sample in samples.items():
            if sample.flying > 0 or sample.waiting:
                self._containers[name].busy_at = now
        present = {name for name, container in self._containers.items() if now - container.busy_at <= ABSENCE}
        if present != self._present:
            self._present = present
            for container in self._containers.values():
                container.weight = 0.0
