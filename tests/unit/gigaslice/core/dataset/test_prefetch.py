# SPDX-License-Identifier: Apache-2.0
"""Which nodes a dataset goes to, the pod for it, and what a pod's status tells."""

from collections import Counter

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.objects import DRIVER
from gigaslice.core.dataset.prefetch import (
    NodeCandidate,
    PrefetchPod,
    PrefetchState,
    choose,
    judge,
    pod_manifest,
    ranked,
)
from gigaslice.core.dataset.request import parse_attributes

NAMES = st.lists(
    st.text("abcdefghij0123456789-.", min_size=1, max_size=12), min_size=1, max_size=20, unique=True
)
KEYS = st.text(max_size=20)


def nodes(names):
    return [NodeCandidate(name) for name in names]


@given(KEYS, NAMES, st.integers(1, 20), st.randoms())
def test_the_order_of_the_nodes_changes_nothing(key, names, count, random):
    found = choose(key, nodes(names), count)
    random.shuffle(names)
    assert choose(key, nodes(names), count) == found
    assert len(found) == min(count, len(names)) == len(set(found))


@given(KEYS, NAMES, st.integers(1, 20), st.data())
def test_a_node_that_goes_changes_its_own_place_only(key, names, count, data):
    before = choose(key, nodes(names), count)
    gone = data.draw(st.sampled_from(names))
    after = choose(key, nodes(name for name in names if name != gone), count)
    if gone not in before:
        assert after == before
    else:
        assert [name for name in before if name != gone] == list(after[: len(before) - 1])


@given(KEYS, NAMES, st.integers(1, 20), st.data())
def test_who_has_it_comes_first_and_who_cannot_never(key, names, count, data):
    holders = data.draw(st.sets(st.sampled_from(names)))
    away = data.draw(st.sets(st.sampled_from(names)))
    found = choose(
        key, [NodeCandidate(name, ready=name not in away, holds=name in holders) for name in names], count
    )
    assert not away & set(found)
    assert set(found) >= holders - away or set(found) <= holders - away
    assert [name in holders for name in found] == sorted((name in holders for name in found), reverse=True)


def test_many_datasets_are_spread_evenly():
    names = [f"gpu-{number}" for number in range(10)]
    counts = Counter(name for key in range(1000) for name in choose(f"ns/d{key}", nodes(names), 3))
    assert sum(counts.values()) == 3000
    assert all(240 <= counts[name] <= 360 for name in names)
    assert ranked("ns/a", names) != ranked("ns/b", names)


def test_the_order_is_the_same_in_every_version():
    assert ranked("team/coco", ["a", "b", "c", "d", "e"]) == ["c", "d", "b", "e", "a"]


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (NodeCandidate("a"), ""),
        (NodeCandidate("a", ready=False), "not Ready"),
        (NodeCandidate("a", schedulable=False), "kubectl uncordon a"),
        (NodeCandidate("a", driver=False), "no dataset service"),
    ],
)
def test_why_a_node_is_not_chosen(one, says):
    assert says in one.problem
    assert bool(one.problem) == bool(says)
    assert choose("k", [one]) == (() if says else ("a",))


POD = PrefetchPod("team", {"dataset": "coco"}, "r1a2b", 3660, secret="s3", tolerated=("team",))


def test_the_pod_is_one_that_every_namespace_may_have():
    found = pod_manifest(POD, "gpu-1.example.com")
    kubernetes_validate.validate(found, "1.36", strict=True)
    spec = found["spec"]
    csi = spec["volumes"][0]["csi"]
    assert (csi["driver"], csi["readOnly"], csi["nodePublishSecretRef"]) == (DRIVER, True, {"name": "s3"})
    assert parse_attributes(csi["volumeAttributes"]).name == "coco"
    assert "nodeName" not in spec, "taints count"
    assert [one["key"] for one in spec["tolerations"]] == ["nvidia.com/gpu", "team"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert not any("gigaslice.io/" in name for name in container["resources"]["limits"]), "its call is held"
    assert spec["activeDeadlineSeconds"] == 3660 and spec["restartPolicy"] == "Never"
    assert len(found["metadata"]["name"]) <= 63
    assert "nodePublishSecretRef" not in str(pod_manifest(PrefetchPod("team", {}, "r", 1), "a"))


def test_a_pods_name_is_that_of_its_node_and_run():
    assert POD.name("a") == POD.name("a") != POD.name("b")
    assert POD.name("a") != PrefetchPod("team", {}, "other", 1, 1).name("a")


def container(**state):
    return {"containerStatuses": [{"state": state}]}


@pytest.mark.parametrize(
    ("status", "state", "says"),
    [
        ({}, PrefetchState.WAITING, ""),
        (
            {"phase": "Pending"} | container(waiting={"reason": "ContainerCreating"}),
            PrefetchState.WAITING,
            "",
        ),
        ({"phase": "Succeeded"}, PrefetchState.DONE, ""),
        ({"phase": "Running"} | container(running={}), PrefetchState.DONE, ""),
        ({"phase": "Pending"} | container(waiting={"reason": "ErrImagePull"}), PrefetchState.DONE, ""),
        ({"phase": "Failed"} | container(terminated={"exitCode": 1}), PrefetchState.DONE, ""),
        (
            {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]},
            PrefetchState.DONE,
            "",
        ),
        (
            {"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]},
            PrefetchState.WAITING,
            "",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: a taint"}],
            },
            PrefetchState.WAITING,
            "not scheduled: 0/3 nodes: a taint",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource"}
            | container(terminated={"reason": "ContainerStatusUnknown"}),
            PrefetchState.FAILED,
            "Evicted: The node was low",
        ),
        (
            {"phase": "Failed"} | container(terminated={"reason": "ContainerStatusUnknown"}),
            PrefetchState.FAILED,
            "failed",
        ),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, PrefetchState.FAILED, "DeadlineExceeded"),
        ({"phase": "Failed"}, PrefetchState.FAILED, "failed"),
        ({"phase": 7, "conditions": 3, "containerStatuses": [None, {"state": 1}]}, PrefetchState.WAITING, ""),
    ],
)
def test_what_a_status_tells(status, state, says):
    found, text = judge({"metadata": {}, "status": status})
    assert found is state
    assert says in text


def test_a_pod_that_others_delete_has_failed():
    deleted = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert judge({**deleted, "status": {"phase": "Pending"}})[0] is PrefetchState.FAILED
    assert judge({**deleted, "status": {"phase": "Succeeded"}})[0] is PrefetchState.DONE
