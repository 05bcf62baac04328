# SPDX-License-Identifier: Apache-2.0
"""What reaches the pages of running containers: changes by command and by annotation, elastic limits, what is said."""

import asyncio
import contextlib
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vcuda
from agent.allocation.request import ImpossibleError
from agent.deviceplugin.requester import ContainerMatch, Requester
from agent.deviceplugin.settlement import Settler
from agent.deviceplugin.withholding import Withholding
from agent.inventory.holder import InventoryHolder
from agent.limits.manager import LimitChange, LimitsManager
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.allocation.table import AllocationOptions
from gigaslice.core.deviceplugin.handing_out import with_freed
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.limits.live_limits import ResizeRefusal
from gigaslice.core.model import ANNOTATIONS, AnnotationRights
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import GIB, device_allocator, device_ids, inventory, uuid
from tests.fakes.pods import gpu_pod
from vcuda import contract

GPU = "gigaslice.io/vgpu-memory"


class Node:
    """Store, allocator and manager as the agent joins them; the test is kubelet and API server."""

    def __init__(self, directory, rights=AnnotationRights.CHECKED):
        self.rights = rights
        self.directory = directory
        self.cluster = MemoryCluster()
        self.shown = frozenset()
        self.outlived = set()
        self.driver_room = None
        self.numbers = itertools.count(1)
        self.start()

    def start(self):
        library = self.directory / "libvcuda.so"
        library.write_bytes(b"\x7fELF library")
        self.gpus = InventoryHolder(inventory())
        self.store = Store(self.directory / "state", library, gpu_bytes=self.gpus.gpu_bytes, codec=CODEC)
        self.store.open()
        self.allocator = device_allocator(
            self.store, self.gpus, new_id=lambda: f"{next(self.numbers):032x}", rights=self.rights
        )
        self.manager = LimitsManager(
            self.store,
            self.allocator.service,
            self.cluster,
            slice_bytes=GIB,
            interval=0.01,
            rights=self.rights,
            most=lambda allocation, gpu: self.driver_room,
        )
        self.withholding = Withholding(
            self.store,
            self.gpus,
            self.cluster,
            interval=0.01,
            withhold=self.withhold,
            outlived=lambda: self.outlived,
        )
        self.manager.refresh(every=True)

    def withhold(self, found):
        self.shown = found

    def pod(self, name, *counts, **more):
        return self.cluster.put(gpu_pod(name, *counts, **more))

    def admit(self, name, numbers, gpu=0, container=0, **annotations):
        pod = self.pod(name, len(numbers), **annotations)
        requester = Requester(pod, pod.containers[container])
        (allocation,) = self.allocator.allocate(
            [sorted(device_ids(gpu, *numbers))], ContainerMatch(requester)
        )
        self.manager.changed()
        return allocation.id

    def annotate(self, name, **annotations):
        pod = self.cluster.pod("default", name)
        full = {"gigaslice.io/" + key.replace("_", "-"): text for key, text in annotations.items()}
        self.cluster.put(replace(pod, annotations=full))
        self.round()

    def round(self):
        async def main():
            tasks = [asyncio.create_task(part.run()) for part in (self.manager, self.withholding)]
            await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(main())

    def page(self, allocation_id):
        (gpu,) = vcuda.read_limits(self.store.dirs.path(allocation_id) / contract.LIMITS_FILE).gpus
        return gpu.memory_bytes // GIB, gpu.cores_percent

    def resize(self, pod, **what):
        return self.manager.resize(LimitChange("default", pod, **what))


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.store.close()


def test_a_change_is_in_the_page_the_allocation_table_and_the_directory(node):
    one = node.admit("a", range(8))
    outcome = node.resize("a", memory=12 * GIB, cores=40)
    assert outcome.before.quota() == {uuid(0): 8 * GIB}
    assert node.page(one) == (12, 40)
    assert node.store.table.find(one).quota() == {uuid(0): 12 * GIB}
    assert node.store.dirs.read_all()[one] == node.store.table.find(one)
    node.round()
    assert node.shown == device_ids(0, 20, 21, 22, 23)


def test_a_page_grows_no_further_than_the_driver_allows_and_shrinks_at_once(node):
    one = node.admit("a", range(8))
    node.driver_room = 10 * GIB
    node.resize("a", memory=12 * GIB)
    assert node.page(one) == (10, 0) and node.store.table.find(one).quota() == {uuid(0): 12 * GIB}
    node.driver_room = 6 * GIB
    node.manager.refresh()
    assert node.page(one) == (10, 0), "what the page has promised stays"
    node.driver_room = 12 * GIB
    node.manager.refresh()
    assert node.page(one) == (12, 0)
    node.driver_room = 10 * GIB
    node.resize("a", memory=4 * GIB)
    assert node.page(one) == (4, 0)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"pod": "b", "memory": GIB}, "holds no slices of this node"),
        ({"pod": "a", "memory": GIB, "container": "x"}, "but c0"),
        ({"pod": "a"}, "--memory or --cores"),
        ({"pod": "a", "memory": GIB, "gpu": uuid(1)}, "has no slices of"),
        ({"pod": "a", "memory": 25 * GIB}, "24 GiB in all"),
        ({"pod": "a", "cores": 101}, "0 to 100"),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_says_why(node, ask, words):
    one = node.admit("a", range(8))
    before = node.store.table
    refusal = node.resize(**ask)
    assert isinstance(refusal, ResizeRefusal) and words in refusal.detail
    assert node.store.table is before and node.page(one) == (8, 0)


def test_a_gpu_is_named_by_the_beginning_of_its_uuid(node):
    one = node.admit("a", range(8))
    node.resize("a", memory=4 * GIB, gpu=uuid(0)[:12].upper())
    assert node.page(one) == (4, 0)
    assert "has no slices of GPU-ffff" in node.resize("a", memory=GIB, gpu="GPU-ffff").detail


def test_of_several_containers_one_has_to_be_named(node):
    pod = node.pod("a", 4, 4)
    for container, numbers in zip(pod.containers, (range(4), range(4, 8)), strict=True):
        node.allocator.allocate([sorted(device_ids(0, *numbers))], ContainerMatch(Requester(pod, container)))
    assert "--container c0|c1" in node.resize("a", memory=GIB).detail
    node.resize("a", memory=GIB, container="c1")
    assert sorted(sum(one.quota().values()) for one in node.store.table.allocations) == [GIB, 4 * GIB]


def test_init_containers_stay_as_they_are(node):
    pod = node.pod("a", 4, init=(4,))
    node.allocator.allocate(
        [sorted(device_ids(0, *range(4)))], ContainerMatch(Requester(pod, pod.containers[0]))
    )
    assert "init container" in node.resize("a", memory=GIB).detail


@pytest.mark.parametrize("reached", ["table", "directory", "page"])
def test_a_killed_agents_successor_carries_out_what_the_allocation_table_says(node, monkeypatch, reached):
    """Killed after the allocation table, after the directory's record, or after the page."""

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    one = node.admit("a", range(8))
    if reached == "table":
        monkeypatch.setattr(node.store.dirs, "write_allocation", die)
    if reached == "directory":
        monkeypatch.setattr(node.store.dirs, "set_limits", die)
    try:
        node.resize("a", memory=12 * GIB)
    except Killed:
        assert node.page(one) == (8, 0)
    node.store.close()
    node.start()
    assert node.page(one) == (12, 0)
    assert node.store.dirs.read_all()[one].quota() == {uuid(0): 12 * GIB}


@pytest.mark.parametrize("lost", ["checkpoint.json", "both"])
def test_a_lost_checkpoint_loses_no_change(node, lost):
    one = node.admit("a", range(8))
    node.resize("a", memory=12 * GIB)
    node.store.close()
    (node.store.state_dir / "checkpoint.json").write_bytes(b"x")
    if lost == "both":
        (node.store.state_dir / "checkpoint.json.previous").unlink()
    node.start()
    assert node.store.table.find(one).quota() == {uuid(0): 12 * GIB}
    assert node.page(one) == (12, 0)


def test_a_directory_made_anew_has_the_new_limit(node):
    one = node.admit("a", range(8))
    node.resize("a", memory=12 * GIB, cores=30)
    node.store.dirs.rebuild(node.store.table.find(one))
    assert node.page(one) == (12, 30)


def test_an_annotation_that_is_changed_changes_the_limit(node):
    one = node.admit("a", range(8))
    node.round()
    assert node.page(one) == (8, 0)
    node.annotate("a", memory="6GiB", cores="30")
    assert node.page(one) == (6, 30)
    assert "6 GiB" in node.cluster.said("GPUResizeCompleted")[0]
    node.annotate("a", memory="8GiB", cores="30")
    assert node.page(one) == (8, 30), "back up to what was requested"
    node.annotate("a", memory="4GiB")
    node.annotate("a")
    assert node.page(one) == (8, 0), "without the annotation, what was asked for at first"


@pytest.mark.parametrize("memory", ["9", "9GiB", "12GiB", " 16GiB ", "400GiB", "999999"])
@pytest.mark.parametrize("key", ["gigaslice.io/memory", "gigaslice.io/memory.c0"])
def test_an_annotation_gives_no_more_than_was_requested(node, key, memory):
    """A ResourceQuota has counted eight slices, and whoever made the pod may write this."""
    one = node.admit("a", range(8))
    pod = node.cluster.pod("default", "a")
    node.cluster.put(replace(pod, annotations={key: memory}))
    node.round()
    assert node.page(one) == (8, 0)
    assert node.store.table.find(one).quota() == {uuid(0): 8 * GIB}
    (said,) = node.cluster.said("InvalidAnnotation")
    assert "the 8 GiB that the container requests" in said and "gigaslice resize" in said
    assert not node.cluster.said("GPUResizeCompleted")


def test_of_several_gpus_the_sum_is_what_was_requested(node):
    pod = node.pod("a", 8, gpus="2")
    ids = sorted(device_ids(0, *range(4)) | device_ids(1, *range(4)))
    (made,) = node.allocator.allocate([ids], ContainerMatch(Requester(pod, pod.containers[0])))
    assert sorted(made.quota().values()) == [4 * GIB, 4 * GIB]
    node.annotate("a", gpus="2", memory="2,6")
    assert sorted(node.store.table.find(made.id).quota().values()) == [2 * GIB, 6 * GIB]
    node.annotate("a", gpus="2", memory="3,6")
    assert sorted(node.store.table.find(made.id).quota().values()) == [2 * GIB, 6 * GIB]
    assert "9 GiB are more than the 8 GiB" in node.cluster.said("InvalidAnnotation")[0]


def test_what_an_operator_gave_stands_until_the_annotation_is_edited_within_the_request(node):
    one = node.admit("a", range(8))
    node.resize("a", memory=12 * GIB)
    node.annotate("a", memory="11GiB")
    assert node.page(one) == (12, 0), "neither taken nor a way to more"
    node.store.close()
    node.start()
    node.round()
    assert node.page(one) == (12, 0)
    node.annotate("a", memory="8GiB")
    assert node.page(one) == (8, 0)
    node.resize("a", memory=12 * GIB)
    assert node.page(one) == (12, 0)


def test_a_limit_that_an_annotation_once_raised_stays_until_its_pod_ends(node):
    """An agent from before this rule let annotations grow; its successor takes nothing away from a running pod."""
    one = node.admit("a", range(8))
    node.resize("a", memory=12 * GIB)
    grown = node.store.table.find(one)
    node.store.update(node.store.table.replaced([replace(grown, policy=replace(grown.policy, parts=(12,)))]))
    node.store.close()
    node.start()
    node.annotate("a", memory="12GiB")
    assert node.page(one) == (12, 0)
    node.annotate("a", memory="12GiB", cores="30")
    assert node.page(one) == (12, 30)
    node.annotate("a", memory="13GiB")
    node.annotate("a", memory="10GiB")
    assert node.page(one) == (12, 30)
    node.annotate("a", memory="8GiB")
    assert node.page(one) == (8, 0)


def test_an_annotation_that_was_there_at_first_changes_nothing_and_undoes_no_command(node):
    one = node.admit("a", range(8), memory="8")
    node.resize("a", memory=10 * GIB)
    node.round()
    node.store.close()
    node.start()
    node.round()
    assert node.page(one) == (10, 0)
    node.annotate("a", memory="7")
    assert node.page(one) == (7, 0)


def test_a_pod_is_told_what_cannot_be_done_and_gets_it_when_it_can(node):
    one = node.admit("a", range(8))
    node.annotate("a", memory="4GiB")
    other = node.admit("b", range(8, 24))
    node.resize("b", memory=20 * GIB)
    node.annotate("a", memory="8GiB")
    assert node.page(one) == (4, 0)
    assert "0 B are free" in node.cluster.said("GPUResizeDeferred")[0]
    node.store.update(node.store.table.without([other]))
    node.round()
    assert node.page(one) == (8, 0)


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [({"memory": "lots"}, "InvalidAnnotation"), ({"memory": "4,4"}, "GPUResizeDeferred")],
)
def test_mistakes_in_annotations_of_running_pods_are_told_and_change_nothing(node, annotation, reason):
    one = node.admit("a", range(8))
    node.annotate("a", **annotation)
    assert node.page(one) == (8, 0)
    assert node.cluster.said(reason)


@pytest.fixture
def refusing(tmp_path):
    """A node on which nothing has compared annotations with labels."""
    made = Node(tmp_path, AnnotationRights.REFUSE)
    yield made
    made.store.close()


TAKING = [("exclusive", "true"), ("elastic", "true"), ("elastic", "16GiB"), ("priority", "guaranteed"),
          ("time-slicing", "false"), ("memory", "16GiB")]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), TAKING)
@pytest.mark.parametrize("suffix", ["", ".c0"])
def test_no_edit_of_a_running_pod_takes_more_than_was_counted(refusing, name, text, suffix):
    one = refusing.admit("a", range(8), cores="20")
    before = refusing.store.table.find(one)
    pod = refusing.cluster.pod("default", "a")
    key = f"gigaslice.io/{name}{suffix}"
    refusing.cluster.put(replace(pod, annotations={**pod.annotations, key: text}))
    refusing.round()
    assert refusing.store.table.find(one) == before and refusing.page(one) == (8, 20)
    assert key.removesuffix(".c0") in refusing.cluster.said("InvalidAnnotation")[0]


@pytest.mark.parametrize(("name", "text"), TAKING)
def test_nor_does_one_at_its_creation(refusing, name, text):
    one = refusing.admit("a", range(8), **{name.replace("-", "_"): text})
    refusing.round()
    made = refusing.store.table.find(one)
    assert made.origin.undecided, "it is held back until the annotation is corrected"
    assert made.policy == AllocationOptions() and refusing.page(one) == (8, 0)
    pod = refusing.cluster.pod("default", "a")
    reason = (
        Settler(refusing.store, refusing.allocator).settle(made, Requester(pod, pod.containers[0])).reason
    )
    assert reason is not None and f"gigaslice.io/{name}" in reason
    better = replace(pod, annotations={})
    assert (
        Settler(refusing.store, refusing.allocator)
        .settle(made, Requester(better, better.containers[0]))
        .reason
        is None
    )


def test_what_a_running_pod_was_given_stays_with_it(tmp_path):
    """The agent before this one took these annotations from everybody."""
    before = Node(tmp_path)
    one = before.admit("a", range(8), elastic="16GiB", priority="guaranteed", exclusive="true", cores="30")
    before.round()
    assert before.page(one) == (16, 0)
    given = before.store.table.find(one)
    before.store.close()
    before.rights = AnnotationRights.REFUSE
    before.start()
    try:
        before.round()
        assert before.store.table.find(one) == given and before.page(one) == (16, 0)
        assert not before.cluster.said("InvalidAnnotation"), "nothing of it has been edited"
        said = {"elastic": "16GiB", "priority": "guaranteed", "exclusive": "true"}
        before.annotate("a", **said, cores="40")
        assert before.store.table.find(one).cores_of(uuid(0)) == 40, "other edits work"
        before.annotate("a", **{**said, "elastic": "true"}, cores="40")
        assert before.page(one) == (16, 0) and before.cluster.said("InvalidAnnotation")
        before.annotate("a", cores="40")
        assert before.page(one) == (8, 40)
        before.annotate("a", **said, cores="40")
        assert before.page(one) == (8, 40), "given up is given up"
        policy = before.store.table.find(one).policy
        assert (policy.elastic, policy.priority, policy.exclusive) == (False, "burstable", True)
    finally:
        before.store.close()


PLAUSIBLE = {
    "gpus": ["1", "2", "9"],
    "memory": ["1", "8", "9", "16GiB", "400GiB", "4,4", "2,6", "7,9", "24,24"],
    "exclusive": ["true", "yes", " 1 ", "false"],
    "cores": ["0", "30", "100", "101"],
    "cores-policy": ["elastic", "hard"],
    "priority": ["guaranteed", " Guaranteed", "burstable"],
    "elastic": ["true", "16GiB", "24", "false"],
    "oversubscribe": ["true"],
    "time-slicing": ["false", "no", "true"],
}


@st.composite
def annotated(draw):
    """Annotations of a pod: mostly of those that are about amounts, with texts that make sense."""
    names = draw(st.lists(st.sampled_from([*PLAUSIBLE, *(row.name for row in ANNOTATIONS)]), max_size=3))
    return {
        f"gigaslice.io/{name}{draw(st.sampled_from(['', '.c0']))}": draw(
            st.sampled_from(PLAUSIBLE[name])
            if name in PLAUSIBLE and draw(st.integers(0, 9))
            else st.text(max_size=6)
        )
        for name in names
    }


@settings(max_examples=200, deadline=None)
@given(st.lists(annotated(), min_size=1, max_size=5))
def test_whatever_is_written_nothing_is_more_than_was_counted(written):
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory), AnnotationRights.REFUSE)
        try:
            pod = node.cluster.put(replace(node.pod("a", 8), annotations=written[0]))
            requester = Requester(pod, pod.containers[0])
            with contextlib.suppress(ImpossibleError):
                node.allocator.allocate([sorted(device_ids(0, *range(8)))], ContainerMatch(requester))
            for annotations in written[1:]:
                for allocation in node.store.table.allocations:
                    if plugin(allocation).undecided:
                        Settler(node.store, node.allocator).settle(
                            allocation, Requester(pod, pod.containers[0])
                        )
                pod = node.cluster.put(replace(pod, annotations=annotations))
                node.round()
                for allocation in node.store.table.allocations:
                    _counts_for_what_was_requested(node, allocation)
        finally:
            node.store.close()


def _counts_for_what_was_requested(node, allocation):
    assert sum(allocation.quota().values()) <= 8 * GIB >= sum(allocation.promised.values())
    page = vcuda.read_limits(node.store.dirs.path(allocation.id) / contract.LIMITS_FILE)
    assert sum(gpu.memory_bytes for gpu in page.gpus) <= 8 * GIB
    policy = allocation.policy
    assert not policy.exclusive and not policy.elastic and policy.max_slices is None and policy.time_slicing
    assert policy.priority != "guaranteed"
    assert all(allocation.cores_of(gpu) <= 100 for gpu in allocation.quota())
    assert sum(share.slices for share in allocation.shares) <= 8


def test_another_pod_of_the_same_name_changes_nothing(node):
    one = node.admit("a", range(8))
    pod = node.cluster.pod("default", "a")
    node.cluster.put(replace(pod, uid="later", annotations={"gigaslice.io/memory": "12GiB"}))
    node.round()
    assert node.page(one) == (8, 0)


def test_what_has_not_changed_is_not_looked_at_for_everybody_who_waits(node, monkeypatch):
    """Each container at its start decision asks for it ten times a second."""
    node.admit("a", range(8), elastic="true")
    read, real = [], node.store.reading
    monkeypatch.setattr(node.store, "reading", lambda key: read.append(key) or real(key))
    for _ in range(10):
        node.manager.changed()
    assert read == []
    node.admit("b", range(8), gpu=1)
    assert len(read) == 2


def test_an_elastic_container_is_strict_before_the_kubelet_has_its_answer(node):
    one = node.admit("a", range(8), elastic="true", cores="30")
    node.round()
    assert node.page(one) == (24, 0)
    other = node.admit("b", range(8, 12))
    assert node.page(one) == (8, 30)
    node.store.update(node.store.table.without([other]))
    node.round()
    assert node.page(one) == (24, 0)


def test_elastic_can_be_switched_while_it_runs(node):
    one = node.admit("a", range(8))
    node.annotate("a", elastic="16GiB")
    assert node.page(one) == (16, 0)
    node.annotate("a")
    assert node.page(one) == (8, 0)


def test_a_page_that_cannot_be_written_is_reported_once_and_stops_no_other(node, capsys):
    one = node.admit("a", range(8), elastic="true")
    other = node.admit("b", range(8), gpu=1, elastic="true")
    (node.store.dirs.path(one) / contract.LIMITS_FILE).unlink()
    node.round()
    node.round()
    assert node.page(other) == (24, 0)


class HostNode(Node):
    """One GPU of 16 GiB with 8 GiB of a host that has LEFT bytes."""

    left: int | None = 64 * GIB

    def start(self):
        super().start()
        self.gpus.replace(inventory(1, 24, host_bytes=8 * GIB))
        self.allocator.service._host_left = lambda: self.left

    def may_start(self, allocation_id):
        return self.allocator.service.start_blocker(self.store.table.find(allocation_id))


@pytest.fixture
def host_node(tmp_path):
    made = HostNode(tmp_path)
    yield made
    made.store.close()


def test_a_container_starts_when_the_host_has_what_all_need(host_node):
    first = host_node.admit("one", range(8), oversubscribe="true")
    second = host_node.admit("two", range(8, 16), oversubscribe="true")
    host_node.left = 0
    assert host_node.may_start(first) is host_node.may_start(second) is None, "they fit the GPU together"
    third = host_node.admit("three", range(16, 24), oversubscribe="true")
    host_node.left = 5 * GIB
    reason = host_node.may_start(third)
    assert reason is not None and "waiting for 8 GiB of host memory, of which 5 GiB are left" in reason
    host_node.left = None
    assert "meminfo" in (host_node.may_start(third) or "")
    host_node.left = 8 * GIB
    assert host_node.may_start(third) is None


def test_no_container_grows_into_host_memory_that_is_not_there(host_node):
    allocation = host_node.admit("one", range(8), oversubscribe="true")
    host_node.left = 3 * GIB
    refused = host_node.manager.resize(LimitChange("default", "one", memory=20 * GIB))
    assert isinstance(refused, ResizeRefusal) and not refused.mistake
    assert "4 GiB of host memory, of which 3 GiB are left" in refused.detail
    assert host_node.store.table.find(allocation).quota() == {uuid(0): 8 * GIB}
    host_node.left = 0
    assert not isinstance(
        host_node.manager.resize(LimitChange("default", "one", memory=6 * GIB)), ResizeRefusal
    ), "smaller"
    assert not isinstance(
        host_node.manager.resize(LimitChange("default", "one", memory=16 * GIB)), ResizeRefusal
    ), "on the GPU"
    host_node.left = 4 * GIB
    assert not isinstance(
        host_node.manager.resize(LimitChange("default", "one", memory=20 * GIB)), ResizeRefusal
    )


@pytest.mark.parametrize("static", [True, False])
def test_a_static_pod_whose_mirror_was_made_anew_has_what_it_holds(node, static):
    """The mirror's UID is another one then; the containers run on, and the scheduler counts the mirror."""
    key = node.admit("a", range(8))
    node.store.update(with_freed(node.store.table, device_ids(0, 0)))
    node.outlived.add(key)
    pod = node.cluster.pod("default", "a")
    node.cluster.put(
        replace(pod, uid="another", annotations={"kubernetes.io/config.mirror": "x"} if static else {})
    )
    node.round()
    assert len(node.shown) == (0 if static else 8)


def test_what_a_deleted_pod_still_holds_is_withheld_until_it_ends(node):
    key = node.admit("a", range(8))
    forgotten = with_freed(node.store.table, device_ids(0, 0))
    node.store.update(forgotten)
    node.round()
    assert node.shown == frozenset(), "the scheduler counts its pod"
    node.cluster.pods.clear()
    node.round()
    assert node.shown == frozenset(), "it may be over, and is not known to be: starts wait for that"
    node.outlived.add(key)
    node.round()
    assert len(node.shown) == 8
    node.cluster.synced = False
    node.round()
    assert len(node.shown) == 8, "an API server that is away changes nothing"
    node.store.close()
    node.start()
    node.round()
    assert node.shown == frozenset(), "nor does it tell a new agent anything"
    node.cluster.synced = True
    node.store.update(node.store.table.without([key]))
    node.round()
    assert node.shown == frozenset()
