# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from gigaslice.core.kube import decode
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.kube.object_reader import ObjectReader
from gigaslice.core.model import DATASET_DRIVER, ContainerKind, PodClaim
from gigaslice.kubeapi.failures import ApiFailure
from tests.fakes.kubeapi import pod_document
from tests.fakes.kubeapi.reading import listed

GPU = "gigaslice.io/vgpu-memory"


def test_containers_come_in_the_order_of_admission():
    document = pod_document("p", {GPU: 2}, {GPU: 3}, init=({GPU: 8},), sidecars=({GPU: 1, "cpu": 1},))
    pod = parse_pod(document)
    assert [(one.name, one.kind, one.requests) for one in pod.containers] == [
        ("i0", ContainerKind.INIT, {GPU: 8}),
        ("s0", ContainerKind.SIDECAR, {GPU: 1}),
        ("c0", ContainerKind.APP, {GPU: 2}),
        ("c1", ContainerKind.APP, {GPU: 3}),
    ]
    assert pod.most_at_once(GPU) == 8
    assert (
        parse_pod(pod_document("p", {GPU: 6}, init=({GPU: 4},), sidecars=({GPU: 1},))).most_at_once(GPU) == 7
    )


def test_what_is_missing_has_a_meaning():
    bare = {"metadata": {"namespace": "n", "name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}
    pod = parse_pod(bare)
    assert (pod.phase, pod.controlled, pod.ending, dict(pod.annotations)) == ("Pending", False, False, {})
    assert pod.containers[0].requests == {}


def test_owners_and_deletion():
    document = pod_document("p", controlled=True)
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert (parse_pod(document).controlled, parse_pod(document).ending) == (True, True)


@pytest.mark.parametrize(
    ("spec", "awaits_provisioning"),
    [
        ({}, False),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, False),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, True),
        ({"volumes": [{"name": "v", "ephemeral": {}}]}, True),
        ({"volumes": [7]}, False),
        ({"resourceClaims": [{"name": "c"}]}, True),
    ],
)
def test_a_pod_with_claims_awaits_provisioning(spec, awaits_provisioning):
    document = pod_document("p")
    document["spec"] |= spec
    assert parse_pod(document).awaits_provisioning is awaits_provisioning


@pytest.mark.parametrize(
    ("conditions", "sandboxed"),
    [
        (
            [
                {"type": "PodScheduled", "status": "True"},
                {"type": "PodReadyToStartContainers", "status": "True"},
            ],
            True,
        ),
        ([{"type": "PodReadyToStartContainers", "status": "False"}], False),
        ([{"type": "Ready", "status": "True"}], False),
        (["PodReadyToStartContainers"], False),
        ("True", False),
        (None, False),
    ],
)
def test_a_pod_shows_whether_its_sandbox_is_there(conditions, sandboxed):
    document = pod_document("p")
    document["status"]["conditions"] = conditions
    assert parse_pod(document).sandboxed is sandboxed


@pytest.mark.parametrize("condition", [None, "False", "True"])
def test_a_pod_that_runs_has_its_sandbox_unless_the_kubelet_denies_it(condition):
    document = pod_document("p")
    conditions = [{"type": "PodReadyToStartContainers", "status": condition}] if condition else []
    document["status"] |= {"phase": "Running", "conditions": conditions}
    assert parse_pod(document).sandboxed is (condition != "False")


@pytest.mark.parametrize(("value", "read"), [("node-a", "node-a"), (None, ""), (7, ""), ("x" * 300, "")])
def test_the_node_on_which_others_were_evicted_for_it(value, read):
    document = pod_document("p")
    document["status"]["nominatedNodeName"] = value
    assert parse_pod(document).nominated == read


@pytest.mark.parametrize("foreign", [
    "1e3", "2T", "500m", "1Ei", "12E", "1.5", "1n", "-1", "9e99", 3, 1.5, "", "much", None, True, [], {"a": "b"},
])  # fmt: skip
def test_what_another_resource_says_hides_no_pod(foreign):
    document = pod_document("p", {GPU: 2})
    for table in ("limits", "requests"):
        document["spec"]["containers"][0]["resources"][table] = {
            "example.com/fpga": foreign,
            GPU: "2",
            "cpu": foreign,
        }
    (container,) = parse_pod(document).containers
    assert container.requests[GPU] == 2


@pytest.mark.parametrize(
    "text, count", [("8", 8), ("1k", 1000), ("1e1", 10), ("2Ki", 2048), ("2E0", 2), (5, 5)]
)
def test_a_count_of_ours_may_be_written_in_every_way(text, count):
    document = pod_document("p", {GPU: 1})
    document["spec"]["containers"][0]["resources"]["limits"][GPU] = text
    assert parse_pod(document).containers[0].requests == {GPU: count}


def test_a_pod_that_cannot_be_understood_does_not_hide_the_others():
    bad, good = pod_document("bad", {GPU: 1}), pod_document("good", {GPU: 1})
    bad["spec"]["containers"][0]["resources"]["limits"] = "much"
    body = json.dumps({"metadata": {"resourceVersion": "7"}, "items": [bad, good]}).encode()
    found = listed(body)
    assert [(pod.name, pod.readable) for pod in found] == [("bad", False), ("good", True)]
    assert found[0].containers == ()


@pytest.mark.parametrize("body", [b"[]", b"{}", b"<html>", b'{"items": 3, "metadata": {}}', b""])
def test_what_is_no_list(body):
    with pytest.raises((ValueError, ApiFailure)):
        listed(body)


def test_large_and_foreign_annotations_are_left_out():
    document = pod_document(
        "p", annotations={"a": "x" * 5000, "kubectl.kubernetes.io/last-applied-configuration": "y", "b": "z"}
    )
    assert parse_pod(document).annotations == {"b": "z"}


def csi_pod(*volumes, **mounts):
    """A pod with VOLUMES; mounts: container -> names of volumes that it mounts."""
    document = pod_document("p", {GPU: 1}, {GPU: 1}, init=({GPU: 1},))
    document["spec"]["volumes"] = list(volumes)
    for kind in ("initContainers", "containers"):
        for container in document["spec"][kind]:
            container["volumeMounts"] = [{"name": one} for one in mounts.get(container["name"], ())]
    return parse_pod(document)


def dataset_volume(name="data", **attributes):
    csi = {
        "driver": "dataset.gigaslice.io",
        "volumeAttributes": attributes,
        "nodePublishSecretRef": {"name": "s3"},
    }
    return {"name": name, "csi": csi}


def test_inline_csi_volumes_are_shown_with_the_containers_that_mount_them():
    other = {"name": "other", "csi": {"driver": "secrets.example.com"}}
    pod = csi_pod(
        {"name": "e", "emptyDir": {}},
        dataset_volume(dataset="coco"),
        other,
        c1=["data", "e"],
        i0=["data"],
        c0=["other"],
    )
    assert [one.name for one in pod.volumes] == ["data", "other"]
    (data,) = pod.volumes_of(DATASET_DRIVER)
    assert (data.attributes, data.secret, data.mounted_by) == ({"dataset": "coco"}, "s3", ("i0", "c1"))
    assert pod.volumes[1].mounted_by == ("c0",)


@pytest.mark.parametrize(
    "volume",
    [
        {"name": "d", "csi": 3},
        {"name": "d", "csi": None},
        {"name": "d", "csi": {}},
        {"name": "d", "csi": {"driver": 5}},
        {"name": None, "csi": {"driver": DATASET_DRIVER}},
        {"name": "d", "csi": {"driver": "x" * 300}},
    ],
)
def test_a_volume_that_cannot_be_understood_hides_no_pod(volume):
    pod = csi_pod(volume, c0=["d"])
    assert (pod.name, pod.volumes) == ("p", ())


def test_attributes_are_bounded():
    volume = dataset_volume(**{f"k{number}": "v" for number in range(100)})
    volume["csi"]["volumeAttributes"]["k0"] = "v" * 5000
    volume["csi"]["volumeAttributes"]["k1"] = 7
    (found,) = csi_pod(volume).volumes
    assert set(found.attributes) == {f"k{number}" for number in range(2, 64)}


def test_the_claims_of_a_pod_are_named_by_its_spec_or_its_status():
    document = {
        "metadata": {"namespace": "team", "name": "p", "uid": "u1"},
        "spec": {
            "resourceClaims": [
                {"name": "own", "resourceClaimTemplateName": "vgpu-8gi"},
                {"name": "shared", "resourceClaimName": "ours"},
                {"name": "none", "resourceClaimTemplateName": "late"},
            ],
            "initContainers": [{"name": "i", "resources": {"claims": [{"name": "shared"}]}}],
            "containers": [
                {
                    "name": "c",
                    "resources": {
                        "claims": [{"name": "own", "request": "a"}, {"name": "own", "request": "b"}]
                    },
                },
                {"name": "d", "resources": {"claims": [{"name": "own", "request": "a"}, {"name": "own"}]}},
                {"name": "e"},
            ],
        },
        "status": {
            "resourceClaimStatuses": [{"name": "own", "resourceClaimName": "p-own-x7"}, {"name": "none"}]
        },
    }
    pod = parse_pod(document)
    assert pod.claims == (
        PodClaim("own", "p-own-x7", "vgpu-8gi"),
        PodClaim("shared", "ours"),
        PodClaim("none", template="late"),
    )
    users = {container.name: requests for container, requests in pod.users_of("p-own-x7")}
    assert users == {"c": {"a", "b"}, "d": frozenset()}, "a container without a request has all of them"
    assert [container.name for container, _ in pod.users_of("ours")] == ["i"]
    assert pod.users_of("late") == ()
    reader = ObjectReader(decode._POD, items="items", at_once=0)
    (entry,) = reader.feed(json.dumps({"items": [document]}).encode())
    assert parse_pod(entry.value) == pod, "the outline keeps all that is read of it"


@pytest.mark.parametrize(
    "spec",
    [
        {"resourceClaims": "x"},
        {"resourceClaims": [1]},
        {"containers": [{"name": "c", "resources": {"claims": 1}}]},
    ],
)
def test_claims_that_make_no_sense_do_not_hide_the_pod(spec):
    document = {"metadata": {"namespace": "team", "name": "p", "uid": "u1"}, "spec": spec}
    assert parse_pod(document).claims == ()
