# SPDX-License-Identifier: Apache-2.0
"""Refused pods are tried again when room may have appeared since, and not more often than that."""

from __future__ import annotations

import itertools

from gigaslice.core.cluster.refusal import Refusal, RefusalReason
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Pod
from gigaslice.roles.scheduler.waiting import RefusedPods
from tests.fakes.clusters import container, demand, pod

STATE = ClusterState()


def asking(uid: str, slices: int = 8, **fields: object) -> Pod:
    return pod(uid, container(slices=slices), **fields)


def refused(pods: RefusedPods, one: Pod, now: float, *names: str) -> None:
    pods.refused(one, demand(STATE, one), names or ("a",), now)


def due(
    pods: RefusedPods, changed: float, now: float, fits=lambda demand, nodes, priority: True, most: int = 9
) -> list[str]:
    return [one.uid for one in pods.due(changed, now, fits, most)]


def test_a_pod_is_due_after_a_change_that_came_after_its_trial():
    pods = RefusedPods()
    refused(pods, asking("p"), 10.0)
    assert due(pods, 9.9, 11.0) == [], "tried after the change"
    assert due(pods, 10.0, 11.0) == ["p"], "in doubt it is tried"


def test_a_pod_that_the_scheduler_does_not_try_is_handed_back_after_twice_the_time_each_time():
    pods, times = RefusedPods(), []
    refused(pods, asking("p"), 0.0)
    for second in range(1, 2000):
        if due(pods, 0.0, float(second)):
            times.append(second)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300, 300, 300]
    refused(pods, asking("p"), 3000.0)
    assert due(pods, 3000.0, 3000.0) == ["p"], "it was tried: the next change counts at once"


def test_a_pod_that_fits_nowhere_is_not_handed_back():
    pods = RefusedPods()
    refused(pods, asking("p"), 0.0)
    assert due(pods, 1.0, 2.0, lambda demand, nodes, priority: False) == []
    assert "p" in pods
    assert due(pods, 1.0, 2.0) == ["p"], "being left out is no trial"


def test_equal_requests_are_compared_with_the_cluster_once():
    pods, asked = RefusedPods(), []
    for number in range(50):
        refused(pods, asking(f"p{number}"), 0.0)
    refused(pods, asking("other", 4), 0.0)
    refused(pods, asking("elsewhere"), 0.0, "b")
    assert len(due(pods, 1.0, 2.0, lambda *key: bool(asked.append(key)) or True, 100)) == 52
    assert len(asked) == 3


def test_names_of_many_nodes_are_not_kept():
    pods, asked = RefusedPods(), []
    refused(pods, asking("few"), 0.0, *(f"n{number}" for number in range(16)))
    refused(pods, asking("many"), 0.0, *(f"n{number}" for number in range(17)))
    refused(pods, asking("none", 4), 0.0)
    pods.refused(asking("no nodes", 2), demand(STATE, asking("no nodes", 2)), (), 0.0)
    due(pods, 1.0, 2.0, lambda demand, nodes, priority: bool(asked.append(nodes)))
    assert [nodes if nodes is None else len(nodes) for nodes in asked] == [16, None, 1, 0]


def test_the_first_are_those_of_the_highest_priority_and_the_longest_wait():
    pods = RefusedPods()
    for uid, priority, created in (("d", 0, "1"), ("c", 0, "0"), ("b", 5, "2"), ("a", 5, "1"), ("e", 0, "1")):
        refused(pods, asking(uid, priority=priority, created=created), 0.0)
    assert due(pods, 1.0, 2.0, most=2) == ["a", "b"]
    assert due(pods, 1.0, 2.0) == ["c", "d", "e"], "the others have not been handed back"


def test_an_impossible_request_waits_for_a_class():
    pods = RefusedPods()
    one = asking("p")
    pods.refused(one, None, ("a",), 0.0)
    assert due(pods, 1.0, 2.0) == []
    pods.read_again(lambda pod: demand(STATE, pod))
    assert due(pods, 1.0, 2.0) == ["p"]
    pods.read_again(lambda pod: Refusal(RefusalReason.UNKNOWN_CLASS, "there is no such GPU class"))
    assert due(pods, 1.0, 1000.0) == []


def test_too_many_are_not_kept():
    pods = RefusedPods(most=3)
    for uid in ("a", "b", "c", "a", "d"):
        refused(pods, asking(uid), 0.0)
    assert len(pods) == 3 and "b" not in pods, "a was refused again, b is the oldest"
    pods.over("a")
    pods.over("never seen")
    assert len(pods) == 2
