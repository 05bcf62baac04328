# SPDX-License-Identifier: Apache-2.0
"""Slices, claims and templates in the API server stand-in: what a server refuses, loses and selects of them."""

from __future__ import annotations

import copy

import pytest

from tests.fakes.kubeapi import ApiServer
from tests.fakes.kubeapi.answers import Answers, Request
from tests.fakes.kubeapi.device_documents import (
    claim_document,
    device_document,
    request_document,
    slice_document,
)
from tests.fakes.kubeapi.store import ObjectStore

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class Server:
    """Requests without HTTP."""

    def __init__(self):
        self.store = ObjectStore()
        self.answers = Answers(self.store)

    def __call__(self, method, path, body=None, kind="application/json", **query):
        return self.answers.answer(Request(method, path, path, query, {"content-type": kind}, body))


@pytest.fixture
def server():
    return Server()


def sliced(*devices, **more):
    return slice_document(*(devices or (device_document(gib=79),)), **more)


def asking_claim(*requests, name="c", **devices):
    return claim_document(
        name, *(requests or (request_document(memory="8Gi"),)), namespace="team-a", **devices
    )


def changed(document, path, value):
    """A copy with the field at PATH set, or taken away where VALUE is None."""
    document = copy.deepcopy(document)
    *parents, last = path
    target = document
    for key in parents:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return document


def test_a_slice_is_kept_as_it_was_sent_and_counts_its_changes(server):
    sent = sliced()
    status, answer = server("POST", SLICES, sent)
    assert status == 201
    assert answer["spec"] == sent["spec"]
    assert answer["metadata"]["generation"] == 1
    path = f"{SLICES}/node-a-gigaslice.io"
    status, same = server("PUT", path, answer)
    assert (status, same["metadata"]) == (200, answer["metadata"])
    after = changed(answer, ("spec", "pool", "generation"), 2)
    status, answer = server("PUT", path, after)
    assert (status, answer["metadata"]["generation"]) == (200, 2)


_DEVICE = ("spec", "devices", 0)
_MEMORY = (*_DEVICE, "capacity", "memory")
_RANGE = (*_MEMORY, "requestPolicy", "validRange")


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("spec", "driver"), "Gigaslice", "spec.driver"),
        (("spec", "nodeName"), None, "exactly one of"),
        (("spec", "allNodes"), True, "exactly one of"),
        (("spec", "pool", "resourceSliceCount"), 0, "greater than zero"),
        (("spec", "devices"), [{"name": f"gpu-{n}"} for n in range(129)], "at most 128"),
        (
            ("spec", "devices"),
            [{"name": f"gpu-{n}", "taints": [{"key": "k/x", "effect": "NoSchedule"}]} for n in range(65)],
            "at most 64",
        ),
        (("spec", "devices"), [{"name": "gpu-0"}, {"name": "gpu-0"}], "Duplicate value"),
        ((*_DEVICE, "name"), "gpu_0", "lowercase RFC 1123 label"),
        ((*_DEVICE, "attributes"), {f"a{n}": {"int": n} for n in range(31)}, "must not exceed 32"),
        ((*_DEVICE, "attributes", "model"), {"string": "x" * 65}, "Too long"),
        ((*_DEVICE, "attributes", "model"), {"string": "x", "int": 1}, "exactly one value"),
        ((*_DEVICE, "attributes", "model"), {"int": "1"}, "another type"),
        ((*_DEVICE, "attributes", "driverVersion"), {"version": "580.95.05"}, "semver"),
        ((*_DEVICE, "attributes", "nvlink-group"), {"int": 1}, "C identifier"),
        ((*_DEVICE, "attributes", "x" * 33), {"int": 1}, "C identifier"),
        ((*_DEVICE, "allowMultipleAllocations"), None, "must not be set"),
        ((*_DEVICE, "taints"), [{"key": "k", "effect": "No"}], "Unsupported value"),
        ((*_DEVICE, "taints"), [{"key": "k", "effect": "NoExecute"}] * 17, "at most 16"),
        ((*_MEMORY, "value"), "78Gi", "must not be more than the capacity's value"),
        ((*_MEMORY, "value"), "many", "is no quantity"),
        ((*_MEMORY, "requestPolicy", "default"), "80Gi", "must not be more than the capacity's value"),
        ((*_MEMORY, "requestPolicy", "default"), None, "default: Required value"),
        ((*_MEMORY, "requestPolicy", "default"), "1536Mi", "multiple of the step"),
        ((*_MEMORY, "requestPolicy", "validValues"), ["79Gi"], "exactly one policy"),
        ((*_RANGE, "min"), None, "min: Required value"),
        ((*_RANGE, "min"), "80Gi", "min"),
        ((*_RANGE, "max"), "40Gi", "within the range"),
        ((*_RANGE, "max"), "80895Mi", "multiple of the step"),
        ((*_RANGE, "step"), "79Gi", "one step above the minimum"),
    ],
)
def test_an_invalid_slice_is_refused(server, path, value, text):
    status, answer = server("POST", SLICES, changed(sliced(), path, value))
    assert (status, answer["reason"]) == (422, "Invalid")
    assert text in answer["message"]
    assert answer["message"].startswith('ResourceSlice.resource.k8s.io "node-a-gigaslice.io" is invalid: ')


def test_128_devices_and_64_with_taints_are_taken(server):
    taints = [{"key": "gigaslice.io/unhealthy", "value": "xid", "effect": "NoSchedule"}]
    plain = [device_document(f"gpu-{number}") for number in range(128)]
    tainted = [device_document(f"gpu-{number}", taints=taints) for number in range(64)]
    assert server("POST", SLICES, sliced(*plain, name="a"))[0] == 201
    assert server("POST", SLICES, sliced(*tainted, name="b"))[0] == 201


def test_driver_node_and_pool_of_a_slice_stay(server):
    _, kept = server("POST", SLICES, sliced())
    for path in (("spec", "driver"), ("spec", "nodeName"), ("spec", "pool", "name")):
        status, answer = server("PUT", f"{SLICES}/node-a-gigaslice.io", changed(kept, path, "other"))
        assert status == 422
        assert "field is immutable" in answer["message"]


def test_a_server_without_the_gates_loses_sharing_and_taints_silently(server):
    server.store.device_rules.drops_sharing = server.store.device_rules.drops_taints = True
    taints = [{"key": "gigaslice.io/unhealthy", "effect": "NoSchedule"}]
    status, answer = server("POST", SLICES, sliced(device_document(gib=79, taints=taints)))
    assert status == 201
    (found,) = answer["spec"]["devices"]
    assert not {"allowMultipleAllocations", "taints"} & set(found)
    assert found["capacity"] == {"memory": {"value": "79Gi"}, "cores": {"value": "100"}}
    status, claim = server("POST", CLAIMS, asking_claim())
    assert claim["spec"]["devices"]["requests"] == [
        {"name": "gpu", "exactly": {"deviceClassName": "vgpu.gigaslice.io"}}
    ]


def test_slices_are_selected_by_driver_and_node_and_by_nothing_else(server):
    server("POST", SLICES, sliced())
    server("POST", SLICES, sliced(name="b", node="node-b"))
    server("POST", SLICES, sliced(name="c", driver="example.com"))

    def names(selector):
        return [one["metadata"]["name"] for one in server("GET", SLICES, fieldSelector=selector)[1]["items"]]

    assert names("spec.driver=gigaslice.io,spec.nodeName=node-a") == ["node-a-gigaslice.io"]
    assert names("spec.nodeName=node-a") == ["node-a-gigaslice.io", "c"]
    status, answer = server("GET", SLICES, fieldSelector="spec.pool.name=node-a")
    assert (status, answer["message"]) == (400, "field label not supported: spec.pool.name")


def test_the_spec_of_claims_and_templates_is_immutable_and_their_metadata_are_not(server):
    template = {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": {"spec": asking_claim()["spec"]},
    }
    for path, document in ((CLAIMS, asking_claim(name="t")), (TEMPLATES, template)):
        assert server("POST", path, document)[0] == 201
        annotated = {"metadata": {"annotations": {"a": "b"}}}
        assert server("PATCH", f"{path}/t", annotated, MERGE)[0] == 200
        status, answer = server("PATCH", f"{path}/t", {"spec": {"devices": None, "spec": None}}, MERGE)
        assert status == 422
        assert "field is immutable" in answer["message"]


def allocation(request="gpu", **more):
    result = {"request": request, "driver": "gigaslice.io", "pool": "node-a", "device": "gpu-0"}
    return {"devices": {"results": [result]}, **more}


def test_the_status_of_a_claim_has_its_own_path_and_an_allocation_is_not_changed(server):
    sent = {**asking_claim(), "status": {"allocation": allocation()}}
    _, claim = server("POST", CLAIMS, sent)
    assert "status" not in claim
    path = f"{CLAIMS}/c"
    server("PATCH", path, {"status": {"allocation": allocation()}}, MERGE)
    assert "status" not in server("GET", path)[1]
    assert server("PATCH", f"{path}/status", {"status": {"allocation": allocation()}}, MERGE)[0] == 200
    stamped = {"status": {"allocation": allocation(allocationTimestamp="2026-11-24T00:00:00Z")}}
    status, answer = server("PATCH", f"{path}/status", stamped, MERGE)
    assert status == 422
    assert "status.allocation" in answer["message"]
    assert "field is immutable" in answer["message"]
    assert server("PATCH", f"{path}/status", {"status": {"allocation": None}}, MERGE)[0] == 200
    assert server("PATCH", f"{path}/status", stamped, MERGE)[0] == 200


def test_consumers_need_an_allocation_and_a_claim_that_stays(server):
    server("POST", CLAIMS, asking_claim())
    path = f"{CLAIMS}/c/status"
    consumer = {"resource": "pods", "name": "p", "uid": "u1"}
    status, answer = server("PATCH", path, {"status": {"reservedFor": [consumer]}}, STRATEGIC)
    assert status == 422
    assert "`allocated` is not set" in answer["message"]
    assert (
        server("PATCH", path, {"status": {"allocation": allocation(), "reservedFor": [consumer]}}, MERGE)[0]
        == 200
    )
    finalizers = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    server("PATCH", f"{CLAIMS}/c", finalizers, MERGE)
    server("DELETE", f"{CLAIMS}/c", {})
    other = {"status": {"reservedFor": [{**consumer, "uid": "u2"}]}}
    status, answer = server("PATCH", path, other, STRATEGIC)
    assert status == 422
    assert "`deletionTimestamp`" in answer["message"]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (asking_claim({"name": "a"}), "exactly one of `exactly` or `firstAvailable`"),
        (asking_claim({"name": "a", "exactly": {"count": 1}}), "deviceClassName: Required value"),
        (asking_claim({"name": "A", "exactly": {"deviceClassName": "c"}}), "RFC 1123 label"),
        (
            asking_claim(*({"name": f"a{n}", "exactly": {"deviceClassName": "c"}} for n in range(33))),
            "at most 32",
        ),
        (asking_claim(config=[{"opaque": {"driver": "gigaslice.io", "parameters": "x"}}]), "JSON object"),
        (
            asking_claim(config=[{"opaque": {"driver": "d", "parameters": {"a": "x" * 10240}}}]),
            "Too long",
        ),
        (asking_claim(config=[{"requests": ["cpu"], "opaque": {}}]), "name of a request"),
        (asking_claim(constraints=[{"requests": ["gpu"]}]), "matchAttribute"),
    ],
)
def test_an_invalid_claim_is_refused(server, document, text):
    status, answer = server("POST", CLAIMS, document)
    assert status == 422
    assert text in answer["message"]


def test_strategic_patches_merge_lists_of_names_and_merge_patches_replace_them(server):
    owners = [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]
    document = {"metadata": {"name": "p", "ownerReferences": owners, "finalizers": ["x"]}, "spec": {}}
    server.store.create("pods", document, "team-a")
    path = "/api/v1/namespaces/team-a/pods/p"
    patch = {
        "ownerReferences": [{"uid": "2", "name": "c"}],
        "finalizers": ["y"],
        "annotations": {"gigaslice.io/wake": "1"},
    }
    _, answer = server("PATCH", path, {"metadata": patch}, STRATEGIC)
    assert answer["metadata"]["ownerReferences"] == [owners[0], {"uid": "2", "name": "c"}]
    assert answer["metadata"]["finalizers"] == ["x", "y"]
    assert answer["metadata"]["annotations"] == {"gigaslice.io/wake": "1"}
    gone = {
        "ownerReferences": [{"$patch": "delete", "uid": "1"}],
        "$deleteFromPrimitiveList/finalizers": ["x"],
    }
    _, answer = server("PATCH", path, {"metadata": gone}, STRATEGIC)
    assert answer["metadata"]["ownerReferences"] == [{"uid": "2", "name": "c"}]
    assert answer["metadata"]["finalizers"] == ["y"]
    _, answer = server("PATCH", path, {"metadata": {"finalizers": ["z"]}}, MERGE)
    assert answer["metadata"]["finalizers"] == ["z"]


def test_a_server_has_the_rules_for_what_a_test_puts_in_too():
    api = ApiServer("node-a")
    api.device_rules.drops_sharing = True
    api.put("resourceslices", sliced())
    (found,) = api.get("resourceslices", "node-a-gigaslice.io")["spec"]["devices"]
    assert "allowMultipleAllocations" not in found
