# SPDX-License-Identifier: Apache-2.0
"""Which pods wait, and what they are told."""

from __future__ import annotations

import pytest

from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.cluster.state import ClusterState, NodeFacts
from gigaslice.core.model import Pod, PodContainer
from gigaslice.roles.controller.waiting_pods import WaitingPods
from tests.fakes.clusters import facts, inventory_gpu


def state(*nodes: str, schedulable: bool = True) -> ClusterState:
    found = ClusterState()
    for name in nodes:
        gpu = inventory_gpu(name, 0, 80, model="NVIDIA H100")
        found.put_node(facts(name, [gpu], schedulable=schedulable))
    found.put_class(ResourceClass("nvidia.h100"))
    return found


def pod(
    uid: str,
    node: str = "",
    annotations: dict[str, str] | None = None,
    phase: str = "Pending",
    **requests: int,
) -> Pod:
    names = {
        "slices": "gigaslice.io/vgpu-memory",
        "gpus": "gigaslice.io/gpu",
        "h100": "gpuclass.gigaslice.io/nvidia.h100",
        "h10": "gpuclass.gigaslice.io/nvidia.h10",
    }
    container = PodContainer("c", requests={names[key]: count for key, count in requests.items()})
    return Pod("ns", uid, uid, annotations or {}, (container,), phase, node=node)


def told(pods: WaitingPods, now: float) -> dict[str, str]:
    found = pods.due_notices(now)
    for notice in found:
        pods.note_sent(notice, now)
    return {notice.pod.uid: notice.reason for notice in found}


def test_mistakes_are_told_at_once_and_full_clusters_after_a_while():
    pods = WaitingPods(state("n1"))
    pods.put(pod("unknown", h10=1), 0.0)
    pods.put(pod("both", slices=1, gpus=1), 0.0)
    pods.put(pod("large", slices=1000), 0.0)
    pods.put(pod("fits", slices=8), 0.0)
    assert told(pods, 0.0) == {"unknown": "ResourceClassNotFound", "both": "InvalidGPURequest"}
    assert told(pods, 4.9) == {}
    assert told(pods, 5.0) == {"large": "GPUUnavailable"}
    assert told(pods, 1000.0) == {}
    assert {one.pod.uid: one.state for one in pods.waiting()} == {
        "unknown": "invalid",
        "both": "invalid",
        "large": "no-room",
        "fits": "fits",
    }


def test_a_cordoned_node_is_no_room_and_room_that_comes_ends_the_matter():
    cluster = state("n1", schedulable=False)
    pods = WaitingPods(cluster, explain=lambda one: "no room")
    pods.put(pod("p", slices=8), 0.0)
    assert told(pods, 10.0) == {"p": "GPUUnavailable"}
    cluster.put_node(NodeFacts("n1", state_text(cluster), True))
    assert told(pods, 11.0) == {}
    assert [one.fits for one in pods.waiting()] == [("n1",)]
    cluster.put_node(NodeFacts("n1", state_text(cluster), False))
    assert told(pods, 12.0) == {"p": "GPUUnavailable"}, "a new matter"


def state_text(cluster: ClusterState) -> str | None:
    facts = cluster.facts("n1")
    assert facts is not None
    return facts.inventory_text


@pytest.mark.parametrize(
    ("one", "waits"),
    [
        (pod("p", slices=1), True),
        (pod("p", "n1", slices=1), False),
        (pod("p", phase="Succeeded", slices=1), False),
        (pod("p", "n1", h100=1), True),
        (pod("p", "n1", h100=1, gpus=1), False),
        (pod("p", "n1", {"gigaslice.io/assignment": "{}"}, h100=1), False),
    ],
)
def test_which_pods_are_followed(one: Pod, waits: bool):
    pods = WaitingPods(state("n1"))
    pods.put(one, 0.0)
    assert len(pods) == waits
    pods.drop(one.uid)
    assert len(pods) == 0


def test_a_class_pod_that_another_scheduler_bound_is_told_so():
    pods = WaitingPods(state("n1"), "ours")
    pods.put(pod("p", "n1", h100=1), 0.0)
    (notice,) = pods.due_notices(0.0)
    assert notice.reason == "ResourceClassNotServed"
    assert "set schedulerName: ours" in notice.text
    assert list(pods.waiting()) == []


def test_equal_pods_share_one_explanation():
    explained: list[str] = []

    def explain(one: Pod) -> str:
        explained.append(one.uid)
        return "why"

    pods = WaitingPods(state("n1"), explain=explain)
    for number in range(50):
        pods.put(pod(f"p{number:02}", slices=1000), 0.0)
    assert len(told(pods, 10.0)) == 50
    assert explained == ["p00"]
