# SPDX-License-Identifier: Apache-2.0
"""What a start waits for besides room: its pod's annotations, and the disk."""

import asyncio

import pytest

from agent.allocation.start_wait import StartTimes
from agent.deviceplugin.pod_events import PodEvents
from agent.deviceplugin.requester import ContainerMatch
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.model import AnnotationRights
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import device_allocator, device_ids
from tests.fakes.pods import gpu_pod
from tests.fakes.served import start_decider

GPU = "gigaslice.io/vgpu-memory"


class Node:
    """A node whose clock the test sets; no call is held for longer than a third of a second."""

    def __init__(self, store, gpus):
        self.store, self.now, self.decisions = store, 1700000000.0, 0
        self.cluster = MemoryCluster()
        self.allocator = device_allocator(store, gpus, now=lambda: self.now, rights=AnnotationRights.CHECKED)
        events = PodEvents(self.allocator, self.cluster)
        times = StartTimes(patience=0.35)
        self.decider = start_decider(store, self.allocator, self.cluster, events, self.wait, times=times)

    def wait(self):
        self.decisions += 1

    def allocate(self, *suspects):
        """An allocation of two slices; with SUSPECTS one whose pod is not certain."""
        match = ContainerMatch(None, suspects, suspects) if suspects else None
        (made,) = self.allocator.allocate([device_ids(0, 1, 2)], match)
        return made

    def start(self, allocation):
        return asyncio.run(self.decider.decide([allocation], None))

    def found(self, allocation):
        return self.store.table.find(allocation.id)


@pytest.fixture
def node(store, gpus):
    return Node(store, gpus)


def test_a_container_starts_after_its_record_is_on_the_disk(node, monkeypatch):
    synced, sync = [], node.store.sync

    def syncing():
        sync()
        synced.append(True)

    monkeypatch.setattr(node.store, "sync", syncing)
    made = node.allocate()
    synced.clear()
    assert node.start(made) is None
    assert synced


def test_a_held_call_decides_a_few_times_and_leaves_the_rest_of_its_time_to_others(node):
    assert node.start(node.allocate("default/p")) == "waiting for the pod's annotations from the API server"
    assert 1 <= node.decisions <= 4, "one in a tenth of a second"


def test_a_start_makes_use_of_annotations_that_came_late(node):
    made = node.allocate("default/p")
    node.cluster.put(gpu_pod("p", 2, cores="30"))
    assert node.start(made) is None
    settled = node.found(made)
    assert (plugin(settled).undecided, plugin(settled).owner.uid, settled.policy.cores) == (
        False,
        "uid-p",
        30,
    )


@pytest.mark.parametrize(
    ("expected", "seconds", "waits"), [(True, 59, True), (True, 61, False), (False, 1, False)]
)
def test_annotations_are_waited_for_a_minute_where_they_can_come(node, expected, seconds, waits):
    made = node.allocate("default/p")
    node.cluster.expected = expected
    node.now += seconds
    text = node.start(made)
    assert text == ("waiting for the pod's annotations from the API server" if waits else None)
    assert plugin(node.found(made)).undecided is waits
