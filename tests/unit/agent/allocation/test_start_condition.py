"""The start decision waits for datasets after it has waited for GPUs."""

import asyncio

from agent.allocation import start as start_module
from agent.allocation.pod_events import PodEvents
from agent.allocation.start import StartDecider
from agent.apiserver import NoCluster
from tests.fakes.nodes import device_ids


class Datasets:
    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    async def blocker(self, allocation, pod):
        assert pod is None
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def decide(store, allocator, datasets):
    cluster = NoCluster()
    decider = StartDecider(
        store, allocator, cluster, PodEvents(allocator, cluster), lambda: None, datasets=datasets
    )
    allocator.allocate([sorted(device_ids(0, 1))])
    return asyncio.run(decider.decide(store.table.allocations, None))


def test_a_start_waits_until_the_datasets_are_there(store, allocator):
    datasets = Datasets("waiting for dataset coco: 42 %", "waiting for dataset coco: 80 %", None)
    assert decide(store, allocator, datasets) is None
    assert datasets.asked == 3


def test_what_is_waited_for_is_the_reason(store, allocator, monkeypatch):
    monkeypatch.setattr(start_module, "_PATIENCE", 0.3)
    assert (
        decide(store, allocator, Datasets("waiting for dataset coco: 42 %"))
        == "waiting for dataset coco: 42 %"
    )


def test_without_a_dataset_service_nothing_is_asked(store, allocator):
    assert decide(store, allocator, None) is None
