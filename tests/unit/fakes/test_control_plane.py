# SPDX-License-Identifier: Apache-2.0
"""What the clients of `make test-cluster` take for a failure."""

from __future__ import annotations

import pytest

from tests.cluster import control_plane
from tests.cluster.control_plane import Api, Refused

STARTING = (429, {"message": "storage is (re)initializing", "reason": "TooManyRequests"})


def answered(monkeypatch, *answers):
    left = list(answers)
    monkeypatch.setattr(control_plane.time, "sleep", lambda _: None)
    monkeypatch.setattr(Api, "_once", lambda *_: left.pop(0))
    return left


def test_a_definition_that_is_not_served_yet_is_asked_for_again(monkeypatch):
    left = answered(monkeypatch, STARTING, STARTING, (200, {"kind": "Dataset"}))
    assert Api(1, {}).get("/x") == {"kind": "Dataset"} and not left


@pytest.mark.parametrize(
    "answer",
    [(429, {"message": "Cannot evict pod as it would violate the pod's disruption budget."}), (409, {})],
)
def test_any_other_refusal_is_one(monkeypatch, answer):
    left = answered(monkeypatch, answer, (200, {}))
    with pytest.raises(Refused):
        Api(1, {}).get("/x")
    assert left == [(200, {})]


def test_one_that_is_never_served_is_a_failure(monkeypatch):
    answered(monkeypatch, *[STARTING] * 9)
    with pytest.raises(Refused):
        Api(1, {}, storage_seconds=0.0).get("/x")
