# SPDX-License-Identifier: Apache-2.0
"""A share of GPUs that several pods use counts once, and until the last of them is gone."""

from __future__ import annotations

import pytest

from gigaslice.core.cluster.holding import HeldShare, Holding, PodConsumer
from gigaslice.core.cluster.preempt import victims
from gigaslice.core.cluster.state import ClusterState
from tests.fakes.clusters import CHECKED, bound, container, demand, facts, pod, uuid

BOTH = (PodConsumer("a", "team", "first", 1), PodConsumer("b", "team", "second", 2))


def shared(*consumers: PodConsumer) -> Holding:
    return Holding("claim", (HeldShare(uuid("n", 0), 12), HeldShare(uuid("n", 1), 12)), consumers)


@pytest.fixture
def state() -> ClusterState:
    state = ClusterState(CHECKED)
    state.put_node(facts("n"))
    state.put_holding("n", shared(*BOTH))
    return state


def test_it_counts_once_and_ends_with_the_last_of_its_pods(state: ClusterState) -> None:
    eight = demand(state, pod("new", container(slices=8)))
    assert [gpu.free for gpu in state.holders("n")] == [4, 4]
    assert state.pods_with_gpus("n") == {"a", "b"}
    assert state.refusal(eight, "n", without={"a"}) is not None
    assert state.refusal(eight, "n", without={"b"}) is not None
    assert state.refusal(eight, "n", without={"a", "b"}) is None


def test_a_pod_that_leaves_it_frees_nothing_until_it_is_taken_away(state: ClusterState) -> None:
    state.drop_pod("a")
    state.put_holding("n", shared(BOTH[1]))
    assert state.room("n")[0].free == 4
    state.put_holding("n", shared())
    assert state.room("n")[0].free == 4 and state.pods_with_gpus("n") == frozenset()
    state.drop_holding("claim")
    assert state.room("n")[0].free == 16 and state.unused("n")


def test_it_moves_to_the_node_where_it_was_seen_last(state: ClusterState) -> None:
    state.put_node(facts("m"))
    state.put_holding("m", Holding("claim", (HeldShare(uuid("m", 0), 12),), BOTH))
    assert state.unused("n") and [room.free for room in state.room("m")] == [4, 16]


def test_all_of_its_pods_are_evicted_or_none(state: ClusterState) -> None:
    eight = demand(state, pod("new", container(slices=8)))
    assert victims(state, eight, "n", 3) == ("a", "b")
    assert victims(state, eight, "n", 2) is None, "one of the two is as important"
    state.put_pod(bound("alone", "n", (0, 4)))
    assert victims(state, eight, "n", 3) == ("a", "b"), "one GPU of the two is enough"


def test_it_is_called_by_its_pods_as_far_as_they_are_known() -> None:
    assert shared(*BOTH).title == "team/first and team/second"
    assert shared(PodConsumer("a")).title == shared().title == "claim"
