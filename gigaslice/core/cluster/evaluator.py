# SPDX-License-Identifier: Apache-2.0
"""A pod on one kind of node: whether it fits into what a node has left, and how that node ranks. Pure.

What does not depend on the single node is worked out once here. What depends on its room alone is remembered, so nodes
of a kind with the same room share one computation.
"""

from __future__ import annotations

from gigaslice.core.cluster.choose import choose_gpus
from gigaslice.core.cluster.hardware import NodeRoom
from gigaslice.core.cluster.problem import NodeProblem
from gigaslice.core.cluster.rank import RankKey, rank_key
from gigaslice.core.cluster.refusal import Refusal
from gigaslice.core.cluster.refusal_reason import reason_without_room, refusal_reason
from gigaslice.core.cluster.room_normalizer import RoomNormalizer
from gigaslice.core.cluster.sequential_ranking import ranking_of
from gigaslice.core.placement import Policy

__all__ = ["PodEvaluator"]

_MOST_ROOMS = 20_000


class PodEvaluator:
    """The answers for one pod on one kind of node.

    Args:
        problem: The pod on this kind of node.
        policy: How GPUs are chosen.
        spread: Whether the emptiest node comes first rather than the fullest.
    """

    def __init__(self, problem: NodeProblem, policy: Policy, *, spread: bool) -> None:
        self.problem = problem
        self._policy, self._spread = policy, spread
        self._ranking = ranking_of(problem) if policy is Policy.GAIA else None
        searches = self._ranking is None or not self._ranking.exact
        self._normalizer = RoomNormalizer(problem) if searches and not problem.hardware.lends else None
        self._keys: dict[NodeRoom, RankKey | None] = {}
        self._refusals: dict[tuple[NodeRoom, int], Refusal | None] = {}

    def refusal(self, room: NodeRoom, unhealthy: int) -> Refusal | None:
        """Returns why the pod does not fit; None where it does.

        Args:
            room: What is left.
            unhealthy: The set of GPUs that get no containers.
        """
        if self.problem.never is not None:
            return self.problem.never.refusal
        if self._sequential_key(room) is not None:
            return None
        if self._normalizer is not None:
            room = self._normalizer.normalized(room)
        case = room, unhealthy
        if case not in self._refusals:
            if len(self._refusals) >= _MOST_ROOMS:
                self._refusals.clear()
            certain = self._ranking is not None and self._ranking.exact
            find_reason = reason_without_room if certain else refusal_reason
            reason = find_reason(self.problem, room, unhealthy)
            self._refusals[case] = reason.refusal if reason is not None else None
        return self._refusals[case]

    def key(self, room: NodeRoom) -> RankKey:
        """Returns the rank of a node that the pod fits on; the smallest is the best."""
        key = self._sequential_key(room)
        if key is None:
            chosen = choose_gpus(self.problem, room, self._policy)
            key = self._keys[room] = rank_key(self.problem, room, chosen) if chosen is not None else ()
        return tuple(-part for part in key) if self._spread else key

    def _sequential_key(self, room: NodeRoom) -> RankKey | None:
        """Returns the rank as far as it is known without a search."""
        if room not in self._keys:
            if len(self._keys) >= _MOST_ROOMS:
                self._keys.clear()
            self._keys[room] = self._ranking.key(room) if self._ranking is not None else None
        return self._keys[room]
