# SPDX-License-Identifier: Apache-2.0
"""Who has a claim that the kubelet asks for: a late call makes nothing, and an early one is not taken for late."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent.apiserver import PodLists
from agent.claims import reserved_pods
from agent.claims.reserved_pods import NotReservedError, ReservedPods, UnsureError
from tests.fakes.claims_of_node import claim, claiming, result
from tests.fakes.cluster import MemoryCluster


def run(work):
    return asyncio.run(work)


class Listed(MemoryCluster):
    """A cluster whose lists may show other pods than its watch.

    lists: how many were begun. answer: what they show; None: nothing is said.
    """

    def __init__(self, *pods):
        super().__init__()
        self.lists, self.answer = 0, {}
        self.shows(*pods)

    def shows(self, *pods):
        self.answer = {(pod.namespace, pod.name): pod for pod in pods}

    async def read(self, timeout):
        del timeout
        self.lists += 1
        return self.answer

    async def news(self, timeout):
        del timeout
        await asyncio.sleep(0)
        return False


def finder(cluster):
    return ReservedPods(cluster, PodLists(cluster))


POD = claiming("train")
CLAIM = claim("c", result(0, 8), pods=(POD,))


def test_a_pod_that_the_watch_shows_needs_no_list():
    cluster = Listed()
    cluster.put(POD)
    assert run(finder(cluster).of(CLAIM)) == (POD,)
    assert cluster.lists == 0


def test_a_pod_that_only_the_list_shows_has_come_before_the_watch():
    assert run(finder(Listed(POD)).of(CLAIM)) == (POD,)


def test_no_pod_in_a_list_is_none():
    with pytest.raises(NotReservedError, match="reserved for no pod that exists"):
        run(finder(Listed(claiming("another"))).of(CLAIM))


def test_without_an_answer_or_without_access_one_may_come():
    cluster = Listed()
    cluster.answer = None
    assert run(finder(cluster).of(CLAIM)) == ()
    cluster.answer, cluster.expected = {}, False
    assert run(finder(cluster).of(CLAIM)) == () and cluster.lists == 1


def doubtful(cluster, why):
    """The finder, and the claim that is given up or is being deleted."""
    pods = finder(cluster)
    if why == "unprepared":
        pods.unprepared(CLAIM.uid)
        return pods, CLAIM
    return pods, replace(CLAIM, ending=True)


@pytest.mark.parametrize("why", ["unprepared", "ending"])
def test_of_a_claim_that_is_given_up_the_watch_is_not_believed(why):
    """It may still show the pod whose end the kubelet has seen."""
    cluster = Listed()
    cluster.put(POD)
    pods, one = doubtful(cluster, why)
    with pytest.raises(NotReservedError):
        run(pods.of(one))
    ended = replace(POD, ending=True)
    cluster.shows(ended)
    assert run(pods.of(one)) == (ended,), "who asks sees that it ends"
    cluster.shows(POD)
    assert run(pods.of(one)) == (POD,), (
        "a later pod of a shared claim, or one that was bound before the deletion"
    )
    cluster.answer = None
    with pytest.raises(UnsureError, match="asked again by itself"):
        run(pods.of(one))


def test_a_claim_that_was_prepared_again_is_as_any_other():
    cluster = Listed()
    cluster.put(POD)
    pods, one = doubtful(cluster, "unprepared")
    pods.prepared(one.uid)
    assert run(pods.of(one)) == (POD,) and cluster.lists == 0


def test_only_so_many_claims_are_remembered(monkeypatch):
    monkeypatch.setattr(reserved_pods, "_MOST_UNPREPARED", 2)
    cluster = Listed()
    cluster.put(POD)
    pods, one = doubtful(cluster, "unprepared")
    for uid in ("a", "b"):
        pods.unprepared(uid)
    assert run(pods.of(one)) == (POD,) and cluster.lists == 0
