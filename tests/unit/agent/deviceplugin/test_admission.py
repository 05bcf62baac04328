# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from agent.apiserver.pod_reader import SILENT_SECONDS
from agent.deviceplugin.admission import AdmissionResolver
from agent.deviceplugin.requester import ContainerMatch
from gigaslice.core.deviceplugin.lifetime import ListedPod
from gigaslice.core.deviceplugin.origin import Owner
from gigaslice.core.errors import KubeletError
from gigaslice.core.model import Share
from tests.fakes.nodes import allocation
from tests.fakes.pods import gpu_pod

GPU = "gigaslice.io/vgpu-memory"


class Pods:
    def __init__(self):
        self.listed = (ListedPod("default", "p", frozenset(), frozenset({"c0"})),)
        self.asked = 0
        self.failure = None

    async def pods(self):
        self.asked += 1
        if self.failure:
            raise self.failure
        return self.listed


class Cluster:
    """Pods appear when the test says so; waiting moves the clock."""

    def __init__(self):
        self.expected = self.synced = self.answering = True
        self.known, self.after, self.now, self.waits = {}, None, 0.0, 0
        self.at_the_server, self.reads = None, []  # None: it does not answer

    @property
    def pods(self):
        return self.known

    def pod(self, namespace, name):
        return self.known.get((namespace, name))

    async def read(self, timeout):
        self.reads.append(timeout)
        if self.at_the_server is None:
            self.now += timeout
        return self.at_the_server

    async def news(self, timeout):
        self.waits += 1
        if self.after is not None:
            self.now += min(timeout, 0.01)
            self.known[self.after.namespace, self.after.name] = self.after
            return True
        self.now += timeout
        return False


@pytest.fixture
def world(store):
    pods, cluster = Pods(), Cluster()
    return pods, cluster, AdmissionResolver(store, pods, cluster, GPU, clock=lambda: cluster.now)


POD = gpu_pod("p", 4)


def test_a_known_pod_is_found_without_waiting(world):
    _pods, cluster, admissions = world
    cluster.known["default", "p"] = POD
    assert asyncio.run(admissions.identify(4)).requester.pod is POD
    assert cluster.waits == 0 and not cluster.reads


def test_a_watch_that_is_a_moment_behind_is_waited_for(world):
    pods, cluster, admissions = world
    cluster.after = POD
    assert asyncio.run(admissions.identify(4)).requester.pod is POD
    assert pods.asked == 1 and cluster.now < 0.5


def test_a_pod_that_the_watch_does_not_show_in_time_is_read(world):
    _pods, cluster, admissions = world
    cluster.at_the_server = {("default", "p"): POD}
    assert asyncio.run(admissions.identify(4)).requester.pod is POD
    assert cluster.now == pytest.approx(0.5) and len(cluster.reads) == 1


def test_patience_is_short_and_not_spent_on_the_same_pod_for_ever(world):
    _pods, cluster, admissions = world
    assert asyncio.run(admissions.identify(4)) == ContainerMatch(None, ("default/p",), ("default/p",))
    assert cluster.now == pytest.approx(1.5)
    cluster.now, waits = 60.0, cluster.waits
    asyncio.run(admissions.identify(4))
    assert cluster.waits == waits, "a static pod is never shown, and must not slow down every admission"
    assert len(cluster.reads) == 1


def test_for_an_api_server_that_is_not_answering_the_watch_is_hardly_waited_for(world):
    _pods, cluster, admissions = world
    cluster.answering = False
    asyncio.run(admissions.identify(4))
    assert cluster.now - sum(cluster.reads) == pytest.approx(SILENT_SECONDS)
    assert 3 * SILENT_SECONDS < 0.3, "two calls wait for the watch, and one of them for a list"


def test_among_assigned_pods_the_api_server_is_waited_for_longer(world):
    _pods, cluster, admissions = world
    other = gpu_pod("q", 4, assigned={"c0": (Share("GPU-1", 4),)})
    cluster.known["default", "q"] = other
    assert asyncio.run(admissions.identify(4)).requester is None
    assert cluster.now == pytest.approx(3.0)


def test_an_agent_that_has_just_started_waits_as_among_assigned_pods(world):
    """It has seen none yet, and one of them may be what the kubelet admits."""
    _pods, cluster, admissions = world
    cluster.synced = False
    assert asyncio.run(admissions.identify(4)).requester is None
    assert cluster.reads == [pytest.approx(3.0)] and cluster.waits == 0


def test_without_a_running_watch_the_pods_are_read_at_once(world):
    _pods, cluster, admissions = world
    cluster.synced = False
    cluster.at_the_server = {("default", "p"): POD}
    assert asyncio.run(admissions.identify(4)).requester.pod is POD
    assert cluster.now == 0 and cluster.waits == 0


def test_a_pod_that_the_server_does_not_have_either_stays_unknown(world):
    _pods, cluster, admissions = world
    cluster.at_the_server = {}
    assert asyncio.run(admissions.identify(4)).unseen == ("default/p",)
    assert cluster.now == pytest.approx(0.5)


def test_the_pod_that_is_read_wins_over_the_one_of_its_name_that_the_watch_still_shows(world, store):
    _pods, cluster, admissions = world
    former = gpu_pod("p", 4, uid="former")
    cluster.known["default", "p"] = former
    owner = Owner(former.uid, former.namespace, former.name, "c0", init=False)
    store.remember(store.table.with_allocation(allocation(1, (0, range(4)), owner=owner)))
    cluster.at_the_server = {("default", "p"): POD}
    assert asyncio.run(admissions.identify(4)).requester.pod is POD


def test_without_access_the_kubelet_is_not_even_asked(world):
    pods, cluster, admissions = world
    cluster.expected = False
    assert asyncio.run(admissions.identify(4)) == ContainerMatch()
    assert pods.asked == 0


def test_a_kubelet_that_does_not_answer_is_no_failure(world):
    pods, _cluster, admissions = world
    pods.failure = KubeletError("rejected by rate limit")
    assert asyncio.run(admissions.identify(4)) == ContainerMatch()


def test_the_preference_just_given_answers_for_its_allocation_and_only_once(world):
    pods, cluster, admissions = world
    cluster.known["default", "p"] = POD
    device_ids = ["a/1", "a/2", "a/3", "a/4"]

    async def story():
        admissions.note_preference(device_ids, await admissions.identify(4))
        first = await admissions.identify_devices([reversed(device_ids)])
        assert pods.asked == 1
        await admissions.identify_devices([device_ids])
        assert pods.asked == 2
        admissions.note_preference(device_ids, first)
        await admissions.identify_devices([[*device_ids[:3], "b/1"]])
        assert pods.asked == 3, "the kubelet took others: perhaps for another pod"
        admissions.note_preference(device_ids, first)
        cluster.now += 10
        await admissions.identify_devices([device_ids])
        assert pods.asked == 4, "too long ago"
        return first

    assert asyncio.run(story()).requester.pod is POD
