"""A pod on one kind of node: whether it fits into what a node has left, and how that node ranks. Pure.

What does not depend on the single node is worked out once here, and what depends on its room alone is remembered: nodes
of a kind with the same room share one computation.
"""

from __future__ import annotations

from gigaslice.cluster.canonical import Canonical
from gigaslice.cluster.choose import choose_gpus
from gigaslice.cluster.hardware import NodeRoom, Tally
from gigaslice.cluster.in_turn import InTurn
from gigaslice.cluster.problem import Problem
from gigaslice.cluster.rank import RankKey, rank_key
from gigaslice.cluster.refusal import Refusal
from gigaslice.cluster.shortcuts import Counting, quick_key
from gigaslice.cluster.verdict import reason_without_room, why_not
from gigaslice.placement import Policy

__all__ = ["Judge"]

_MOST_REMEMBERED = 20_000


class Judge:
    """The answers for one pod on one kind of node.

    Args:
        problem: The pod on this kind of node.
        policy: How GPUs are chosen.
        spread: Whether the emptiest node comes first rather than the fullest.
    """

    def __init__(self, problem: Problem, policy: Policy, *, spread: bool) -> None:
        self.problem = problem
        self._policy, self._spread = policy, spread
        self._counting = Counting.of(problem)
        self._turns = InTurn.of(problem) if policy is Policy.GAIA else None
        self._canonical = None if problem.hardware.lends else Canonical(problem)
        self._misfits: dict[int, Refusal] = {}
        self._verdicts: dict[tuple[NodeRoom, int], Refusal | None] = {}
        self._keys: dict[NodeRoom, RankKey] = {}

    def refusal(self, room: NodeRoom, tally: Tally, unhealthy: int) -> Refusal | None:
        """Returns why the pod does not fit; None where it does.

        Args:
            room: What is left.
            tally: The same, counted.
            unhealthy: The set of GPUs that get no containers.
        """
        if self._counting is not None:
            if self._counting.fits(tally):
                return None
            misfit = self._misfits.get(unhealthy)
            if misfit is None:
                misfit = reason_without_room(self.problem, room, unhealthy).refusal
                self._misfits[unhealthy] = misfit
            return misfit
        if self.problem.never is not None:
            return self.problem.never.refusal
        key = (self._canonical(room) if self._canonical is not None else room, unhealthy)
        if key not in self._verdicts:
            reason = why_not(self.problem, *key)
            _make_room(self._verdicts)
            self._verdicts[key] = reason.refusal if reason is not None else None
        return self._verdicts[key]

    def key(self, room: NodeRoom, tally: Tally) -> RankKey:
        """Returns the rank of a node that the pod fits on; the smallest is the best."""
        key = self._counting.key(tally) if self._counting and self._policy is Policy.GAIA else None
        if key is None and self._turns is not None:
            key = self._turns.key(room, tally)
        if key is None:
            key = self._keys.get(room)
        if key is None:
            _make_room(self._keys)
            key = self._keys[room] = self._placed_key(room)
        return tuple(-one for one in key) if self._spread else key

    def _placed_key(self, room: NodeRoom) -> RankKey:
        quick = quick_key(self.problem, room) if self._policy is Policy.GAIA else None
        if quick is not None:
            return quick
        found = choose_gpus(self.problem, room, self._policy)
        return rank_key(self.problem, room, found) if found is not None else ()


def _make_room(memory: dict[NodeRoom, RankKey] | dict[tuple[NodeRoom, int], Refusal | None]) -> None:
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
