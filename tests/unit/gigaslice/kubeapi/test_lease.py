# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
import random

import pytest

from gigaslice.kubeapi.client import ApiFailure, KubeAnswer
from gigaslice.kubeapi.lease import Inherited, Leader
from tests.fakes.kubeapi.replay import transcript

PATH = "/apis/coordination.k8s.io/v1/namespaces/n/leases"


class Leases:
    """One lease as an API server keeps it. `down`: requests fail; `lost`: they succeed and the answer is lost."""

    def __init__(self):
        self.lease = None
        self.version = 0
        self.down = self.lost = False

    async def request(self, method, path, query=None, body=None, **_):
        await asyncio.sleep(0)
        if self.down:
            raise ApiFailure("down")
        answer = self._answer(method, body)
        if self.lost:
            raise ApiFailure("no answer in time")
        return answer

    def _answer(self, method, body):
        if method == "POST" and self.lease is not None:
            raise ApiFailure("already exists", 409)
        if method != "POST" and self.lease is None:
            raise ApiFailure("not found", 404)
        if method == "PUT" and body["metadata"].get("resourceVersion") != str(self.version):
            raise ApiFailure("conflict", 409)
        if method != "GET":
            assert body["spec"]["renewTime"][-8] == "."  # MicroTime: without a fraction it is a 400
            self.version += 1
            self.lease = json.loads(json.dumps(body))
            self.lease["metadata"]["resourceVersion"] = str(self.version)
        return KubeAnswer(200, json.dumps(self.lease).encode())


class Cluster:
    """Candidates with clocks of their own, stepped by hand."""

    def __init__(self, rates=(1.0, 1.0)):
        self.now = 0.0
        self.idle, self.unsure = set(), set()
        self.leases = Leases()
        self.candidates = [self._candidate(f"c{n}", rate, n * 1e6) for n, rate in enumerate(rates)]

    def _candidate(self, name, rate, offset):
        return Leader(
            self.leases, "n", "x", name, duration=15, retry=2, clock=lambda: offset + self.now * rate,
            wanted=lambda: name not in self.idle, clean=lambda: name not in self.unsure,
        )  # fmt: skip

    def step(self, seconds, *which):
        self.now += seconds
        for one in which:
            asyncio.run(self.candidates[one]._attempt())
        assert sum(one.leading for one in self.candidates) <= 1
        return [one.leading for one in self.candidates]


def test_the_first_leads_and_the_second_waits():
    cluster = Cluster()
    assert cluster.step(0, 0, 1) == [True, False]
    for _ in range(20):
        assert cluster.step(2, 0, 1) == [True, False]
    assert cluster.candidates[1].holder == "c0"


def test_a_holder_that_cannot_renew_stops_before_another_begins():
    cluster = Cluster()
    cluster.step(0, 0, 1)
    seen = []
    for _ in range(10):
        seen.append(cluster.step(2, 1))
    assert [False, True] in seen
    assert seen.index([False, True]) > seen.index([False, False])
    assert cluster.step(0, 0) == [False, True]


@pytest.mark.parametrize("rates", [(0.8, 1.2), (1.2, 0.8), (1.0, 1.3)])
def test_clocks_that_differ_in_rate_and_offset(rates):
    cluster = Cluster(rates)
    cluster.step(0, 0, 1)
    for _ in range(60):
        cluster.step(0.5, 1)
    assert cluster.candidates[1].leading


def test_an_answer_that_was_lost_does_not_end_leading():
    cluster = Cluster()
    cluster.step(0, 0)
    cluster.leases.lost = True
    cluster.step(2, 0)
    cluster.leases.lost = False
    assert cluster.step(2, 0, 1) == [True, False]
    cluster.leases.lost = True  # the same in the first attempt of all
    other = Cluster()
    other.leases.lost = True
    other.step(0, 0)
    other.leases.lost = False
    assert other.step(2, 0) == [True, False]


def test_a_lease_that_was_deleted_or_taken_ends_leading_at_once():
    cluster = Cluster()
    cluster.step(0, 0)
    cluster.leases.lease = None
    assert cluster.step(2, 1, 0) == [False, True]


def test_a_candidate_that_ends_gives_the_lease_back():
    async def story():
        leases = Leases()
        told = []
        first = Leader(leases, "n", "x", "a", told.append, retry=0.01)
        work = asyncio.create_task(first.run())
        while not first.leading:
            await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert told == [True, False]
        second = Leader(leases, "n", "x", "b", retry=0.01)
        await second._attempt()
        assert second.leading

    asyncio.run(story())


@pytest.mark.parametrize("ticks", range(4))
def test_a_candidate_that_ends_just_as_it_hurries_ends(ticks):
    async def story():
        candidate = Leader(Leases(), "n", "x", "a", retry=60.0)
        work = asyncio.create_task(candidate.run())
        while not candidate.leading:
            await asyncio.sleep(0.01)
        candidate.hurry()
        for _ in range(ticks):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait({work}, timeout=5)
        assert work.cancelled()

    asyncio.run(story())


def test_what_was_inherited_from_a_candidate_that_gave_the_lease_back():
    cluster = Cluster()
    first, second = cluster.candidates
    cluster.step(0, 0, 1)
    assert first.inherited is Inherited.DOUBT  # of the holder of a lease that was deleted
    first.caught_up(first.takeovers)
    cluster.idle = {"c0"}
    assert cluster.step(2, 0, 1) == [False, True]
    assert second.inherited is Inherited.WRITES


def test_what_was_inherited_from_a_candidate_that_was_not_sure_of_its_writes():
    cluster = Cluster()
    cluster.step(0, 0, 1)
    cluster.idle, cluster.unsure = {"c0"}, {"c0"}
    assert cluster.step(2, 0, 1) == [False, False]
    for _ in range(8):
        cluster.step(2, 1)
    assert cluster.candidates[1].leading
    assert cluster.candidates[1].inherited is Inherited.DOUBT


@pytest.mark.parametrize("trouble", ["", "down", "lost"])
def test_who_leads_again_with_nobody_in_between_inherits_nothing(trouble):
    cluster = Cluster()
    one = cluster.candidates[0]
    cluster.step(0, 0)
    one.caught_up(one.takeovers)
    if trouble:
        setattr(cluster.leases, trouble, True)
        for _ in range(7):
            cluster.step(2, 0)
        assert not one.leading
        setattr(cluster.leases, trouble, False)
    cluster.idle = {"c0"}
    cluster.step(2, 0)
    cluster.idle = set()
    assert cluster.step(2, 0) == [True, False]
    assert one.inherited is Inherited.NOTHING


def test_who_lost_the_lease_unseen_has_to_catch_up_again():
    cluster = Cluster()
    one = cluster.candidates[0]
    cluster.step(0, 0, 1)
    one.caught_up(one.takeovers)
    before = one.takeovers
    for _ in range(10):
        cluster.step(2, 1)  # the first is stopped
    cluster.idle = {"c1"}
    cluster.step(0, 1)
    assert cluster.step(0, 0) == [True, False]
    one.caught_up(before)  # of a catching up that began before
    assert one.inherited is Inherited.WRITES


def test_a_process_started_again_under_its_name_takes_its_lease_at_once():
    cluster = Cluster()
    cluster.step(0, 0)
    again = Leader(cluster.leases, "n", "x", "c0", clock=lambda: cluster.now)
    asyncio.run(again._attempt())
    assert again.leading
    assert again.inherited is Inherited.DOUBT


def test_bodies_are_those_that_a_real_server_has_taken():
    taken = next(one for one in transcript("api-lease") if one.get("note") == "renew")
    cluster = Cluster()
    cluster.step(0, 0)
    cluster.step(2, 0)
    assert set(taken["body"]["spec"]) <= set(cluster.leases.lease["spec"])
    assert set(cluster.leases.lease["metadata"]) == set(taken["body"]["metadata"])


@pytest.mark.parametrize("seed", range(20))
def test_never_two_leaders_whatever_fails(seed):
    choices = random.Random(seed)
    cluster = Cluster(tuple(choices.uniform(0.85, 1.15) for _ in range(3)))
    for _ in range(300):
        cluster.leases.down = choices.random() < 0.2
        cluster.leases.lost = choices.random() < 0.2
        cluster.step(choices.uniform(0, 6), *(n for n in range(3) if choices.random() < 0.6))
