"""Decisions: which GPUs a request gets, what it waits for, and what its limits are. Pure functions over values.

No I/O, no clock, no chance: equal inputs give equal answers, so two processes agree and a replay gives the
same picture. The semantics are those of the Gaia Scheduler paper (Song et al., 2018) with the extensions that
the docstrings name.
"""

from gigaslice.placement.constraints import place, place_slices, place_waiting
from gigaslice.placement.elastic import Limit, elastic_limits, limit_slices, start_shortfall
from gigaslice.placement.pairs import best_effort, pair_score, set_score
from gigaslice.placement.pending import Missing, Waiting
from gigaslice.placement.policy import Policy
from gigaslice.placement.preferred import preferred_device_ids

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
    "preferred_device_ids",
    "set_score",
    "start_shortfall",
]
