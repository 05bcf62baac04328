# SPDX-License-Identifier: Apache-2.0
"""What the auditor says, and when: over a cluster and a store that the test holds."""

import asyncio

import pytest

from agent.accounting.auditor import Auditor
from agent.accounting.overuse import OverusePolicy
from agent.apiserver import Eviction
from agent.ledgers.usage import Reading
from agent.telemetry.counters import Counters
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.kube.cgroups import Place
from gigaslice.core.model import Pod
from tests.fakes.nodes import GIB, allocation, claim_allocation, consumer, uuid
from vcuda import ProcessUsage

UID, ID = "2c48913c-b29f-11e7-9350-020968147796", "a1" * 32
OTHER = "ffffffff-b29f-11e7-9350-020968147796"
POD = Pod("default", "a", UID)


class Cluster:
    def __init__(self):
        self.pods = {("default", "a"): POD}
        self.events = []
        self.evicted = []
        self.tried = []
        self.answer = Eviction()

    def pod(self, namespace, name):
        return self.pods.get((namespace, name))

    def event(self, pod, kind, reason, text, container=""):
        self.events.append((pod.name, kind, reason, text, container))

    async def evict(self, pod, *, dry_run=False):
        (self.tried if dry_run else self.evicted).append(pod)
        return self.answer


class World:
    def __init__(self, root, mode="report", **policy):
        self.allocation = allocation(1, (0, range(8)), container=ContainerRef("default", "a", "c0"))
        self.table = AllocationTable((self.allocation,), 2)
        self.cluster = Cluster()
        self.counters = Counters()
        self.now = 0.0
        self.root = root
        self.reading = Reading({}, {})
        self.owners = {}
        self.auditor = Auditor(
            self, self.cluster, OverusePolicy(mode, **policy), self.counters, now=lambda: self.now, proc=root
        )
        directory = root / "10"
        directory.mkdir()
        (directory / "comm").write_text("sneaky\n")
        (directory / "cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")

    def rounds(self, number, memory=9 * GIB):
        async def run():
            for _ in range(number):
                measured = {uuid(0): {10: memory} if memory else {}}
                found = self.auditor.audit(
                    measured,
                    self.auditor.read_processes(measured),
                    self.owners,
                    {self.allocation.id: self.reading},
                )
                await asyncio.sleep(0)
            return found

        return asyncio.run(run())

    def reasons(self):
        return [reason for _, _, reason, _, _ in self.cluster.events]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_its_memory_counts_from_the_first_round(world):
    assert world.rounds(1, GIB) == {world.allocation.id: {uuid(0): GIB}}
    assert world.cluster.events == []


def test_a_process_without_the_library_is_told_once_when_it_lasts(world):
    world.rounds(10, GIB)
    ((pod, kind, reason, text, container),) = world.cluster.events
    assert (pod, kind, reason, container) == ("a", "Warning", "ProcessWithoutLibrary", "c0")
    assert f"process 10 (sneaky) holds 1 GiB of {uuid(0)}" in text


def test_one_that_comes_and_goes_is_told_only_when_it_stays(world):
    for _ in range(5):
        world.rounds(2, GIB)
        world.rounds(1, 0)
    assert world.cluster.events == []


def test_more_than_the_quota_is_told_and_by_default_nothing_else_happens(world):
    world.rounds(10)
    assert world.reasons() == ["ProcessWithoutLibrary", "GPUMemoryOveruse"]
    assert "1 GiB" in world.cluster.events[1][3]
    assert world.cluster.evicted == []


def test_by_policy_the_pod_is_told_then_given_time_then_evicted(tmp_path):
    world = World(tmp_path, "evict", grace=30)
    world.rounds(3)
    assert "the pod is evicted if that lasts 30 seconds more" in world.cluster.events[-1][3]
    world.now += 29
    world.rounds(3)
    assert world.cluster.evicted == []
    world.now += 1
    world.rounds(5)
    assert world.cluster.evicted == [POD]
    assert world.counters.evictions == 1
    assert world.reasons() == ["ProcessWithoutLibrary", "GPUMemoryOveruse", "EvictionPending"]


def test_of_a_shared_quota_every_pod_is_told_and_evicted(tmp_path):
    other, going = Pod("default", "b", OTHER), Pod("default", "c", "uid-c", ending=True)
    world = World(tmp_path, "evict", grace=30)
    world.cluster.pods |= {("default", pod.name): pod for pod in (other, going)}
    consumers = [consumer(pod.name, pod.uid) for pod in (POD, other, going)]
    world.allocation = claim_allocation(1, "shared", *consumers)
    world.table = AllocationTable((world.allocation,), 2)
    world.rounds(3)
    told = {(pod, reason) for pod, _, reason, _, _ in world.cluster.events}
    assert {("a", "GPUMemoryOveruse"), ("b", "GPUMemoryOveruse")} <= told
    world.now += 30
    world.rounds(5)
    assert world.cluster.evicted == [POD, other], "and not the one that ends by itself"
    assert world.counters.evictions == 2
    told = [pod for pod, _, reason, _, _ in world.cluster.events if reason == "EvictionPending"]
    assert set(told) >= {"a", "b"}


def test_a_shared_quota_without_pods_evicts_none(tmp_path):
    world = World(tmp_path, "evict", grace=0)
    world.allocation = claim_allocation(1, "shared")
    world.table = AllocationTable((world.allocation,), 2)
    world.owners = {10: world.allocation.id}
    world.rounds(5)
    assert world.cluster.evicted == [] and world.cluster.events == []


def test_who_stops_in_time_begins_anew(tmp_path):
    world = World(tmp_path, "evict", grace=30)
    for _ in range(4):
        world.rounds(3)
        world.now += 29
        world.rounds(1, 8 * GIB)
        world.now += 5
    assert world.cluster.evicted == []


@pytest.mark.parametrize(("above", "evicted"), [(GIB, []), (GIB - 1, [POD])])
def test_a_little_too_much_is_let_pass(tmp_path, above, evicted):
    world = World(tmp_path, "evict", grace=0, above=above)
    world.rounds(5)
    assert world.cluster.evicted == evicted
    assert ("evicted" in world.cluster.events[1][3]) == bool(evicted), "no threat that is not meant"


@pytest.mark.parametrize(
    ("used", "evicted"), [(None, []), (8 * GIB, []), (9 * GIB, []), (9 * GIB + 1, [POD])]
)
def test_what_the_driver_counts_for_a_pod_counts_where_it_is_more_than_nvml_shows(tmp_path, used, evicted):
    world = World(tmp_path, "evict", grace=0, above=GIB)
    world.auditor._driver_used = lambda allocation, gpu: used
    world.rounds(10)
    assert world.cluster.evicted == evicted


def test_within_its_quota_no_pod_is_evicted(tmp_path):
    world = World(tmp_path, "evict", grace=0)
    world.rounds(10, 8 * GIB)
    assert world.cluster.evicted == []


def test_a_dry_run_asks_and_evicts_no_pod(tmp_path):
    world = World(tmp_path, "dry-run", grace=0)
    world.rounds(5)
    world.now += 300
    world.rounds(5)
    assert world.cluster.evicted == [] and world.cluster.tried == [POD]
    assert world.counters.evictions == 0
    assert world.reasons() == ["ProcessWithoutLibrary", "GPUMemoryOveruse"]
    assert "would be (dry run) evicted" in world.cluster.events[1][3]


def test_an_eviction_that_is_refused_is_asked_for_again_later(tmp_path):
    world = World(tmp_path, "evict", grace=0)
    world.cluster.answer = Eviction("a PodDisruptionBudget does not allow it")
    world.rounds(5)
    world.now += 60
    world.rounds(1)
    assert len(world.cluster.evicted) == 2
    assert world.counters.evictions == 0
    world.cluster.answer = Eviction()
    world.now += 60
    world.rounds(1)
    assert world.counters.evictions == 1


def test_a_pod_that_went_by_itself_is_no_eviction_of_ours(tmp_path):
    world = World(tmp_path, "evict", grace=0)
    world.cluster.answer = Eviction(gone=True)
    world.rounds(5)
    assert world.cluster.evicted == [POD]
    assert world.counters.evictions == 0


@pytest.mark.parametrize(("over_limit", "evicted"), [(False, []), (True, [POD])])
def test_a_limit_lowered_below_use_evicts_no_pod_unless_the_policy_says_so(tmp_path, over_limit, evicted):
    world = World(tmp_path, "evict", grace=0, over_limit=over_limit)
    process = ProcessUsage(0, 11, 11, 1, {uuid(0): 6 * GIB}, {uuid(0): 6 * GIB}, 0, "p")
    world.reading = Reading({uuid(0): 6 * GIB}, {uuid(0): 6 * GIB}, (process,), limits={uuid(0): 4 * GIB})
    world.rounds(5, 0)
    ((_, kind, reason, text, container), *rest) = world.cluster.events
    assert (kind, reason, container) == ("Warning", "GPULimitExceeded", "c0")
    assert f"holds 2 GiB of {uuid(0)} beyond its limit" in text and "no more until" in text
    assert ("no pod is evicted" in text) == (not over_limit)
    assert world.cluster.evicted == evicted
    assert [one[2] for one in rest] == ["EvictionPending"] * len(evicted)


@pytest.mark.parametrize("mode", ["report", "evict"])
def test_a_process_with_a_slot_that_holds_more_is_treated_as_one_without(tmp_path, mode):
    """Declares 1 GiB of its 8 and holds 60, which a plug-in took that passes the library by."""
    world = World(tmp_path, mode, grace=0)
    process = ProcessUsage(0, 10, 10, 1, {uuid(0): GIB}, {uuid(0): GIB}, 0, "p")
    world.reading = Reading({uuid(0): GIB}, {uuid(0): GIB}, (process,), limits={uuid(0): 8 * GIB})
    world.owners = {10: world.allocation.id}
    world.rounds(2, 60 * GIB)
    assert world.cluster.events == []
    world.rounds(3, 60 * GIB)
    assert world.reasons() == ["GPUMemoryOveruse"] + ["EvictionPending"] * (mode == "evict")
    assert f"holds 52 GiB of {uuid(0)} beyond its quota, used by a part" in world.cluster.events[0][3]
    assert world.cluster.evicted == ([POD] if mode == "evict" else [])


@pytest.mark.parametrize(("mode", "size"), [("report", 60 * GIB), ("evict", 60 * GIB), ("evict", GIB // 8)])
def test_a_ledger_that_is_made_to_grow_is_told_and_ended_by_policy(tmp_path, mode, size):
    world = World(tmp_path, mode, grace=0, above=GIB // 4)
    world.reading = Reading({}, {}, grew=size)
    world.rounds(2, 0)
    world.reading = Reading({}, {})
    world.rounds(1, 0)
    assert world.cluster.events == [], "what happens once is cut, counted and in the log"
    world.reading = Reading({}, {}, grew=size)
    world.rounds(4, 0)
    evicts = mode == "evict" and size > GIB
    assert world.reasons() == ["LedgerTruncated"] + ["EvictionPending"] * evicts
    assert ("no pod is evicted" in world.cluster.events[0][3]) == (not evicts)
    assert world.cluster.evicted == [POD] * evicts


def test_a_context_on_top_of_a_full_quota_is_nothing_to_speak_of(tmp_path):
    world = World(tmp_path, "evict", grace=0)
    process = ProcessUsage(0, 10, 10, 1, {uuid(0): 8 * GIB}, {uuid(0): 8 * GIB}, 0, "p")
    world.reading = Reading({uuid(0): 8 * GIB}, {uuid(0): 8 * GIB}, (process,), limits={uuid(0): 8 * GIB})
    world.owners = {10: world.allocation.id}
    world.rounds(9, 9 * GIB)
    assert world.cluster.events == [] and world.cluster.evicted == []


def test_what_a_dead_process_held_is_no_offence(tmp_path):
    world = World(tmp_path, "evict", grace=0, over_limit=True)
    world.reading = Reading({uuid(0): 6 * GIB}, {uuid(0): 6 * GIB}, (), limits={uuid(0): 4 * GIB})
    world.rounds(5, 0)
    assert world.cluster.events == []


def test_without_the_pods_name_nothing_can_be_evicted(tmp_path):
    world = World(tmp_path, "evict")
    world.rounds(1)
    world.cluster.pod = lambda *_: None
    world.rounds(5)
    assert world.cluster.evicted == world.cluster.events == []


def test_a_container_that_never_attached_is_told_after_a_while(world):
    world.rounds(1, 0)
    world.now += 599
    world.rounds(1, 0)
    assert world.cluster.events == []
    world.now += 1
    world.rounds(3, 0)
    ((_, kind, reason, _, _),) = world.cluster.events
    assert (kind, reason) == ("Normal", "LibraryNotAttached")


@pytest.mark.parametrize("reading", [Reading({}, {uuid(0): 1}), Reading({}, {}, problem="damaged")])
def test_one_that_was_attached_or_cannot_be_read_is_not(world, reading):
    world.reading = reading
    world.now += 10000
    world.rounds(3, 0)
    assert world.cluster.events == []


@pytest.mark.parametrize(("own", "place"), [(UID, None), ("f" * 32, Place(UID, ID))])
def test_a_process_of_the_agents_own_pod_is_in_no_pod_that_is_known(tmp_path, own, place):
    """The node is a pod itself, as where these tests run in one: its containers are in the agent's own pod."""
    world = World(tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text("agent\n")
    (tmp_path / "1" / "cgroup").write_text(f"0::/kubepods/pod{own}/{ID}\n")
    (tmp_path / "self").symlink_to("1")
    (seen,) = world.auditor.read_processes({uuid(0): {10: GIB}})
    assert seen.place == place
