"""What Prometheus is told over the life of containers: counters rise, whichever process keeps their numbers."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from agent.accounting.auditor import Auditor
from agent.accounting.memory_monitor import MeasuredAllocation
from agent.accounting.overuse import OverusePolicy
from agent.apiserver import NoCluster
from agent.apiserver.own_node import Publishing
from agent.ledgers.usage import Reading
from agent.limits.no_driver_limits import NoDriverLimits
from agent.limits.time_slice_manager import TimeSliceManager
from agent.roles.metric_collector import MetricCollector
from agent.telemetry.counters import Counters
from agent.telemetry.metrics import METRICS
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.deviceplugin.origin import with_origin
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import allocation, inventory, uuid
from vcuda import ProcessUsage, ShareUsage

WHO = ContainerRef("default", "a", "c0")


class Node:
    """One container, whose ledger says what the test says."""

    def __init__(self, tmp_path):
        self.allocation = allocation(1, (0, range(8)), container=WHO)
        self.store = SimpleNamespace(
            table=AllocationTable(), without_library={}, dirs=SimpleNamespace(ledgers=SimpleNamespace(cuts=0))
        )
        self.counters, self.memory_monitor = Counters(), SimpleNamespace(last={})
        self.time_slices = TimeSliceManager(self.store, lambda: inventory(gpus=1, slices=24))
        self.auditor = Auditor(self.store, NoCluster(), OverusePolicy("report"), self.counters, proc=tmp_path)
        self.cluster = MemoryCluster()
        self.metrics = MetricCollector(
            resource="r",
            store=self.store,
            gpus=SimpleNamespace(now=inventory(gpus=1, slices=24)),
            servicer=SimpleNamespace(streams=1),
            health=SimpleNamespace(cordons={}, gpus={}, silent={}, xids={}),
            memory_monitor=self.memory_monitor,
            auditor=self.auditor,
            counters=self.counters,
            room=SimpleNamespace(problem=""),
            time_slices=self.time_slices,
            cluster=self.cluster,
            driver_limits=NoDriverLimits(self.store),
        )
        self.holds(self.allocation)

    def holds(self, *allocations):
        self.store.table = AllocationTable(allocations, 9)

    def round(self, *refused, spent=0.0, problem=None):
        """A measuring round with processes that have REFUSED so much each; then the counters."""
        processes = tuple(
            ProcessUsage(slot, 100 + slot, 1, start, {uuid(0): 0}, {}, count, "p")
            for slot, start, count in refused
        )
        reading = Reading(
            {uuid(0): 0}, {}, processes, cores={uuid(0): 50}, problem=problem,
            shares={uuid(0): ShareUsage(spent, spent / 2, 0, False)},
        )  # fmt: skip
        readings = {one.id: reading for one in self.store.table.allocations}
        self.auditor.audit({}, (), {}, readings)
        self.memory_monitor.last = {key: MeasuredAllocation(one, None) for key, one in readings.items()}
        return self.seen()

    def seen(self):
        found = self.metrics.collect().series
        return {name: sum(series.values()) for name, series in found.items() if name.endswith("_total")}


def test_no_counter_falls_when_a_process_ends_or_its_slot_is_taken_or_time_is_given_back(tmp_path):
    node = Node(tmp_path)
    rounds = [
        node.round((0, 1, 3), spent=1.0),
        node.round((0, 1, 4), (1, 5, 2), spent=3.0),
        node.round((1, 5, 2), spent=2.5),
        node.round((0, 9, 1), (1, 5, 2), spent=2.75),
        node.round(problem="cannot be read"),
        node.round((0, 9, 1), (1, 5, 3), spent=4.0),
    ]
    for before, after in itertools.pairwise(rounds):
        for name in before.keys() | after.keys():
            assert after[name] >= before[name], name
    assert [one["gigaslice_container_oom_errors_total"] for one in rounds] == [3, 6, 6, 7, 7, 8]
    assert rounds[-1]["gigaslice_container_compute_seconds_total"] == 4.0


def test_an_allocation_that_gives_way_to_another_of_its_name_takes_nothing_along(tmp_path):
    node = Node(tmp_path)
    node.round((0, 1, 3))
    successor = allocation(2, (0, range(8, 12)), container=WHO)
    node.holds(node.allocation, successor)
    both = node.round((0, 2, 1))
    node.holds(successor)
    assert (
        node.seen()["gigaslice_container_oom_errors_total"]
        == both["gigaslice_container_oom_errors_total"]
        == 5
    )


def test_a_container_that_gets_its_name_later_adds_to_nobody_else_meanwhile(tmp_path):
    node = Node(tmp_path)
    node.holds(with_origin(node.allocation, container=None), allocation(2, (0, range(8, 12))))
    assert "gigaslice_container_oom_errors_total" not in node.round((0, 1, 3))
    node.holds(node.allocation, allocation(2, (0, range(8, 12))))
    assert node.round((0, 1, 3))["gigaslice_container_oom_errors_total"] == 3


@pytest.mark.parametrize("again", [1, 2])
def test_turns_of_containers_that_have_ended_stay_counted(tmp_path, again):
    node, controller = Node(tmp_path), Node(tmp_path).time_slices
    node.metrics._time_slices = controller
    for number in range(1, again + 1):
        controller.gpus[uuid(0)] = SimpleNamespace(
            arbiter=SimpleNamespace(changes=3, mode="slicing", urgent=False),
            seconds=1.5,
            fits=True,
            paging=None,
        )
        before = node.seen()
        controller.poll()  # none of the containers has host memory
        assert not controller.gpus
        assert node.seen() == before
        assert before["gigaslice_gpu_time_slices_total"] == 3 * number
        assert before["gigaslice_gpu_time_slice_seconds_total"] == 1.5 * number


def test_every_total_is_a_counter_and_every_counter_a_total():
    for row in METRICS:
        assert (row.kind == "counter") == row.name.endswith("_total"), row.name


def test_how_the_inventory_is_published_is_told_where_there_is_an_api_server(tmp_path):
    node = Node(tmp_path)

    def told():
        found = node.metrics.collect().series
        return {name[20:]: series[()] for name, series in found.items() if "_inventory_" in name}

    assert told() == {}
    node.cluster.publishing = Publishing(0, 2, None, 7.5)
    assert told() == {"writes_total": 0, "write_failures_total": 2, "outdated_seconds": 7.5, "withheld": 0}
    node.cluster.publishing = Publishing(0, 2, None, 7.5, withheld=True)
    assert told()["withheld"] == 1
    node.cluster.publishing = Publishing(1, 2, 1700000000.0, 0.0)
    assert told()["written_timestamp_seconds"] == 1700000000.0
