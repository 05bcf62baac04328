# SPDX-License-Identifier: Apache-2.0
"""The start decision waits for datasets after it has waited for GPUs."""

import asyncio

import pytest

from agent.allocation.start_wait import StartTimes
from agent.apiserver import NoCluster
from agent.deviceplugin.pod_events import PodEvents
from gigaslice.core.deviceplugin.origin import Owner, with_origin
from gigaslice.core.model import Pod
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import device_ids
from tests.fakes.served import start_decider


class Datasets:
    def __init__(self, *answers, found=False):
        self.answers, self.asked, self.found = list(answers), 0, found

    async def blocker(self, consumer, pod):
        assert (pod is not None) == self.found
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def decide(store, allocator, datasets, times=StartTimes()):  # noqa: B008  (frozen)
    cluster = NoCluster()
    decider = start_decider(
        store, allocator, cluster, PodEvents(allocator, cluster), datasets=datasets, times=times
    )
    allocator.allocate([sorted(device_ids(0, 1))])
    return asyncio.run(decider.decide(store.table.allocations, None))


def test_a_start_waits_until_the_datasets_are_there(store, allocator):
    datasets = Datasets("waiting for dataset coco: 42 %", "waiting for dataset coco: 80 %", None)
    assert decide(store, allocator, datasets) is None
    assert datasets.asked == 3


def test_what_is_waited_for_is_the_reason(store, allocator):
    datasets = Datasets("waiting for dataset coco: 42 %")
    assert decide(store, allocator, datasets, StartTimes(patience=0.3)) == "waiting for dataset coco: 42 %"


@pytest.mark.parametrize(
    ("gpu", "said"), [(None, "WaitingForDataset"), ("waiting for 2 GiB", "WaitingForGPU")]
)
def test_the_event_says_whether_the_gpu_or_the_data_are_missing(store, allocator, monkeypatch, gpu, said):
    monkeypatch.setattr(allocator.service, "start_blocker", lambda allocation: gpu)
    cluster = MemoryCluster()
    cluster.put(Pod("ns", "p", "uid-1"))
    allocator.allocate([sorted(device_ids(0, 1))])
    (made,) = store.table.allocations
    store.update(store.table.replaced([with_origin(made, owner=Owner("uid-1", "ns", "p", "main", False))]))
    events = PodEvents(allocator, cluster)
    datasets = Datasets("dataset coco: 42 %", found=True)
    decider = start_decider(
        store, allocator, cluster, events, datasets=datasets, times=StartTimes(patience=0.3)
    )
    text = asyncio.run(decider.decide(store.table.allocations, None))
    assert cluster.events == [("ns/p", said, text, "main")]
    assert text == (gpu or "dataset coco: 42 %")


def test_without_a_dataset_service_nothing_is_asked(store, allocator):
    assert decide(store, allocator, None) is None
