# SPDX-License-Identifier: Apache-2.0
"""Claims on a real control plane: templates that are written, what the scheduler makes of them, policies, rights.

The controller's parts run here with a token of its own account, and serve the webhook on loopback.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gigaslice.core.claims.templates import ClaimTemplate, ContainerClaim, container_claim, is_genuine
from gigaslice.core.model import RequestOptions
from tests.cluster import roles
from tests.cluster.claim_controller import RunningController
from tests.cluster.control_plane import MANAGER, Api, ControlPlane, Refused, find_binaries, until
from tests.cluster.test_admission import limits_of, may, pod
from tests.fakes.ports import free_port
from tests.unit.manifests.test_chart import ROOT, documents_of

NAMESPACE, CLAIMING, COUNTING, BOUNDED = "gigaslice", "claiming", "counting", "bounded"
RESOURCES = "/apis/resource.k8s.io/v1"
MEMORY = "gigaslice.io/vgpu-memory"
GIB = 1 << 30
UNNAMED_SECONDS = 6.0
NODE_GPUS = (
    ("NVIDIA A100-SXM4-80GB", 80),
    ("NVIDIA A100-SXM4-80GB", 80),
    ("Tesla T4", 15),
    ("NVIDIA A10", 24),
)
Document = dict[str, Any]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With the chart for nodes that serve claims, and a namespace of each kind."""
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    with ControlPlane(tmp_path_factory.mktemp("claims"), binaries) as found:
        api = found.admin
        for name, labels in (
            (CLAIMING, {"gigaslice.io/api": "dra"}), (COUNTING, {}), (BOUNDED, {"gigaslice.io/api": "dra"}),
            ("mistaken", {"gigaslice.io/api": "drb"}),
        ):  # fmt: skip
            api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        hard = {"hard": {f"requests.{MEMORY}": "8"}}
        api.post(f"/api/v1/namespaces/{BOUNDED}/resourcequotas", {"metadata": {"name": "gpus"}, "spec": hard})
        webhooks = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        found.documents = roles.install(
            found, "node.api=dra", "controller.settings.api=device-plugin", without=webhooks
        )
        yield found


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[RunningController]:
    one = RunningController(plane, unnamed_seconds=UNNAMED_SECONDS)
    one.apply_webhooks(plane.documents)
    with one:
        until(lambda: _asked(plane.admin, one))
        yield one


def _asked(api: Api, running: RunningController) -> bool:
    """Whether the API server asks the webhook by now."""
    with contextlib.suppress(Refused):
        return bool(
            api.post(f"{pods_in(CLAIMING)}?dryRun=All", pod({MEMORY: 1}))["spec"].get("resourceClaims")
        )
    return False


def pods_in(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def templates(api: Api, namespace: str = CLAIMING) -> dict[str, Document]:
    found = api.get(f"{RESOURCES}/namespaces/{namespace}/resourceclaimtemplates")["items"]
    return {one["metadata"]["name"]: one for one in found}


# --- admission --------------------------------------------------------------------------------------------------------


def test_one_line_becomes_a_claim_whose_template_is_there_before_the_answer(plane, running):
    found = plane.admin.post(pods_in(CLAIMING), pod({MEMORY: 8}, init=({MEMORY: 8},)))
    assert found["spec"]["schedulerName"] == "default-scheduler"
    (claim,) = (one["resourceClaimTemplateName"] for one in found["spec"]["resourceClaims"])
    for field in ("containers", "initContainers"):
        assert found["spec"][field][0]["resources"] == {"claims": [{"name": "gigaslice-0"}]}
    assert claim in templates(plane.admin)
    assert json.loads(found["metadata"]["annotations"]["gigaslice.io/claims"]) == {
        claim: [{"parts": [8 * GIB]}]
    }


@pytest.mark.parametrize("annotations", [
    {}, {"gpus": "3"}, {"memory": "4GiB,2GiB,1"}, {"gpu-type": "A100,h100 80gb", "exclude-gpu-type": "T4"},
    {"gpu-uuid": "GPU-6e1b5c1e"}, {"exclude-gpu-uuid": "GPU-6e1b5c1e"}, {"cores": "30"}, {"oversubscribe": "true"},
])  # fmt: skip
def test_a_template_is_kept_as_it_was_written(plane, running, annotations):
    """What the API server adds would make its name that of another."""
    given = pod({MEMORY: 7}, annotations={f"gigaslice.io/{name}": text for name, text in annotations.items()})
    found = plane.admin.post(pods_in(CLAIMING), given)
    (name,) = (one["resourceClaimTemplateName"] for one in found["spec"]["resourceClaims"])
    assert is_genuine(name, templates(plane.admin)[name]["spec"])


def test_a_dry_run_creates_nothing(plane, running):
    before = templates(plane.admin)
    found = plane.admin.post(f"{pods_in(CLAIMING)}?dryRun=All", pod({MEMORY: 77}))
    assert found["spec"]["resourceClaims"] and templates(plane.admin) == before


@pytest.mark.parametrize("namespace, given, sentence", [
    (CLAIMING, pod({"gpuclass.gigaslice.io/nvidia.h100": 1}), "GPU classes are no claims yet"),
    (CLAIMING, pod({MEMORY: 1}, nodeName="n"), "leave spec.nodeName out"),
    (CLAIMING, pod({MEMORY: 1}, annotations={"gigaslice.io/split": "whole-first"}), "write gigaslice.io/memory"),
    (BOUNDED, pod({MEMORY: 1}), "Write a quota on vgpu.gigaslice.io.deviceclass.resource.k8s.io/devices instead"),
    ("mistaken", pod({MEMORY: 1}), "write dra or device-plugin there"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_what_to_write(plane, running, namespace, given, sentence):
    with pytest.raises(Refused) as refused:
        plane.admin.post(pods_in(namespace), given)
    assert sentence in refused.value.message


def test_another_namespaces_pods_are_completed_as_ever(plane, running):
    before = len(running.reviews)
    found = plane.admin.post(pods_in(COUNTING), pod({MEMORY: 8}))
    assert limits_of(found) == {MEMORY: "8"} and found["spec"]["schedulerName"] == "gigaslice-scheduler"
    assert "/mutate" not in {path for path, _ in running.reviews[before:]}


def test_an_ephemeral_container_cannot_ask_at_all(plane, running):
    made = plane.admin.post(pods_in(CLAIMING), pod({MEMORY: 8}))
    path = f"{pods_in(CLAIMING)}/{made['metadata']['name']}/ephemeralcontainers"
    container = {"name": "e", "image": "x", "terminationMessagePolicy": "File"}
    plane.admin.patch(path, {"spec": {"ephemeralContainers": [container]}})
    asking = {**container, "name": "f", "resources": {"limits": {MEMORY: "1"}}}
    with pytest.raises(Refused, match="cannot be set for an Ephemeral Container"):
        plane.admin.patch(path, {"spec": {"ephemeralContainers": [container, asking]}})


def test_a_template_that_was_deleted_is_made_again_for_a_pod_that_names_it(plane, running):
    made = plane.admin.post(pods_in(CLAIMING), pod({MEMORY: 21}))
    (name,) = (one["resourceClaimTemplateName"] for one in made["spec"]["resourceClaims"])
    before = templates(plane.admin)[name]["metadata"]["uid"]
    plane.admin.delete(f"{RESOURCES}/namespaces/{CLAIMING}/resourceclaimtemplates/{name}")
    until(lambda: name in templates(plane.admin), 15)
    assert templates(plane.admin)[name]["metadata"]["uid"] != before
    plane.admin.delete(f"{pods_in(CLAIMING)}/{made['metadata']['name']}", {"gracePeriodSeconds": 0})
    until(lambda: name not in templates(plane.admin), UNNAMED_SECONDS + 15)


def test_only_what_nobody_names_is_deleted_and_only_ours(plane, running):
    kept = plane.admin.post(pods_in(CLAIMING), pod({MEMORY: 22}))
    (name,) = (one["resourceClaimTemplateName"] for one in kept["spec"]["resourceClaims"])
    path = f"{RESOURCES}/namespaces/{CLAIMING}/resourceclaimtemplates"
    theirs = ClaimTemplate((ContainerClaim((GIB,)),)).document(CLAIMING)
    theirs["metadata"]["name"] = "gigaslice-0123456789ab"
    plane.admin.post(path, theirs)
    unnamed = ClaimTemplate((ContainerClaim((23 * GIB,)),))
    plane.admin.post(path, unnamed.document(CLAIMING))
    until(lambda: unnamed.name not in templates(plane.admin), UNNAMED_SECONDS + 15)
    assert {name, "gigaslice-0123456789ab"} <= templates(plane.admin).keys()


# --- what the scheduler makes of the templates ------------------------------------------------------------------------


def device(number: int, model: str, gib: int) -> Document:
    steps = {"min": "1Gi", "max": f"{gib}Gi", "step": "1Gi"}
    cores = {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}
    return {
        "name": f"gpu-{number}",
        "allowMultipleAllocations": True,
        "attributes": {"uuid": {"string": f"GPU-{number}"}, "model": {"string": model}},
        "capacity": {
            "memory": {"value": f"{gib}Gi", "requestPolicy": {"default": f"{gib}Gi", "validRange": steps}},
            "cores": {"value": "100", "requestPolicy": cores},
        },
    }


@pytest.fixture(scope="module")
def scheduled(plane: ControlPlane) -> Api:
    """A node with four GPUs of three kinds, and a stock scheduler."""
    api = plane.admin
    api.post("/api/v1/nodes", {"metadata": {"name": "gpus"}})
    ready = {"type": "Ready", "status": "True", "reason": "x", "message": "x"}
    room = {"cpu": "64", "memory": "64Gi", "pods": "500"}
    api.patch(
        "/api/v1/nodes/gpus/status",
        {"status": {"conditions": [ready], "capacity": room, "allocatable": room}},
    )
    with contextlib.suppress(Refused):
        api.patch("/api/v1/nodes/gpus", {"spec": {"taints": None}})
    devices = [device(number, *gpu) for number, gpu in enumerate(NODE_GPUS)]
    pool = {"name": "gpus", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gigaslice.io", "nodeName": "gpus", "pool": pool, "devices": devices}
    api.post(f"{RESOURCES}/resourceslices", {"metadata": {"name": "gpus-gigaslice"}, "spec": spec})
    plane.start(
        "kube-scheduler", f"--kubeconfig={plane.kubeconfig()}", "--leader-elect=false", "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}", f"--authentication-kubeconfig={plane.kubeconfig()}",
        f"--authorization-kubeconfig={plane.kubeconfig()}",
    )  # fmt: skip
    return api


def claim(slices: int = 8, gpus: int = 0, kind: str = "", **options: Any) -> ContainerClaim:
    found = container_claim(RequestOptions(**options), slices=slices, gpus=gpus, slice_bytes=GIB, kind=kind)
    assert isinstance(found, ContainerClaim)
    return found


@contextlib.contextmanager
def allocated(api: Api, *containers: ContainerClaim) -> Iterator[Any]:
    """What a claim of that spec gets, as (request, device, GiB) of each part; None where it waits."""
    name = f"claim-{next(_numbers)}"
    claims = f"{RESOURCES}/namespaces/{COUNTING}/resourceclaims"
    api.post(claims, {"metadata": {"name": name}, "spec": ClaimTemplate(containers).spec()})
    asking = {"name": "c", "image": "x", "resources": {"claims": [{"name": "g"}]}}
    spec = {"containers": [asking], "resourceClaims": [{"name": "g", "resourceClaimName": name}]}
    api.post(pods_in(COUNTING), {"metadata": {"name": name}, "spec": spec})

    def decided() -> Mapping[str, Any]:
        conditions = api.get(f"{pods_in(COUNTING)}/{name}").get("status", {}).get("conditions", [])
        scheduled: Mapping[str, Any] = next((one for one in conditions if one["type"] == "PodScheduled"), {})
        return scheduled

    try:
        until(decided, 30)
        allocation = api.get(f"{claims}/{name}").get("status", {}).get("allocation")
        yield (
            None
            if allocation is None
            else sorted(
                (one["request"], one["device"], one["consumedCapacity"]["memory"])
                for one in allocation["devices"]["results"]
            )
        )
    finally:
        api.delete(f"{pods_in(COUNTING)}/{name}", {"gracePeriodSeconds": 0})
        api.patch(f"{claims}/{name}", {"metadata": {"finalizers": None}})
        with contextlib.suppress(Refused):
            api.patch(f"{claims}/{name}/status", {"status": {"allocation": None, "reservedFor": None}})
        with contextlib.suppress(Refused):
            api.delete(f"{claims}/{name}")


@pytest.mark.parametrize("containers, expected", [
    ((claim(8),), [("gpu", "gpu-0", "8Gi")]),
    ((claim(16, parts=(8, 8)),), [("gpu", "gpu-0", "8Gi"), ("gpu", "gpu-1", "8Gi")]),
    ((claim(100, gpus=0, parts=(80, 20)),), [("gpu-0", "gpu-0", "80Gi"), ("gpu-1", "gpu-1", "20Gi")]),
    ((claim(8, types=("t4",)),), [("gpu", "gpu-2", "8Gi")]),
    ((claim(8, types=("A10",)),), [("gpu", "gpu-3", "8Gi")]),
    ((claim(8, not_types=("A100", "T4")),), [("gpu", "gpu-3", "8Gi")]),
    ((claim(8, uuids=("gpu-1",)),), [("gpu", "gpu-1", "8Gi")]),
    ((claim(8, not_uuids=("GPU-0",)),), [("gpu", "gpu-1", "8Gi")]),
    ((claim(8, kind="a10"),), [("gpu", "gpu-3", "8Gi")]),
    ((claim(8, exclusive=True, not_types=("A100",)),), [("gpu", "gpu-2", "15Gi")]),
    ((claim(20, exclusive=True, not_types=("A100",)),), [("gpu", "gpu-3", "24Gi")]),
    ((claim(0, gpus=2),), [("gpu", "gpu-0", "80Gi"), ("gpu", "gpu-1", "80Gi")]),
    ((claim(0, gpus=3),), None),
    ((claim(8, oversubscribe=True),), [("gpu", "gpu-0", "8Gi")]),
    ((claim(8), claim(4)), [("container-0-gpu-0", "gpu-0", "8Gi"), ("container-1-gpu-0", "gpu-0", "4Gi")]),
    ((claim(60), claim(30)), None),
    ((claim(8, parts=(4, 4)), claim(6, parts=(3, 3))), [
        ("container-0-gpu-0", "gpu-0", "4Gi"), ("container-0-gpu-1", "gpu-1", "4Gi"),
        ("container-1-gpu-0", "gpu-0", "3Gi"), ("container-1-gpu-1", "gpu-1", "3Gi"),
    ]),
    ((claim(8, cores=60), claim(8, cores=60)), None),
    ((claim(100),), None),
])  # fmt: skip
def test_the_stock_scheduler_gives_what_the_one_line_asked_for(scheduled, containers, expected):
    with allocated(scheduled, *containers) as found:
        assert found == expected


def test_one_line_is_bound_with_what_it_asked_for_and_made_again_on_the_way(plane, running, scheduled):
    """By Kubernetes's own parts; the template is deleted before there is anything that makes claims from it."""
    if MANAGER not in plane.binaries:
        pytest.skip(f"no {MANAGER}")
    api = plane.admin
    made = api.post(pods_in(CLAIMING), pod({MEMORY: 24}, annotations={"gigaslice.io/gpu-type": "A10"}))
    name = made["metadata"]["name"]
    (template,) = (one["resourceClaimTemplateName"] for one in made["spec"]["resourceClaims"])
    api.delete(f"{RESOURCES}/namespaces/{CLAIMING}/resourceclaimtemplates/{template}")
    plane.start(
        MANAGER, f"--kubeconfig={plane.kubeconfig()}", "--leader-elect=false",
        "--controllers=resourceclaim-controller", "--bind-address=127.0.0.1", f"--secure-port={free_port()}",
    )  # fmt: skip
    until(lambda: api.get(f"{pods_in(CLAIMING)}/{name}")["spec"].get("nodeName") == "gpus", 60)
    (status,) = api.get(f"{pods_in(CLAIMING)}/{name}")["status"]["resourceClaimStatuses"]
    claims = f"{RESOURCES}/namespaces/{CLAIMING}/resourceclaims"
    claim_ = api.get(f"{claims}/{status['resourceClaimName']}")
    (result,) = claim_["status"]["allocation"]["devices"]["results"]
    assert (result["device"], result["consumedCapacity"]["memory"]) == ("gpu-3", "24Gi")
    assert claim_["metadata"]["annotations"]["gigaslice.io/follows-pod"] == "true"

    second = api.post(pods_in(CLAIMING), pod({MEMORY: 1}, annotations={"gigaslice.io/gpu-type": "A10"}))
    waiting = f"{pods_in(CLAIMING)}/{second['metadata']['name']}"

    def refused() -> bool:
        conditions = api.get(waiting).get("status", {}).get("conditions", [])
        return any("cannot allocate all claims" in one.get("message", "") for one in conditions)

    until(refused, 60)
    api.delete(waiting, {"gracePeriodSeconds": 0})
    api.delete(f"{pods_in(CLAIMING)}/{name}", {"gracePeriodSeconds": 0})


# --- what an agent may ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agent(plane: ControlPlane) -> Api:
    """With the token that the kubelet of node-a would give its agent."""
    api = plane.admin
    for name in ("node-a", "node-b"):
        api.post("/api/v1/nodes", {"metadata": {"name": name}})
    containers = [{"name": "node", "image": "x"}]
    spec = {"nodeName": "node-a", "serviceAccountName": "gigaslice", "containers": containers}
    made = api.post(pods_in(NAMESPACE), {"metadata": {"name": "agent"}, "spec": spec})
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": made["metadata"]["uid"]}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/gigaslice/token"
    return plane.bearer(api.post(path, {"spec": {"boundObjectRef": bound}})["status"]["token"])


def slice_of(node: str, driver: str = "gigaslice.io", pool: str = "") -> Document:
    pools = {"name": pool or node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pools, "devices": [device(0, "A", 8)]}
    return {"metadata": {"name": f"s{next(_numbers)}"}, "spec": spec}


def test_an_agent_writes_the_slices_of_its_node_and_no_others(plane, agent):
    slices = f"{RESOURCES}/resourceslices"
    own = agent.post(slices, slice_of("node-a"))
    assert own["spec"]["devices"][0]["allowMultipleAllocations"] is True
    own["spec"]["pool"]["generation"] = 2
    own = agent.request("PUT", f"{slices}/{own['metadata']['name']}", own)
    for other in (
        slice_of("node-b"),
        slice_of("node-a", "gpu.nvidia.com"),
        slice_of("node-a", pool="node-b"),
    ):
        with pytest.raises(Refused, match="ResourceSlices of its own node"):
            agent.post(slices, other)
    theirs = plane.admin.post(slices, slice_of("node-b"))
    path = f"{slices}/{theirs['metadata']['name']}"
    theirs["spec"]["pool"]["generation"] = 2
    for method, body in (("PUT", theirs), ("DELETE", None)):
        with pytest.raises(Refused, match="ResourceSlices of its own node"):
            agent.request(method, path, body)
    plane.admin.request("PUT", path, theirs)
    agent.delete(f"{slices}/{own['metadata']['name']}")
    plane.admin.delete(path)


def test_an_agent_wakes_pods_of_its_node_and_changes_nothing_else_of_them(plane, agent):
    api = plane.admin
    here, there = (
        api.post(pods_in(COUNTING), pod({}, nodeName=node, annotations={"kept": "x"}))["metadata"]["name"]
        for node in ("node-a", "node-b")
    )

    def change(name: str, **metadata: Any) -> Document:
        return agent.patch(f"{pods_in(COUNTING)}/{name}", {"metadata": metadata})

    for text in ("1", "2", None):
        found = change(here, annotations={"gigaslice.io/wake": text})
        assert found["metadata"]["annotations"].get("gigaslice.io/wake") == text
    with pytest.raises(Refused, match="pods of its own node only"):
        change(there, annotations={"gigaslice.io/wake": "1"})
    for metadata in (
        {"annotations": {"gigaslice.io/assignment": "x"}}, {"annotations": {"kept": None}},
        {"annotations": {"kept": "y"}},
        {"labels": {"a": "b"}}, {"finalizers": ["a.b/c"]},
    ):  # fmt: skip
        with pytest.raises(
            Refused, match=r"gigaslice\.io/wake of a pod, and nothing else|written by the scheduler"
        ):
            change(here, **metadata)
    with pytest.raises(Refused, match=r"gigaslice\.io/wake of a pod, and nothing else"):
        agent.patch(f"{pods_in(COUNTING)}/{here}", {"spec": {"activeDeadlineSeconds": 1}})
    with pytest.raises(Refused, match="pods of its own node only"):
        plane.account(NAMESPACE, "gigaslice").patch(
            f"{pods_in(COUNTING)}/{here}", {"metadata": {"annotations": {"gigaslice.io/wake": "1"}}}
        )
    api.patch(f"{pods_in(COUNTING)}/{here}", {"metadata": {"labels": {"team": "x"}}})


def test_every_role_may_what_it_needs_for_claims_and_no_more(plane):
    agent, controller = (plane.account(NAMESPACE, name) for name in ("gigaslice", "gigaslice-controller"))
    resource = "resource.k8s.io"
    for verb in ("get", "list", "watch", "create", "update", "delete"):
        assert may(agent, verb, "resourceslices", group=resource)
        assert not may(controller, verb, "resourceslices", group=resource)
    assert may(agent, "get", "resourceclaims", CLAIMING, resource) and may(agent, "patch", "pods", CLAIMING)
    templates_ = ("get", "list", "watch", "create", "delete")
    assert all(may(controller, verb, "resourceclaimtemplates", CLAIMING, resource) for verb in templates_)
    for api, verb, kind, group in (
        (agent, "list", "resourceclaims", resource), (agent, "update", "resourceclaims/status", resource),
        (agent, "get", "resourceclaimtemplates", resource), (agent, "update", "pods", ""),
        (agent, "delete", "pods", ""),
        (agent, "patch", "pods/status", ""), (agent, "deletecollection", "resourceslices", resource),
        (controller, "update", "resourceclaimtemplates", resource), (controller, "create", "resourceclaims", resource),
        (controller, "list", "resourceclaims", resource), (controller, "patch", "pods", ""),
    ):  # fmt: skip
        assert not may(api, verb, kind, CLAIMING, group), (verb, kind)


# --- parameters -------------------------------------------------------------------------------------------------------


def claim_with(
    parameters: object, kind: str = "claim", driver: str = "gigaslice.io", **capacity: str
) -> tuple[str, Document]:
    exactly: Document = {"deviceClassName": "vgpu.gigaslice.io"}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    config = [] if parameters is None else [{"opaque": {"driver": driver, "parameters": parameters}}]
    spec: Document = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": config}}
    metadata = {"name": f"with-{next(_numbers)}"}
    if kind == "claim":
        return "resourceclaims", {"metadata": metadata, "spec": spec}
    return "resourceclaimtemplates", {"metadata": metadata, "spec": {"spec": spec}}


def vgpu(**fields: object) -> Document:
    return {"apiVersion": "config.gigaslice.io/v1alpha1", "kind": "VGPU", **fields}


@pytest.fixture(scope="module")
def bounded(plane: ControlPlane) -> Api:
    """Once the policies act."""
    api = plane.admin
    labels = {
        f"gigaslice.io/allow-{name}": "true" for name in ("elastic", "priority", "time-slicing", "cores")
    }
    api.post("/api/v1/namespaces", {"metadata": {"name": "trusted", "labels": labels}})

    def acts() -> bool:
        kind, document = claim_with({"kind": "x"})
        try:
            api.post(f"{RESOURCES}/namespaces/{COUNTING}/{kind}?dryRun=All", document)
        except Refused:
            return True
        return False

    until(acts)
    return api


@pytest.mark.parametrize("kind", ["claim", "template"])
@pytest.mark.parametrize("parameters, sentence", [
    (vgpu(), ""), (vgpu(oversubscribe=True, coresPolicy="elastic", priority="best-effort", elastic=False), ""),
    (vgpu(timeSlicing=True), ""), (None, ""),
    ({"kind": "VGPU"}, "write apiVersion"), (vgpu(apiVersion="config.gigaslice.io/v1"), "write apiVersion"),
    (vgpu(gpus=2), "there is no gpus; write some of"), (vgpu(Elastic=True), "there is no Elastic"),
    (vgpu(oversubscribe="true"), "are true or false"), (vgpu(elastic=16), "are true or false"),
    (vgpu(elastic="much"), "are true or false"), (vgpu(priority="high"), "are true or false"),
    (vgpu(elastic=True), "allow-elastic"), (vgpu(elastic="16GiB"), "allow-elastic"),
    (vgpu(priority="guaranteed"), "allow-priority"), (vgpu(timeSlicing=False), "allow-time-slicing"),
])  # fmt: skip
def test_parameters_are_checked_where_they_are_written(bounded, kind, parameters, sentence):
    plural, document = claim_with(parameters, kind)

    def ask(namespace: str) -> str:
        try:
            bounded.post(f"{RESOURCES}/namespaces/{namespace}/{plural}?dryRun=All", document)
        except Refused as refused:
            return refused.message
        return ""

    rights = (
        "allow-" in sentence
    )  # of a policy of its own; what makes no sense is refused by both, in any order
    answer = ask(COUNTING if rights or not sentence else "trusted")
    assert sentence in answer and bool(sentence) == bool(answer)
    assert not rights or ask("trusted") == ""


def test_other_drivers_say_what_they_like(bounded):
    for driver in ("gpu.nvidia.com", "gigaslice.io.example.com"):
        plural, document = claim_with({"any": "thing"}, driver=driver)
        bounded.post(f"{RESOURCES}/namespaces/{COUNTING}/{plural}?dryRun=All", document)


def test_the_right_to_cores_holds_in_claims_too(bounded):
    claims = f"{RESOURCES}/namespaces/{COUNTING}/resourceclaims?dryRun=All"
    for cores in ("100", "30"):
        assert bounded.post(claims, claim_with(None, memory="8Gi", cores=cores)[1])
    _, document = claim_with(None, memory="8Gi", cores="101")
    with pytest.raises(Refused, match="allow-cores"):
        bounded.post(claims, document)
    bounded.post(claims.replace(COUNTING, "trusted"), document)


def test_the_pages_manifests_are_taken(bounded):
    page = (ROOT / "docs" / "dra.md").read_text()
    found = [one for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) for one in documents_of(text)]
    assert len(found) == 5
    for document in found:
        plural = f"{document['kind'].lower()}s"
        root = "/api/v1" if document["kind"] == "Pod" else RESOURCES
        where = f"{root}/namespaces/{COUNTING}/{plural}?dryRun=All&fieldValidation=Strict"
        assert bounded.post(where, document)["metadata"]["name"]
