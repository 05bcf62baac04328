# SPDX-License-Identifier: Apache-2.0
"""A used-up quota is told to its pod: not what an allocator gets over by itself, and not again and again."""

from __future__ import annotations

from agent.apiserver.consumer_pods import ConsumerPods
from agent.ledgers.usage import Reading
from agent.limits.quota_refusals import QuotaRefusals
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.model import Pod
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import GIB, allocation, uuid
from vcuda import ProcessUsage

GPU = uuid(0)


def process(refused: int, pid: int = 7) -> ProcessUsage:
    return ProcessUsage(pid, pid, pid, 1, {GPU: 7 * GIB}, {}, refused, "python")


class Scene:
    def __init__(self, *, before: int | None = None) -> None:
        self.cluster = MemoryCluster()
        self.cluster.put(Pod("default", "p", "u"))
        self.share = allocation(1, (0, range(8)), container=ContainerRef("default", "p", "main"))
        self.table = AllocationTable().with_allocation(self.share)
        self.readings: dict[str, Reading] = {}
        self.time = 100.0
        if before is not None:
            self.refuse(process(before))
        tables = iter([AllocationTable() if before is None else self.table])
        self.refusals = QuotaRefusals(
            lambda: next(tables, self.table),
            lambda: self.readings,
            pods=ConsumerPods(self.cluster),
            interval=1.0,
            now=lambda: self.time,
        )

    def refuse(self, *processes: ProcessUsage, problem: str | None = None) -> None:
        self.readings = {
            self.share.id: Reading({GPU: 7 * GIB}, {}, processes, limits={GPU: 8 * GIB}, problem=problem)
        }

    def texts(self) -> list[str]:
        self.refusals.look()
        assert {reason for _, reason, _, _ in self.cluster.events} <= {"GPUQuotaUsedUp"}
        return [text for _, _, text, _ in self.cluster.events]


def test_two_refusals_of_a_process_are_told_with_the_containers_own_numbers() -> None:
    scene = Scene()
    assert scene.texts() == []
    scene.refuse(process(2))
    (text,) = scene.texts()
    assert "2 allocations were refused" in text and f"7 GiB of 8 GiB on {GPU}" in text
    assert len(scene.texts()) == 1


def test_one_at_a_time_is_what_an_allocator_gets_over() -> None:
    scene = Scene()
    for count in range(5):
        scene.refuse(process(count), process(count, pid=8))
        assert scene.texts() == []


def test_it_is_told_once_in_ten_minutes_with_all_that_were_refused() -> None:
    scene = Scene()
    for count in (2, 4, 8):
        scene.refuse(process(count))
        assert len(scene.texts()) == 1
    scene.time += 599
    assert len(scene.texts()) == 1
    scene.time += 1
    assert "6 allocations were refused" in scene.texts()[1]
    scene.time += 1000
    assert len(scene.texts()) == 2


def test_what_was_counted_before_the_agent_started_is_not_told_again() -> None:
    scene = Scene(before=9)
    assert scene.texts() == []
    scene.refuse(process(11))
    assert "2 allocations" in scene.texts()[0]


def test_a_slot_that_changed_hands_begins_anew() -> None:
    scene = Scene()
    scene.refuse(process(2))
    scene.texts()
    scene.time += 1000
    scene.refuse(process(3, pid=9))
    assert "3 allocations" in scene.texts()[1]


def test_a_ledger_that_cannot_be_read_for_a_while_is_not_begun_anew() -> None:
    scene = Scene()
    scene.refuse(process(2))
    scene.texts()
    scene.time += 1000
    scene.refuse(problem="damaged")
    scene.texts()
    scene.refuse(process(2))
    assert len(scene.texts()) == 1


def test_an_allocation_that_has_ended_is_forgotten() -> None:
    scene = Scene()
    scene.refuse(process(2))
    scene.texts()
    share, scene.table = scene.table, AllocationTable()
    scene.texts()
    scene.table = share
    scene.refuse(process(5))
    assert len(scene.texts()) == 2
