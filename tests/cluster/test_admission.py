# SPDX-License-Identifier: Apache-2.0
"""The chart's policies and rights on a real API server: what pods become, what is refused, who may do what."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.control_plane import Api, ControlPlane, Refused, path_of, until
from tests.fakes.kubeapi import new_pod
from tests.fakes.ports import free_port
from tests.unit.docs.test_cluster_page import EXAMPLES
from tests.unit.gigaslice.roles.controller.crd_schema import definition
from tests.unit.gigaslice.roles.webhook.pods import inventory
from tests.unit.manifests.test_chart import ROOT, listed

NAMESPACE = "gigaslice"
TEAM = "team"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
CLASSES = "/apis/gigaslice.io/v1alpha1/resourceclasses"
Document = dict[str, Any]
_numbers = itertools.count()


def klass(name: str, **share: object) -> Document:
    return {
        "apiVersion": "gigaslice.io/v1alpha1",
        "kind": "ResourceClass",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"model": "H100"}}, **({"share": share} if share else {})},
    }


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """The chart with policies, in a namespace of its own, and some classes."""
    api = control_plane.admin
    for name in (NAMESPACE, TEAM):
        api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    documents = listed(
        "--set", "cluster.enabled=true,networkPolicy.enabled=true", "--kube-version", "1.36.0",
        "--namespace", NAMESPACE,
    )  # fmt: skip
    first = ("CustomResourceDefinition", "ServiceAccount")
    for document in sorted(documents, key=lambda one: one["kind"] not in first):
        api.apply(document)
    until(lambda: _served(api))
    for one in (
        klass("nvidia.h100"), klass("small", memory="8GiB"), klass("odd", memory="1.5Gi", cores=30),
        klass("kilo", memory="2000000K"), klass("letter", memory="8g"), klass("bytes", memory=3 << 30),
    ):  # fmt: skip
        api.apply(one)
    until(lambda: _acts(api))
    return control_plane


def _served(api: Api) -> bool:
    try:
        api.get("/apis/gigaslice.io/v1alpha1/resourceclasses")
    except Refused:
        return False
    return True


def _acts(api: Api) -> bool:
    try:
        found = api.post(f"{PODS}?dryRun=All", pod({"gpuclass.gigaslice.io/small": 1}))
    except Refused:
        return False
    return found["spec"]["schedulerName"] == "gigaslice-scheduler"


def pod(*limits: Document, **more: Any) -> Document:
    return new_pod(f"p{next(_numbers)}", *limits, **more)


def limits_of(document: Document, field: str = "containers", number: int = 0) -> Document:
    resources: Document = document["spec"][field][number]["resources"]
    assert resources.get("limits") == resources.get("requests")
    return {name: count for name, count in resources["limits"].items() if not name.startswith("gpuclass.")}


# --- what pods become -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits, units", [
    ({"gpuclass.gigaslice.io/nvidia.h100": 2}, {"gigaslice.io/gpu": "2"}),
    ({"gpuclass.gigaslice.io/small": 2}, {"gigaslice.io/vgpu-memory": "16"}),
    ({"gpuclass.gigaslice.io/odd": 3}, {"gigaslice.io/vgpu-memory": "6"}),
    ({"gpuclass.gigaslice.io/kilo": 1}, {"gigaslice.io/vgpu-memory": "2"}),
    ({"gpuclass.gigaslice.io/letter": 1}, {"gigaslice.io/vgpu-memory": "8"}),
    ({"gpuclass.gigaslice.io/bytes": 2}, {"gigaslice.io/vgpu-memory": "6"}),
    ({"gpuclass.gigaslice.io/nvidia.h100": 1, "gigaslice.io/vgpu-memory": 5}, {"gigaslice.io/vgpu-memory": "5"}),
    ({"gigaslice.io/vgpu-memory": 8}, {"gigaslice.io/vgpu-memory": "8"}),
])  # fmt: skip
def test_the_unit_of_a_class_and_the_scheduler_are_added(installed, limits, units):
    """As the webhook does it: tests/unit/gigaslice/roles/webhook/test_decisions.py has the same rows."""
    found = installed.admin.post(PODS, pod(limits))
    assert limits_of(found) == units and found["spec"]["schedulerName"] == "gigaslice-scheduler"


def test_init_containers_get_it_too(installed):
    small = {"gpuclass.gigaslice.io/small": 1}
    found = installed.admin.post(
        PODS, pod({"cpu": 1}, init=({}, small, {"gpuclass.gigaslice.io/nvidia.h100": 2}))
    )
    assert limits_of(found, "initContainers", 1) == {"gigaslice.io/vgpu-memory": "8"}
    assert limits_of(found, "initContainers", 2) == {"gigaslice.io/gpu": "2"}
    assert found["spec"]["schedulerName"] == "gigaslice-scheduler"


@pytest.mark.parametrize("limits, scheduler", [
    ({"cpu": 1}, "default-scheduler"), ({"nvidia.com/gpu": 1}, "default-scheduler"),
    ({"gigaslice.io/rdma": 1}, "default-scheduler"),
])  # fmt: skip
def test_other_pods_are_left_alone(installed, limits, scheduler):
    found = installed.admin.post(PODS, pod(limits))
    assert limits_of(found) == {name: str(count) for name, count in limits.items()}
    assert found["spec"]["schedulerName"] == scheduler and not installed.admin.warnings


def test_a_chosen_scheduler_stays_where_no_class_is_named(installed):
    found = installed.admin.post(PODS, pod({"gigaslice.io/vgpu-memory": 8}, schedulerName="mine"))
    assert found["spec"]["schedulerName"] == "mine"


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given, sentence", [
    (pod({"gpuclass.gigaslice.io/typo": 1}), "container c0: there is no class typo (kubectl get resourceclasses)"),
    (pod({}, init=({"gpuclass.gigaslice.io/typo": 1},)), "container i0: there is no class typo"),
    (pod({"gpuclass.gigaslice.io/small": 1, "gpuclass.gigaslice.io/odd": 1}), "give it a container of its own"),
    (pod({"gpuclass.gigaslice.io/small": 1}, schedulerName="mine"), 'write "gigaslice-scheduler", or leave it out'),
    (pod({"gpuclass.gigaslice.io/small": 1}, nodeName="n"), "leave spec.nodeName out"),
    (pod({"cpu": 1}, annotations={"gigaslice.io/assignment": "{}"}), "is written by the scheduler"),
])  # fmt: skip
def test_a_mistake_is_refused_with_what_to_write(installed, given, sentence):
    with pytest.raises(Refused) as refused:
        installed.admin.post(PODS, given)
    assert refused.value.status in (403, 422) and sentence in refused.value.message


def test_a_share_of_an_older_version_that_is_no_size_is_as_no_class(installed):
    """The definition took "8GB" once. What is stored so gets no units, and no raw error of an expression."""
    api = installed.admin
    with pytest.raises(Refused, match="8G and 8 are 8GiB, and 8GB is refused"):
        api.post(CLASSES, klass("old", memory="8GB"))
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/resourceclasses.gigaslice.io"
    rules = (
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/share/x-kubernetes-validations"
    )
    api.request("PATCH", path, [{"op": "remove", "path": rules}], "application/json-patch+json")
    try:
        until(lambda: _stored(api, klass("old", memory="8GB")))
    finally:
        api.apply(definition("resourceclasses"))
    with pytest.raises(Refused, match="container c0: there is no class old"):
        api.post(PODS, pod({"gpuclass.gigaslice.io/old": 1}))


def _stored(api: Api, document: Document) -> bool:
    try:
        api.post(CLASSES, document)
    except Refused:
        return False
    return True


# --- assignments ------------------------------------------------------------------------------------------------------


def test_only_the_scheduler_writes_an_assignment(installed):
    api = installed.admin
    name = api.post(PODS, pod({"gigaslice.io/vgpu-memory": 8}))["metadata"]["name"]
    forged = {"metadata": {"annotations": {"gigaslice.io/assignment": '{"c0":[["GPU-x",8]]}'}}}
    for path in (f"{PODS}/{name}", f"{PODS}/{name}/status"):
        with pytest.raises(Refused, match="written by the scheduler"):
            api.patch(path, forged)
    binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n"}, **forged}
    binding["metadata"] = {"name": name, **forged["metadata"]}
    for path in (f"{PODS}/{name}/binding", f"/api/v1/namespaces/{TEAM}/bindings"):
        with pytest.raises(Refused, match="written by the scheduler"):
            api.post(path, binding)
    scheduler = installed.account(NAMESPACE, "gigaslice-scheduler")
    scheduler.post(f"{PODS}/{name}/binding", binding)
    bound = api.get(f"{PODS}/{name}")
    assert bound["spec"]["nodeName"] == "n" and "gigaslice.io/assignment" in bound["metadata"]["annotations"]
    with pytest.raises(Refused, match="written by the scheduler"):
        api.patch(f"{PODS}/{name}", {"metadata": {"annotations": {"gigaslice.io/assignment": None}}})
    api.patch(f"{PODS}/{name}", {"metadata": {"labels": {"a": "b"}}})
    api.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})


# --- the node agent's token -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agent(installed: ControlPlane) -> Api:
    """With the token that the kubelet of node-a would give its agent."""
    api = installed.admin
    for name in ("node-a", "node-b"):
        labels, annotations = {"kept": "yes"}, {"kept": "yes"}
        api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels, "annotations": annotations}})
    given = {
        "metadata": {"name": "agent"},
        "spec": {
            "nodeName": "node-a",
            "serviceAccountName": "gigaslice",
            "containers": [{"name": "node", "image": "x"}],
        },
    }
    made = api.post(f"/api/v1/namespaces/{NAMESPACE}/pods", given)
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": made["metadata"]["uid"]}
    request = {"spec": {"boundObjectRef": bound, "audiences": ["https://kubernetes.default.svc"]}}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/gigaslice/token"
    return installed.bearer(api.post(path, request)["status"]["token"])


def test_an_agent_publishes_what_its_node_has(agent):
    def publish(text: str | None) -> Document:
        return agent.patch(
            "/api/v1/nodes/node-a", {"metadata": {"annotations": {"gigaslice.io/inventory": text}}}
        )

    assert publish("{}")["metadata"]["annotations"]["gigaslice.io/inventory"] == "{}"
    assert publish("[]")["metadata"]["annotations"]["gigaslice.io/inventory"] == "[]"
    assert "gigaslice.io/inventory" not in publish(None)["metadata"]["annotations"]
    agent.patch("/api/v1/nodes/node-a", {"metadata": {"labels": {"gigaslice.io/state": "1"}}})


@pytest.mark.parametrize("path, change, sentence", [
    ("node-b", {"metadata": {"annotations": {"gigaslice.io/inventory": "{}"}}}, "its own Node only"),
    ("node-a", {"metadata": {"annotations": {"other": "x"}}}, "under gigaslice.io/ only"),
    ("node-a", {"metadata": {"annotations": {"kept": None}}}, "under gigaslice.io/ only"),
    ("node-a", {"metadata": {"annotations": {"kept": "no"}}}, "under gigaslice.io/ only"),
    ("node-a", {"metadata": {"labels": {"kept": "no"}}}, "under gigaslice.io/ only"),
    ("node-a", {"metadata": {"labels": {"kept": None}}}, "under gigaslice.io/ only"),
    ("node-a", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, "under gigaslice.io/ only"),
    ("node-a", {"spec": {"unschedulable": True}}, "and nothing else"),
    ("node-a", {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "and nothing else"),
    ("node-a", {"metadata": {"finalizers": ["a.b/c"]}}, "and nothing else"),
    ("node-a/status", {"status": {"capacity": {"gigaslice.io/gpu": "9"}}}, "cannot patch resource \"nodes/status\""),
])  # fmt: skip
def test_an_agent_changes_nothing_else(agent, path, change, sentence):
    with pytest.raises(Refused) as refused:
        agent.patch(f"/api/v1/nodes/{path}", change)
    assert refused.value.status == 403 and sentence in refused.value.message


def test_an_agents_account_without_a_node_in_its_token_changes_no_node(installed, agent):
    stolen = installed.account(NAMESPACE, "gigaslice")
    with pytest.raises(Refused, match="its own Node only"):
        stolen.patch("/api/v1/nodes/node-a", {"metadata": {"annotations": {"gigaslice.io/inventory": "{}"}}})


def test_others_change_nodes_as_ever(installed, agent):
    installed.admin.patch(
        "/api/v1/nodes/node-a", {"metadata": {"labels": {"team": "x"}}, "spec": {"unschedulable": True}}
    )


# --- rights -----------------------------------------------------------------------------------------------------------


def may(api: Api, verb: str, resource: str, namespace: str = "", group: str = "", *, name: str = "") -> bool:
    resource, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb, "resource": resource, "subresource": subresource, "namespace": namespace, "group": group,
        "name": name,
    }  # fmt: skip
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    found = api.post(path, {**review, "spec": {"resourceAttributes": attributes}})
    allowed: bool = found["status"].get("allowed", False)
    return allowed


EVERYONE_MAY_NOT = [
    ("create", "pods/eviction", TEAM, ""), ("delete", "nodes", "", ""), ("patch", "nodes/status", "", ""),
    ("create", "secrets", NAMESPACE, ""), ("list", "secrets", NAMESPACE, ""), ("get", "secrets", TEAM, ""),
    ("create", "serviceaccounts/token", NAMESPACE, ""), ("update", "clusterroles", "", "rbac.authorization.k8s.io"),
    ("create", "pods", TEAM, ""), ("create", "pods/exec", TEAM, ""),
]  # fmt: skip


@pytest.mark.parametrize("account", ["gigaslice", "gigaslice-scheduler", "gigaslice-controller"])
def test_no_role_may_what_none_needs(installed, account):
    api = installed.account(NAMESPACE, account)
    assert not [row for row in EVERYONE_MAY_NOT if may(api, *row)]
    others = {"gigaslice": "pods/binding", "gigaslice-controller": "pods/binding"}
    assert account not in others or not may(api, "create", others[account], TEAM)
    assert account == "gigaslice-scheduler" or not may(api, "delete", "pods", TEAM)


def test_every_role_may_what_it_needs(installed):
    scheduler = installed.account(NAMESPACE, "gigaslice-scheduler")
    assert all(may(scheduler, "watch", one) for one in ("pods", "nodes", "persistentvolumeclaims"))
    assert may(scheduler, "watch", "resourceclasses", group="gigaslice.io")
    assert may(scheduler, "create", "pods/binding", TEAM)
    lease = {"namespace": NAMESPACE, "group": "coordination.k8s.io"}
    assert may(scheduler, "create", "leases", **lease)
    assert may(scheduler, "update", "leases", **lease, name="gigaslice-scheduler")
    assert not may(scheduler, "update", "leases", **lease, name="gigaslice-controller")
    controller = installed.account(NAMESPACE, "gigaslice-controller")
    for verb, kind in itertools.product(
        ("create", "update", "delete"), ("resourceclasses", "extendedresources")
    ):
        assert may(controller, verb, kind, group="gigaslice.io")
    assert may(controller, "patch", "resourceclasses/status", group="gigaslice.io")
    assert may(controller, "update", "secrets", NAMESPACE, name="gigaslice-webhook")
    configuration = {"group": "admissionregistration.k8s.io", "name": "gigaslice-webhook"}
    assert may(controller, "update", "validatingwebhookconfigurations", **configuration)


@pytest.fixture
def scheduled(installed: ControlPlane, agent: Api, tmp_path: Path) -> Iterator[ControlPlane]:
    """A stock kube-scheduler with our service, both with the chart's configuration and account; one node with GPUs."""
    api, name = installed.admin, "gigaslice-scheduler"
    token = api.post(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token", {"spec": {}})
    access = yaml.safe_load(installed.kubeconfig().read_text())
    access["users"][0]["user"] = {"token": token["status"]["token"]}
    kubeconfig, configuration = tmp_path / "kubeconfig", tmp_path / "scheduler.yaml"
    kubeconfig.write_text(yaml.safe_dump(access))
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"
    given, address = api.get(path)["data"]["scheduler.yaml"], f"127.0.0.1:{free_port()}"
    found = yaml.safe_load(given.replace("127.0.0.1:8090", address))
    configuration.write_text(yaml.safe_dump({**found, "clientConnection": {"kubeconfig": str(kubeconfig)}}))
    node = "/api/v1/nodes/node-b"
    # Room for the pods of the other tests too, which this scheduler binds as well.
    capacity = {"cpu": "32", "memory": "8Gi", "pods": "90"}
    capacity |= {"gigaslice.io/gpu": "12", "gigaslice.io/vgpu-memory": "960"}
    conditions = [{"type": "Ready", "status": "True"}]
    api.patch(
        f"{node}/status",
        {"status": {"capacity": capacity, "allocatable": capacity, "conditions": conditions}},
    )
    text = inventory(*[("H100", 80)] * 12).encode()
    api.patch(node, {"spec": {"taints": None}, "metadata": {"annotations": {"gigaslice.io/inventory": text}}})
    (tmp_path / "service.log").touch()
    with (tmp_path / "service.log").open("ab") as log:
        command = [sys.executable, "-m", "gigaslice_cli", "scheduler", f"--kubeconfig={kubeconfig}"]
        service = subprocess.Popen(
            [*command, f"--listen-address={address}"], cwd=ROOT, stdout=log, stderr=log
        )
    flags = [f"--{one}-kubeconfig={kubeconfig}" for one in ("authentication", "authorization")]
    process = installed.start(
        "kube-scheduler", f"--config={configuration}", "--bind-address=127.0.0.1", "--secure-port=0", *flags
    )
    try:
        yield installed
    finally:
        for one in (process, service):
            one.terminate()
            one.wait(20)


def test_a_stock_scheduler_and_the_service_work_with_the_charts_configuration_and_rights(scheduled):
    """A pod that asks for none of ours, the short form of a class request, and that of a share, all bound."""
    api = scheduled.admin
    plain = pod({"cpu": 1}, schedulerName="gigaslice-scheduler", nodeSelector={"kept": "yes"})
    whole, part = pod({"gpuclass.gigaslice.io/nvidia.h100": 1}), pod({"gpuclass.gigaslice.io/small": 1})
    paths = [f"{PODS}/{api.post(PODS, one)['metadata']['name']}" for one in (plain, whole, part)]
    bound = [api.get(path) for path in paths]

    def all_bound() -> bool:
        bound[:] = [api.get(path) for path in paths]
        return all(one["spec"].get("nodeName") for one in bound)

    until(all_bound, 90)
    assert {one["spec"]["nodeName"] for one in bound} == {"node-b"}
    chosen = [one["metadata"].get("annotations", {}).get("gigaslice.io/assignment") for one in bound]
    assert chosen[0] is None
    ((gpu, slices, *_),), ((other, eight, *_),) = (json.loads(one)["c0"] for one in chosen[1:])
    assert gpu != other and (slices, eight) == (80, 8)
    assert "forbidden" not in (scheduled.folder / "kube-scheduler.log").read_text().lower()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gigaslice-scheduler"
    assert api.get(lease)["spec"]["holderIdentity"]


# --- quota ------------------------------------------------------------------------------------------------------------


def test_a_quota_counts_a_class_and_the_units_that_were_added(installed):
    """The controller that fills status.hard is not run here; the API server enforces what stands there."""
    api = installed.admin
    api.post("/api/v1/namespaces", {"metadata": {"name": "limited"}})
    path = "/api/v1/namespaces/limited/resourcequotas"
    hard = {"requests.gpuclass.gigaslice.io/small": "2", "requests.gigaslice.io/vgpu-memory": "20"}
    api.post(path, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
    status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
    api.patch(f"{path}/gpus/status", status)
    pods = "/api/v1/namespaces/limited/pods"
    until(lambda: _enforced(api, pods))
    api.post(pods, pod({"gpuclass.gigaslice.io/small": 2}))
    assert api.get(f"{path}/gpus")["status"]["used"] == {
        "requests.gpuclass.gigaslice.io/small": "2", "requests.gigaslice.io/vgpu-memory": "16",
    }  # fmt: skip
    with pytest.raises(Refused, match="exceeded quota: gpus"):
        api.post(pods, pod({"gpuclass.gigaslice.io/small": 1}))
    with pytest.raises(Refused, match="exceeded quota: gpus"):
        api.post(pods, pod({"gigaslice.io/vgpu-memory": 5}))
    api.post(pods, pod({"gigaslice.io/vgpu-memory": 4}))


def _enforced(api: Api, pods: str) -> bool:
    try:
        api.post(f"{pods}?dryRun=All", pod({"gpuclass.gigaslice.io/small": 3}))
    except Refused:
        return True
    return False


# --- what was shipped -------------------------------------------------------------------------------------------------


def test_the_pages_examples_are_taken(installed):
    api = installed.admin
    api.post("/api/v1/namespaces", {"metadata": {"name": "reader"}})
    for name in ("nvidia.h100", "nvidia.tesla.t4"):
        api.apply(klass(name))
    until(lambda: _known(api))
    for document in EXAMPLES:
        if document["kind"] == "Pod":
            if priority := document["spec"].get("priorityClassName"):
                until(lambda name=priority: _usable(api, name))
            found = api.post("/api/v1/namespaces/reader/pods", document)
            assert found["spec"]["schedulerName"] == "gigaslice-scheduler"
        elif document["kind"] not in ("KubeSchedulerConfiguration", "PodMonitor"):  # not of the API server
            api.apply(document)


def _usable(api: Api, priority: str) -> bool:
    """Admission hears of a new PriorityClass a moment after it was stored."""
    try:
        api.post(f"{PODS}?dryRun=All", pod({}, priorityClassName=priority))
    except Refused:
        return False
    return True


def _known(api: Api) -> bool:
    try:
        api.post(f"{PODS}?dryRun=All", pod({"gpuclass.gigaslice.io/nvidia.tesla.t4": 1}))
    except Refused:
        return False
    return True


def test_the_manifests_are_as_the_server_keeps_them(installed):
    """Nothing of them is dropped as unknown, and a second `helm upgrade` changes nothing."""
    documents = listed("--set", "cluster.enabled=true", "--kube-version", "1.36.0", "--namespace", NAMESPACE)
    for document in documents:
        version = installed.admin.get(path_of(document))["metadata"]["resourceVersion"]
        assert installed.admin.apply(document)["metadata"]["resourceVersion"] == version, path_of(document)
