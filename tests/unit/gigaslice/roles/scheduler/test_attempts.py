# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a pod on its way to a node."""

from __future__ import annotations

import math

import pytest

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.roles.scheduler.attempts import Attempt, Attempts, AttemptState


def attempt(uid: str, state: AttemptState = AttemptState.PROVISIONAL, until: float = 5.0) -> Attempt:
    return Attempt(uid, "a", Assignment({}), state, 0.0, until)


def test_a_pod_has_one_attempt():
    attempts = Attempts()
    attempts.set(attempt("p"))
    attempts.set(attempt("p", AttemptState.BINDING))
    assert len(attempts) == 1
    assert attempts.get("p") == attempt("p", AttemptState.BINDING)
    assert attempts.drop("p") == attempt("p", AttemptState.BINDING)
    assert attempts.drop("p") is None and attempts.get("p") is None


def test_those_whose_time_is_over():
    attempts = Attempts()
    for uid, until in (("early", 1.0), ("now", 2.0), ("late", 2.1), ("never", math.inf)):
        attempts.set(attempt(uid, until=until))
    assert [one.uid for one in attempts.over(2.0)] == ["early", "now"]
    for one in attempts:  # while it is changed
        attempts.drop(one.uid)
    assert len(attempts) == 0


@pytest.mark.parametrize("state", AttemptState)
def test_only_a_reservation_can_still_move(state: AttemptState):
    assert attempt("p", state).settled == (state is not AttemptState.PROVISIONAL)


def test_states_without_an_attempt_are_counted_too():
    attempts = Attempts()
    for number in range(3):
        attempts.set(attempt(f"p{number}", AttemptState.DOUBTFUL))
    assert attempts.counts() == {"provisional": 0, "binding": 0, "bound": 0, "doubtful": 3}
