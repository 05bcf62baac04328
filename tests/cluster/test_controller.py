# SPDX-License-Identifier: Apache-2.0
"""The definitions of our kinds and the controller on a real API server."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gigaslice.core.classes.resource_class import MANAGED_BY, MANAGER
from tests.cluster import roles
from tests.cluster.control_plane import Api, ControlPlane, Refused, until
from tests.integration.cluster.test_controller import node
from tests.unit.gigaslice.roles.controller.crd_schema import mistakes

CLASSES, GPUS = "/apis/gigaslice.io/v1alpha1/resourceclasses", "/apis/gigaslice.io/v1alpha1/extendedresources"
NAMESPACE = "controller-test"
CLASS = "nvidia.test.gpu.7"
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Is")
VALUES: tuple[list[str] | None, ...] = (
    None, [], ["a"], ["10GiB"], ["10Gi"], ["1.5e3"], ["10KB"], ["1K"], ["10 Gi"], ["-1"], ["1", "2"],
)  # fmt: skip
SHARES: tuple[dict[str, Any], ...] = (
    {}, {"memory": "8Gi"}, {"memory": "8GiB", "cores": 30}, {"memory": 1 << 33}, {"memory": 0}, {"memory": "0Gi"},
    {"memory": "much"}, {"memory": "8Gi", "cores": 101}, {"cores": 10}, {"memory": ""},
)  # fmt: skip
Document = dict[str, Any]


def class_of(number: int, **spec: Any) -> Document:
    metadata = {"name": f"vector-{number}"}
    return {
        "apiVersion": "gigaslice.io/v1alpha1",
        "kind": "ResourceClass",
        "metadata": metadata,
        "spec": spec,
    }


def vectors() -> list[Document]:
    specs: list[Document] = []
    for operator, values in itertools.product(OPERATORS, VALUES):
        condition = {"key": "memory", "operator": operator, **({} if values is None else {"values": values})}
        specs += [{"selector": {"matchExpressions": [condition]}}]
        specs += [{"selector": {"terms": [{}, {"matchExpressions": [condition]}]}}]
    specs += [{"share": share} for share in SHARES]
    specs += [
        {},
        {"selector": {}},
        {"selector": {"terms": []}},
        {"selector": {"matchLabels": {"model": "T4"}}},
    ]
    specs += [{"selector": [{"matchLabels": {"a": "b"}}]}, {"selector": {"matchlabels": {"a": "b"}}}]
    specs += [{"selector": {"terms": [{}], "matchLabels": {"a": "b"}}}]
    return [class_of(number, **spec) for number, spec in enumerate(specs)]


@pytest.fixture(scope="module")
def api(roles_plane: ControlPlane) -> Api:
    found = roles_plane.admin
    found.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    return found


def test_the_api_server_takes_and_refuses_the_classes_that_our_rules_do(api: Api):
    """With the same sentences; its schema has words of its own."""
    for document in vectors():
        expected = mistakes("resourceclasses", document)
        try:
            api.post(f"{CLASSES}?dryRun=All&fieldValidation=Strict", document)
        except Refused as refused:
            assert expected, (document, refused)
            for sentence in expected:
                assert ": " in sentence or sentence in refused.message, (document, refused.message)
        else:
            assert expected == [], document


def test_a_long_name_is_refused(api: Api):
    document = {**class_of(0), "metadata": {"name": "x" * 64}}
    with pytest.raises(Refused, match="it can have 63 characters at most"):
        api.post(f"{CLASSES}?dryRun=All", document)


@pytest.fixture
def running(api: Api, roles_plane: ControlPlane) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable, "-m", "gigaslice_cli", "controller",
        f"--kubeconfig={roles.kubeconfig(roles_plane, roles.CONTROLLER)}",
        f"--namespace={roles.NAMESPACE}", "--leader-lease=gigaslice-controller", "--metrics-address=off",
    ]  # fmt: skip
    with (roles_plane.folder / "controller.log").open("ab") as log:
        process = subprocess.Popen(command, stderr=log)
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_the_controller_keeps_gpus_and_classes(api: Api, running: subprocess.Popen[bytes]):
    for number in (1, 2):
        document = node(f"ctl-n{number}", f"GPU-ctl-{number}", model="NVIDIA Test GPU 7")
        status = {"conditions": [{**document["status"]["conditions"][0], "reason": "x", "message": "x"}]}
        api.post("/api/v1/nodes", {**document, "apiVersion": "v1"})
        api.patch(f"/api/v1/nodes/ctl-n{number}/status", {"status": status})
    api.post(CLASSES, class_of(999, selector={"matchLabels": {"node": "ctl-n1"}}))

    def status_of(name: str) -> Document:
        found = {one["metadata"]["name"]: one.get("status", {}) for one in api.get(CLASSES)["items"]}
        status: Document = found.get(name, {})
        return status

    def phases() -> dict[str, str]:
        found = api.get(GPUS)["items"]
        return {one["metadata"]["name"]: one.get("status", {}).get("phase") for one in found}

    until(lambda: phases() == {"ctl-n1-gpu-ctl-1": "Available", "ctl-n2-gpu-ctl-2": "Available"}, 60)
    until(lambda: status_of(CLASS).get("free") == 2 and status_of("vector-999").get("free") == 1, 60)
    assert api.get(f"{CLASSES}/{CLASS}")["metadata"]["labels"] == {MANAGED_BY: MANAGER}
    conditions = {one["type"]: one["status"] for one in status_of(CLASS)["conditions"]}
    assert conditions == {"Valid": "True", "Matching": "True"}

    before = api.get(f"{CLASSES}/{CLASS}")["metadata"]["resourceVersion"]
    limits = {"gpuclass.gigaslice.io/nvidia.test.gpu.8": "1"}
    container = {"name": "c", "image": "x", "resources": {"limits": limits}}
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    api.post(pods, {"metadata": {"name": "wrong"}, "spec": {"containers": [container]}})
    events = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.name=wrong"
    until(lambda: bool(api.get(events)["items"]), 30)
    (event,) = api.get(events)["items"]
    assert event["reason"] == "ResourceClassNotFound"
    assert event["message"].endswith(f'there is no GPU class "nvidia.test.gpu.8"; did you mean "{CLASS}"?')
    assert api.get(f"{CLASSES}/{CLASS}")["metadata"]["resourceVersion"] == before, "written without a change"

    for number in (1, 2):
        api.delete(f"/api/v1/nodes/ctl-n{number}")
    until(lambda: phases() == {}, 60)
    until(lambda: status_of(CLASS).get("devices") == 0, 60)
    api.delete(f"{pods}/wrong", {"gracePeriodSeconds": 0})
    for name in (CLASS, "vector-999"):
        api.delete(f"{CLASSES}/{name}")
