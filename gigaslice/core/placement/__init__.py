# SPDX-License-Identifier: Apache-2.0
"""Decisions: which GPUs a request gets, and what it waits for. Pure functions over values.

No I/O, no clock, no chance: equal inputs give equal answers, so two processes agree and a replay gives the
same picture. The semantics are those of the Gaia Scheduler paper (Song et al., 2018) with the extensions that
the docstrings name.
"""

from gigaslice.core.placement.decide import place, place_waiting
from gigaslice.core.placement.pairs import best_effort, pair_score
from gigaslice.core.placement.policy import Policy
from gigaslice.core.placement.waiting import Missing, Waiting

__all__ = [
    "Missing",
    "Policy",
    "Waiting",
    "best_effort",
    "pair_score",
    "place",
    "place_waiting",
]
