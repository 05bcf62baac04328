# SPDX-License-Identifier: Apache-2.0
"""Planned writes make the stored objects the desired ones, from any beginning, and touch no other author's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.classes.resource_class import MANAGED_BY, MANAGER
from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.roles.controller import class_objects
from gigaslice.roles.controller.class_objects import (
    ClassFigures,
    plan_class,
    plan_class_status,
    quota_classes,
)
from gigaslice.roles.controller.gpu_objects import PodOnGpu, ReportingNode, gpu_object_name, plan_node
from gigaslice.roles.controller.object_plan import StoredObject, WriteKind, difference, stored
from tests.fakes.clusters import inventory_gpu, node_inventory
from tests.fakes.kubeapi.store import merged
from tests.unit.gigaslice.roles.controller.crd_schema import mistakes
from tests.unit.gigaslice.roles.controller.written_objects import Conflict, WrittenObjects

GIB = 1 << 30
CLASSES, GPUS = "resourceclasses", "extendedresources"
NOW, LATER = "2026-11-22T18:00:00Z", "2026-11-22T19:00:00Z"
OURS = {MANAGED_BY: MANAGER}

json_values = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from("ab"),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)
json_objects = st.dictionaries(st.sampled_from("xyz"), json_values, max_size=3)


def inventory(*numbers: int, unhealthy: str = "") -> NodeInventory:
    more: dict[str, Any] = {"unhealthy": unhealthy, "properties": {"architecture": "hopper"}}
    return node_inventory(
        inventory_gpu("n", index, 80, uuid=f"GPU-{number}", model="NVIDIA H100", **more)
        for index, number in enumerate(numbers)
    )


def settle(store: WrittenObjects, node: ReportingNode | None) -> None:
    for _ in range(3):
        writes = plan_node(node, store.objects)
        if not writes:
            return
        assert len({write.name for write in writes}) == len(writes), "one write at a time for each object"
        for write in writes:
            store.apply(write)
    assert plan_node(node, store.objects) == ()


def phases(store: WrittenObjects) -> dict[str, str]:
    return {one.spec["deviceID"]: one.status["phase"] for one in store.objects.values()}


holders = st.builds(
    PodOnGpu,
    st.sampled_from(["u1", "u2", "u3"]),
    st.sampled_from(["", "ns"]),
    st.sampled_from(["", "pod"]),
    st.integers(1, 80),
    st.sampled_from([0, 30]),
    st.booleans(),
)
nodes = st.none() | st.builds(
    ReportingNode,
    st.just("Node-A"),
    st.sampled_from(["n1", "n2"]),
    st.none() | st.lists(st.integers(0, 3), unique=True, max_size=3).map(lambda found: inventory(*found)),
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]), st.lists(holders, max_size=2), max_size=3),
)


@given(json_objects, json_objects)
def test_a_difference_is_the_merge_patch_from_one_to_the_other(
    present: dict[str, Any], desired: dict[str, Any]
):
    assert merged(present, difference(present, desired)) == desired
    assert difference(desired, desired) == {}


@given(st.lists(nodes, max_size=5))
def test_whatever_a_node_goes_through_its_objects_settle(history: list[ReportingNode | None]):
    foreign = StoredObject("node-a-gpu-1", "f", "1", 1, {}, (), {"deviceID": "GPU-1"}, {"phase": "Bound"})
    store = WrittenObjects(GPUS, foreign)
    foreign = store.objects["node-a-gpu-1"]
    for node in history:
        settle(store, node)
        assert store.objects["node-a-gpu-1"] == foreign
        for one in store.objects.values():
            if one != foreign:
                document = {"metadata": {"name": one.name}, "spec": one.spec, "status": one.status}
                assert mistakes("extendedresources", document) == []


@given(nodes, st.data())
def test_a_controller_that_dies_between_any_two_writes_is_followed_by_one_that_ends_alike(
    node: ReportingNode | None, data: st.DataObject
):
    begin = ReportingNode("Node-A", "n1", inventory(0, 1))
    straight, broken = WrittenObjects(GPUS), WrittenObjects(GPUS)
    for store in (straight, broken):
        settle(store, begin)
    settle(straight, node)
    for _ in range(data.draw(st.integers(0, 4))):
        writes = plan_node(node, broken.objects)
        for write in writes[: data.draw(st.integers(0, len(writes)))]:
            broken.apply(write)
    settle(broken, node)
    assert {name: (one.spec, one.status, one.owners) for name, one in broken.objects.items()} == {
        name: (one.spec, one.status, one.owners) for name, one in straight.objects.items()
    }


def test_an_object_shows_its_gpu():
    store = WrittenObjects(GPUS)
    holder = PodOnGpu("u", "ns", "pod", 8, 30, running=True)
    settle(store, ReportingNode("Node-A", "n1", inventory(7), holders={"GPU-7": (holder,)}))
    (one,) = store.objects.values()
    assert one.name == "node-a-gpu-7"
    assert (one.labels, one.owners[0]["uid"]) == (OURS, "n1")
    assert one.spec == {
        "nodeName": "Node-A",
        "deviceID": "GPU-7",
        "rawResourceName": "gigaslice.io/vgpu-memory",
        "properties": {
            "vendor": "NVIDIA",
            "model": "NVIDIA H100",
            "memory": "81920MiB",
            "uuid": "GPU-7",
            "node": "Node-A",
            "architecture": "hopper",
        },
    }
    assert one.status == {
        "phase": "Bound",
        "used": {"slices": 8, "memory": "8192MiB"},
        "podRefs": [{"uid": "u", "slices": 8, "namespace": "ns", "name": "pod", "cores": 30}],
    }


def test_what_two_pods_share_is_used_once_and_names_both():
    store = WrittenObjects(GPUS)
    pods = tuple(PodOnGpu(name, "ns", name, 8, holding="claim") for name in ("first", "second"))
    alone = PodOnGpu("alone", "ns", "alone", 4)
    settle(store, ReportingNode("node", "n1", inventory(7), holders={"GPU-7": (*pods, alone)}))
    (gpu_object,) = store.objects.values()
    assert gpu_object.status["used"]["slices"] == 12
    assert [reference["name"] for reference in gpu_object.status["podRefs"]] == ["alone", "first", "second"]


def test_nothing_is_written_where_nothing_has_changed():
    store = WrittenObjects(GPUS)
    node = ReportingNode("node", "n1", inventory(1, 2))
    settle(store, node)
    assert len(store.writes) == 4
    assert plan_node(ReportingNode("node", "n1", inventory(1, 2)), store.objects) == ()
    assert len(store.objects) == 2


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        ({}, "Available"),
        ({"holders": {"GPU-1": (PodOnGpu("u", "", "", 1),)}}, "Pending"),
        (
            {"holders": {"GPU-1": (PodOnGpu("u", "", "", 1), PodOnGpu("v", "", "", 1, running=True))}},
            "Bound",
        ),
        ({"inventory": inventory(1, unhealthy="fell off the bus")}, "Unhealthy"),
        ({"ready": False}, "Lost"),
        ({"readable": False, "inventory": None}, "Lost"),
        ({"inventory": inventory(), "holders": {"GPU-1": (PodOnGpu("u", "", "", 1),)}}, "Lost"),
        ({"inventory": None}, None),
        ({"inventory": inventory()}, None),
    ],
)
def test_phases(change: dict[str, Any], phase: str | None):
    store = WrittenObjects(GPUS)
    settle(store, ReportingNode("node", "n1", inventory(1)))
    settle(store, ReportingNode("node", "n1", **{"inventory": inventory(1), **change}))
    assert phases(store) == ({"GPU-1": phase} if phase else {})


def test_a_node_that_returns_with_other_gpus_has_their_objects_only():
    store = WrittenObjects(GPUS)
    settle(store, ReportingNode("node", "n1", inventory(1, 2)))
    settle(store, None)
    assert store.objects == {}
    settle(store, ReportingNode("node", "n2", inventory(2, 3)))
    assert phases(store) == {"GPU-2": "Available", "GPU-3": "Available"}


def test_names_of_objects_are_names():
    assert gpu_object_name("Node-A", "GPU-1B") == "node-a-gpu-1b"
    long = "n" * 250
    assert len(gpu_object_name(long, "GPU-1")) == 253
    assert gpu_object_name(long, "GPU-1") != gpu_object_name(long, "GPU-2")


# --- classes ------------------------------------------------------------------------------------------------------

SPEC = {"selector": {"matchLabels": {"model": "NVIDIA H100"}}}


def automatic(store: WrittenObjects, spec: dict[str, Any] | None) -> list[WriteKind]:
    writes = plan_class("h100", spec, store.objects.get("h100"))
    for write in writes:
        store.apply(write)
    return [write.kind for write in writes]


def test_an_automatic_class_is_made_kept_and_deleted():
    store = WrittenObjects(CLASSES)
    assert automatic(store, SPEC) == [WriteKind.CREATE]
    assert store.objects["h100"].managed
    assert store.writes[0].body["apiVersion"] == class_objects.API_VERSION
    assert mistakes("resourceclasses", dict(store.writes[0].body)) == []
    assert automatic(store, SPEC) == []
    assert automatic(store, {"selector": {"matchLabels": {"vendor": "NVIDIA"}}}) == [WriteKind.UPDATE]
    assert store.objects["h100"].spec == {"selector": {"matchLabels": {"vendor": "NVIDIA"}}}
    assert automatic(store, None) == [WriteKind.DELETE]
    assert automatic(store, None) == []


@pytest.mark.parametrize("spec", [SPEC, None])
def test_a_class_of_another_author_is_left_alone(spec: dict[str, Any] | None):
    for labels in ({}, {MANAGED_BY: "Helm"}):
        store = WrittenObjects(CLASSES, StoredObject("h100", "u", "1", 1, labels, (), {"selector": {}}))
        assert automatic(store, spec) == []


def test_a_class_that_a_user_changed_meanwhile_is_not_overwritten():
    store = WrittenObjects(CLASSES, StoredObject("h100", "u", "2", 1, OURS, (), {}))
    (write,) = plan_class("h100", SPEC, StoredObject("h100", "u", "1", 1, OURS, (), {}))
    with pytest.raises(Conflict):
        store.apply(write)
    (write,) = plan_class("h100", None, StoredObject("h100", "u", "1", 1, OURS, (), {}))
    with pytest.raises(Conflict):
        store.apply(write)


def told(store: WrittenObjects, figures: ClassFigures, now: str) -> int:
    writes = plan_class_status(store.objects["h100"], figures, now)
    for write in writes:
        store.apply(write)
    document = {"metadata": {"name": "h100"}, "spec": SPEC, "status": store.objects["h100"].status}
    assert mistakes("resourceclasses", document) == []
    return len(writes)


def test_a_class_has_a_status_whoever_made_it_and_only_changes_are_written():
    store = WrittenObjects(CLASSES, StoredObject("h100", "u", "1", 3))
    assert told(store, ClassFigures(2, 1, ("b", "a")), NOW) == 1
    status = store.objects["h100"].status
    assert (status["devices"], status["free"], status["nodes"], status["nodeNames"]) == (2, 1, 2, ["a", "b"])
    assert status["observedGeneration"] == 3
    assert [(one["type"], one["status"]) for one in status["conditions"]] == [
        ("Valid", "True"),
        ("Matching", "True"),
    ]
    assert told(store, ClassFigures(2, 1, ("a", "b")), LATER) == 0
    assert told(store, ClassFigures(0, 0, ()), LATER) == 1
    times = [one["lastTransitionTime"] for one in store.objects["h100"].status["conditions"]]
    assert times == [NOW, LATER]
    assert told(store, ClassFigures(mistake="Gt takes exactly one amount, such as 10GiB"), LATER) == 1
    (condition,) = store.objects["h100"].status["conditions"]
    assert (condition["status"], condition["message"]) == (
        "False",
        "Gt takes exactly one amount, such as 10GiB",
    )


def test_quotas_name_classes():
    hard = {
        "requests.gpuclass.gigaslice.io/nvidia.h100": "5",
        "limits.gpuclass.gigaslice.io/a": "1",
        "gpuclass.gigaslice.io/b": "1",
        "requests.gigaslice.io/gpu": "9",
    }
    quotas: list[dict[str, Any]] = [{"spec": {"hard": hard}}, {}, {"spec": {"hard": None}}, {"spec": []}]
    assert quota_classes(quotas) == {"nvidia.h100", "a", "b"}


def test_objects_are_read_as_the_api_writes_them():
    document = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "5", "generation": 2, "labels": {"a": "b"}},
        "spec": {"x": 1},
    }
    assert stored(document) == StoredObject("n", "u", "5", 2, {"a": "b"}, (), {"x": 1}, {})
    for broken in ({}, {"metadata": None}, {"metadata": {"name": "n"}}):
        with pytest.raises(ValueError):
            stored(broken)
