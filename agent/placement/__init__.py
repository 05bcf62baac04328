"""Decisions: which cards a request gets, what it waits for, and what its limits are. Pure functions over values.

No I/O, no clock, no chance: equal inputs give equal answers, so two processes agree and a replay gives the
same picture. The semantics are those of the Gaia Scheduler paper (Song et al., 2018) with the extensions that
the docstrings name.
"""

from agent.placement.elastic import Limit, elastic_limits, limit_slices, start_shortfall
from agent.placement.pairs import best_effort, pair_score, set_score
from agent.placement.policy import Policy
from agent.placement.preferred import preferred_tokens
from agent.placement.waiting import Missing, Waiting
from agent.placement.wanted import place, place_slices, place_waiting

__all__ = [
    "Limit",
    "Missing",
    "Policy",
    "Waiting",
    "best_effort",
    "elastic_limits",
    "limit_slices",
    "pair_score",
    "place",
    "place_slices",
    "place_waiting",
    "preferred_tokens",
    "set_score",
    "start_shortfall",
]
