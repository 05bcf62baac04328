# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is told over the life of containers: counters rise, whichever process keeps their numbers."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

import vcuda
from agent.accounting.auditor import Auditor
from agent.accounting.memory_monitor import MeasuredAllocation
from agent.accounting.overuse import OverusePolicy
from agent.apiserver import NoCluster
from agent.apiserver.own_node import Publishing
from agent.claims.messages import PrepareAnswer
from agent.claims.servicer import ClaimServicer
from agent.health.conditions import Condition, GpuHealth
from agent.kubelet.pb import dra_v1_pb2
from agent.ledgers.usage import Reading
from agent.limits.driver_limit_report import DriverLimitReport
from agent.limits.no_driver_limits import NoDriverLimits
from agent.limits.time_slice_manager import TimeSliceManager
from agent.roles.metric_collector import MetricCollector
from agent.telemetry.counters import Counters
from agent.telemetry.metrics import METRICS
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.deviceplugin.origin import with_origin
from gigaslice.core.limits.driver_limit_messages import GpuLimitState, PodLimitState
from gigaslice.runtime.metrics import Exposition
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import allocation, claim_allocation, consumer, inventory, uuid
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
        self.health = SimpleNamespace(cordons={}, gpus={}, silent={}, xids={})
        self.room = SimpleNamespace(problem="")
        gpus = inventory(gpus=1, slices=24)
        (self.gpu,) = gpus.gpus
        self.metrics = MetricCollector(
            resource="r",
            store=self.store,
            gpus=SimpleNamespace(now=gpus),
            servicer=SimpleNamespace(streams=1),
            health=self.health,
            memory_monitor=self.memory_monitor,
            auditor=self.auditor,
            counters=self.counters,
            room=self.room,
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
        return {name: series[()] for name, series in found.items() if "_inventory_" in name}

    assert told() == {}
    node.cluster.publishing = Publishing(0, 2, None, 7.5)
    assert told() == {
        "gigaslice_inventory_writes_total": 0,
        "gigaslice_inventory_write_failures_total": 2,
        "gigaslice_inventory_outdated_seconds": 7.5,
        "gigaslice_inventory_withheld": 0,
    }
    node.cluster.publishing = Publishing(0, 2, None, 7.5, withheld=True)
    assert told()["gigaslice_inventory_withheld"] == 1
    node.cluster.publishing = Publishing(1, 2, 1700000000.0, 0.0)
    assert told()["gigaslice_inventory_written_timestamp_seconds"] == 1700000000.0


# --- one container, one GPU ---------------------------------------------------------------------------------------

GPU = (uuid(0),)
OF_CONTAINER = (uuid(0), "default", "a", "c0", "", "")
GIB = 1 << 30


def series(node):
    return node.metrics.collect().series


def test_what_a_container_may_use_and_uses(tmp_path):
    node = Node(tmp_path)
    told = series(node)
    assert told["gigaslice_container_memory_peak_bytes"] == {OF_CONTAINER: 0}
    assert told["gigaslice_container_processes"] == {OF_CONTAINER[1:]: 0}
    assert told["gigaslice_container_start_waiting"] == {OF_CONTAINER[1:]: 0}
    for name in ("compute_limit_ratio", "memory_physical_limit_bytes", "memory_managed_bytes"):
        assert f"gigaslice_container_{name}" not in told, "only where there is such a limit"
    process = ProcessUsage(0, 101, 1, 1, {uuid(0): 3 * GIB}, {}, 0, "p")
    dead = ProcessUsage(1, 0, 0, 1, {uuid(0): 0}, {}, 0, "q", alive=False)
    reading = Reading(
        {uuid(0): 3 * GIB},
        {uuid(0): 5 * GIB},
        (process, dead),
        undeclared={uuid(0): GIB},
        cores={uuid(0): 30},
        shares={uuid(0): ShareUsage(1.0, 0.5, 0, False)},
    )
    node.memory_monitor.last = {node.allocation.id: MeasuredAllocation(reading, None)}
    told = series(node)
    assert told["gigaslice_container_memory_peak_bytes"] == {OF_CONTAINER: 5 * GIB}
    assert told["gigaslice_container_memory_undeclared_bytes"] == {OF_CONTAINER: GIB}
    assert told["gigaslice_container_compute_limit_ratio"] == {OF_CONTAINER: 0.3}
    assert told["gigaslice_container_processes"] == {OF_CONTAINER[1:]: 1}
    gone = replace(reading, processes=(dead,))
    node.memory_monitor.last = {node.allocation.id: MeasuredAllocation(gone, None)}
    assert series(node)["gigaslice_container_memory_undeclared_bytes"] == {OF_CONTAINER: 0}, "nobody holds it"


def test_claims_are_told_apart_whoever_uses_them(tmp_path):
    node = Node(tmp_path)
    pods = (consumer("p", "uid-p"), consumer("q", "uid-q"))
    node.holds(
        claim_allocation(1, "first", *pods, gib=2),
        claim_allocation(2, "second", *pods, gib=3),
        claim_allocation(3, "unused", gib=4),
        claim_allocation(4, "parts", pods[0], gib=5, requests=("a", "b")),
        claim_allocation(5, "parts", pods[1], gib=6, requests=("c",)),
    )
    node.round((0, 1, 3), spent=1.0)
    told = series(node)
    owners = {
        ("default", "", "c0", "first", "gpu"): 2,
        ("default", "", "c0", "second", "gpu"): 3,
        ("default", "", "", "unused", "gpu"): 4,
        ("default", "p", "c0", "parts", "a+b"): 5,
        ("default", "q", "c0", "parts", "c"): 6,
    }
    limits = {(uuid(0), *labels): gib * GIB for labels, gib in owners.items()}
    assert told["gigaslice_container_memory_limit_bytes"] == limits
    assert told["gigaslice_container_attached"].keys() == owners.keys()
    used = {labels for labels in owners if labels[3] != "unused"}
    assert told["gigaslice_container_oom_errors_total"] == dict.fromkeys(used, 3)
    assert told["gigaslice_container_compute_seconds_total"].keys() == {(uuid(0), *one) for one in used}


def test_time_that_launches_were_delayed_adds_up(tmp_path):
    node = Node(tmp_path)
    node.round((0, 1, 0), spent=1.0)
    assert node.round((0, 1, 0), spent=3.0)["gigaslice_container_compute_throttled_seconds_total"] == 1.5


def test_a_start_that_waits(tmp_path):
    node = Node(tmp_path)
    node.holds(replace(node.allocation, waiting=True))
    assert series(node)["gigaslice_container_start_waiting"] == {OF_CONTAINER[1:]: 1}


def test_a_container_that_may_use_host_memory(tmp_path):
    node = Node(tmp_path)
    node.holds(allocation(1, (0, range(8)), container=WHO, physical_bytes=2 * GIB))
    assert series(node)["gigaslice_container_memory_physical_limit_bytes"] == {OF_CONTAINER: 2 * GIB}
    reading = Reading({}, {}, physical={uuid(0): GIB}, managed={uuid(0): 3 * GIB})
    node.memory_monitor.last = {node.allocation.id: MeasuredAllocation(reading, None)}
    waited = [4_000_000, 1_000_000, 2_000_000]  # the second process after the first has ended
    for held_us in waited:
        node.time_slices.held_us = {(node.allocation.id, uuid(0)): held_us}
        told = series(node)
    assert told["gigaslice_container_memory_physical_limit_bytes"] == {OF_CONTAINER: GIB}, "as its page says"
    assert told["gigaslice_container_memory_managed_bytes"] == {OF_CONTAINER: 3 * GIB}
    assert told["gigaslice_container_time_slice_wait_seconds_total"] == {OF_CONTAINER: 4}, "it never falls"


def test_the_gpu_itself(tmp_path):
    node = Node(tmp_path)
    told = series(node)
    assert told["gigaslice_gpu_info"] == {(uuid(0), "0", node.gpu.model): 1}
    assert told["gigaslice_gpu_memory_bytes"] == {GPU: node.gpu.memory_bytes}
    assert told["gigaslice_gpu_slice_bytes"] == {GPU: GIB}
    assert "gigaslice_gpu_host_memory_bytes" not in told
    node.metrics._inventory = SimpleNamespace(now=inventory(gpus=1, slices=24, host_bytes=7 * GIB))
    assert series(node)["gigaslice_gpu_host_memory_bytes"] == {GPU: 7 * GIB}


def test_the_health_of_the_gpu(tmp_path):
    node = Node(tmp_path)
    told = series(node)
    assert "gigaslice_gpu_condition" not in told and "gigaslice_gpu_uncorrectable_errors" not in told
    sick = GpuHealth(conditions=(Condition("xid-79", "it fell off the bus"),), ecc=3)
    node.health.gpus = {uuid(0): sick}
    node.health.silent = {uuid(0): SimpleNamespace(lasting=True)}
    node.health.xids = {(uuid(0), 79): 2, (uuid(0), 13): 1}
    told = series(node)
    assert told["gigaslice_gpu_condition"] == {(*GPU, "xid-79"): 1, (*GPU, "silent"): 1}
    assert told["gigaslice_gpu_uncorrectable_errors"] == {GPU: 3}
    assert told["gigaslice_gpu_xid_errors_total"] == {(*GPU, "79"): 2, (*GPU, "13"): 1}
    node.health.silent = {uuid(0): SimpleNamespace(lasting=False)}
    assert (*GPU, "silent") not in series(node)["gigaslice_gpu_condition"]


@pytest.mark.parametrize("slicing", [True, False])
def test_time_slices_and_page_faults_of_the_gpu(tmp_path, slicing):
    node = Node(tmp_path)
    assert "gigaslice_gpu_time_slicing_active" not in series(node)
    state = SimpleNamespace(
        arbiter=SimpleNamespace(changes=3, mode="slicing" if slicing else "open", urgent=False),
        seconds=1.5,
        fits=not slicing,
        paging=None,
    )
    node.time_slices.gpus[uuid(0)] = state
    told = series(node)
    assert told["gigaslice_gpu_time_slicing_active"] == {GPU: int(slicing)}
    assert told["gigaslice_gpu_working_set_resident"] == {GPU: int(not slicing)}
    assert "gigaslice_gpu_page_faults_total" not in told, "nvidia-uvm does not count them"
    state.paging = SimpleNamespace(faults=5, bytes_in=6 * GIB, bytes_out=7 * GIB)
    told = series(node)
    assert told["gigaslice_gpu_page_faults_total"] == {GPU: 5}
    assert told["gigaslice_gpu_paged_in_bytes_total"] == {GPU: 6 * GIB}
    assert told["gigaslice_gpu_paged_out_bytes_total"] == {GPU: 7 * GIB}


def test_what_the_driver_keeps_and_counts_of_pods(tmp_path):
    node = Node(tmp_path)
    states = [("default", "a", PodLimitState("uid-a", True, gpus={uuid(0): GpuLimitState(8 * GIB, 3 * GIB)}))]
    report = DriverLimitReport("auto", backend="dmem", excess={uuid(0): 2 * GIB})
    node.metrics._driver_limits = SimpleNamespace(report=report, pod_states=lambda: iter(states))
    told = series(node)
    assert told["gigaslice_driver_limits"] == {("dmem",): 1}
    assert told["gigaslice_pod_driver_limit_bytes"] == {(*GPU, "default", "a"): 8 * GIB}
    assert told["gigaslice_pod_driver_used_bytes"] == {(*GPU, "default", "a"): 3 * GIB}
    assert told["gigaslice_gpu_driver_limits_excess_bytes"] == {GPU: 2 * GIB}


# --- the agent ----------------------------------------------------------------------------------------------------


def test_what_has_happened_to_the_agent(tmp_path):
    node = Node(tmp_path)
    told = series(node)
    assert told["gigaslice_build_info"] == {(vcuda.__version__, "r"): 1}
    assert told["gigaslice_state_dir_usable"] == {(): 1}
    for name in ("kubelet_registrations", "start_waits", "ledger_truncations"):
        assert told[f"gigaslice_{name}_total"] == {(): 0}
    assert "gigaslice_component_failures_total" not in told
    node.counters.registrations, node.counters.gate_waits, node.store.dirs.ledgers.cuts = 2, 3, 4
    node.counters.part_failed("health")
    node.counters.part_failed("health")
    node.room.problem = "the disk is full"
    told = series(node)
    assert told["gigaslice_kubelet_registrations_total"] == {(): 2}
    assert told["gigaslice_start_waits_total"] == {(): 3}
    assert told["gigaslice_ledger_truncations_total"] == {(): 4}
    assert told["gigaslice_component_failures_total"] == {("health",): 2}
    assert told["gigaslice_state_dir_usable"] == {(): 0}


class ClaimAnswers:
    """What serves the kubelet's calls: one claim is an error."""

    async def prepare(self, claims, remaining):
        del remaining
        return {claim.uid: PrepareAnswer(error="no room" if claim.uid == "bad" else "") for claim in claims}

    async def unprepare(self, claims):
        return {claim.uid: "the disk is full" if claim.uid == "bad" else "" for claim in claims}


def test_calls_about_claims_and_what_was_published_for_them(tmp_path):
    node = Node(tmp_path)
    assert not [name for name in series(node) if "_claim" in name or "_slice_write" in name]
    slices = SimpleNamespace(writes=3, failures=2, problem="the API server does not answer")
    node.metrics._claims = SimpleNamespace(
        preparation=SimpleNamespace(refusals=SimpleNamespace(waiting={"bad": "no room"})),
        slices=slices,
        registration=SimpleNamespace(accepted=True),
    )
    methods = ClaimServicer(ClaimAnswers(), node.counters).methods
    context = SimpleNamespace(time_remaining=lambda: 40.0)
    names = [dra_v1_pb2.Claim(namespace="ns", name=uid, uid=uid) for uid in ("good", "bad")]
    for method, times in (("NodePrepareResources", 2), ("NodeUnprepareResources", 1)):
        request = getattr(dra_v1_pb2, f"{method}Request")(claims=names)
        for _ in range(times):
            asyncio.run(methods[f"v1.{method}"].answer(request, context))
    text = Exposition(node.metrics.collect).prepare()().decode()
    assert "gigaslice_claim_prepare_duration_seconds_count 2.0" in text
    assert "gigaslice_claim_unprepare_duration_seconds_count 1.0" in text
    told = series(node)
    assert told["gigaslice_claim_errors_total"] == {("prepare",): 2, ("unprepare",): 1}
    assert told["gigaslice_claims_refused"] == {(): 1}
    assert told["gigaslice_slice_writes_total"] == {(): 3}
    assert told["gigaslice_slice_write_failures_total"] == {(): 2}
    assert told["gigaslice_slices_published"] == {(): 0}
    slices.problem = ""
    assert series(node)["gigaslice_slices_published"] == {(): 1}
