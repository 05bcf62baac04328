# SPDX-License-Identifier: Apache-2.0
"""Allocator and claim controller: what was seen of those of Kubernetes 1.36, and that nothing is given away twice."""

from __future__ import annotations

import random

import pytest

from gigaslice.core.kube.quantity import parse_quantity
from tests.fakes.claims import Allocator, ClaimController, ClaimPlane
from tests.fakes.claims.search import Unknown
from tests.fakes.eventually import wait_until
from tests.fakes.kubeapi import ApiServer, new_pod
from tests.fakes.kubeapi.device_documents import (
    CLASS,
    asked_document,
    claim_document,
    class_document,
    device_document,
    request_document,
    slice_document,
    template_document,
)

NODE = "node-a"


@pytest.fixture
def api():
    made = ApiServer(NODE)
    made.create("deviceclasses", class_document())
    return made


def publish(api, *gib, **more):
    devices = [device_document(f"gpu-{number}", size) for number, size in enumerate(gib)]
    return api.put("resourceslices", slice_document(*devices, **more))


def pod(api, name, *claims, template=""):
    """A pod of which nobody has a claim yet; its container has all of them."""
    entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    if template:
        entries.append({"name": "vgpu", "resourceClaimTemplateName": template})
    return api.create("pods", new_pod(name, {}, resourceClaims=entries))


def allocated(api, *requests, name="c", allocator=None, **devices):
    """The devices of the claim's results in their order; None where it was not allocated."""
    api.create("resourceclaims", claim_document(name, *requests, **devices))
    pod(api, f"pod-{name}", name)
    (allocator or Allocator(api)).run_once()
    status = api.get("resourceclaims", name, "default").get("status") or {}
    results = status.get("allocation", {}).get("devices", {}).get("results")
    return results and [one["device"] for one in results]


def consumed(api, name="c"):
    claim = api.get("resourceclaims", name, "default")
    return [one["consumedCapacity"] for one in claim["status"]["allocation"]["devices"]["results"]]


def condition(api, name="pod-c"):
    (found,) = api.get("pods", name, "default")["status"]["conditions"]
    return found["message"]


def test_an_allocation_has_all_that_a_driver_reads_and_the_pod_is_bound(api):
    publish(api, 24)
    parameters = {"opaque": {"driver": "gigaslice.io", "parameters": {"kind": "VGPU"}}}
    api.put("deviceclasses", class_document(config=[parameters]))
    ours = {"requests": ["gpu"], **parameters}
    request = request_document(memory="8Gi", cores="30")
    assert allocated(api, request, config=[ours]) == ["gpu-0"]
    claim = api.get("resourceclaims", "c", "default")
    assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    consumer = api.get("pods", "pod-c", "default")
    uid = consumer["metadata"]["uid"]
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "pod-c", "uid": uid}]
    allocation = claim["status"]["allocation"]
    (result,) = allocation["devices"]["results"]
    assert len(result.pop("shareID")) == 36
    assert result == {
        "request": "gpu",
        "driver": "gigaslice.io",
        "pool": NODE,
        "device": "gpu-0",
        "consumedCapacity": {"memory": "8Gi", "cores": "30"},
    }
    assert allocation["devices"]["config"] == [
        {"source": "FromClass", "requests": ["gpu"], **parameters},
        {"source": "FromClaim", **ours},
    ]
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
    assert allocation["allocationTimestamp"]
    assert consumer["spec"]["nodeName"] == NODE


@pytest.mark.parametrize(
    ("asked", "memory"),
    [({"memory": "8500Mi"}, "9Gi"), ({"memory": "1"}, "1Gi"), ({}, "24Gi"), ({"memory": "24Gi"}, "24Gi")],
)
def test_what_is_asked_is_rounded_up_to_a_step_and_nothing_is_the_default(api, asked, memory):
    publish(api, 24)
    allocated(api, request_document(**asked))
    assert consumed(api) == [{"memory": memory, "cores": "0"}]


def test_more_than_the_largest_does_not_fit_and_no_reason_is_given(api):
    publish(api, 24)
    assert allocated(api, request_document(memory="25Gi")) is None
    assert condition(api).startswith(
        "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable"
    )


def test_the_published_order_decides(api):
    publish(api, 4, 11, 21)
    assert allocated(api, request_document(memory="3Gi"), name="a") == ["gpu-0"]
    assert allocated(api, request_document(memory="8Gi"), name="b") == ["gpu-1"]
    devices = [device_document("gpu-2", 21), device_document("gpu-1", 11), device_document("gpu-0", 4)]
    api.put("resourceslices", slice_document(*devices, generation=2))
    assert allocated(api, request_document(memory="3Gi"), name="c") == ["gpu-2"]


def test_one_request_has_no_device_twice_and_several_may_share_one(api):
    publish(api, 24, 24, 24, 24)
    assert allocated(api, request_document(memory="4Gi", count=2), name="a") == ["gpu-0", "gpu-1"]
    assert allocated(api, request_document(memory="1Gi", count=8), name="b") is None
    requests = [request_document(name, memory="4Gi") for name in ("x", "y")]
    assert allocated(api, *requests, name="c") == ["gpu-0", "gpu-0"]
    distinct = [{"requests": ["x", "y"], "distinctAttribute": "gigaslice.io/uuid"}]
    assert allocated(api, *requests, name="d", constraints=distinct) == ["gpu-0", "gpu-1"]


def test_a_choice_that_leads_nowhere_is_taken_back(api):
    """The first request would have the first device, which only the second can have."""
    publish(api, 24, 4)
    first, second = request_document("x", memory="4Gi"), request_document("y", memory="21Gi")
    assert allocated(api, first, second) == ["gpu-1", "gpu-0"]


def test_devices_that_must_match_do(api):
    groups = ["a", "b", "b"]
    devices = [
        device_document(f"gpu-{number}", attributes={"group": {"string": group}})
        for number, group in enumerate(groups)
    ]
    api.put("resourceslices", slice_document(*devices))
    match = [{"matchAttribute": "gigaslice.io/group"}]
    assert allocated(api, request_document(count=2), constraints=match) == ["gpu-1", "gpu-2"]
    missing = [{"matchAttribute": "gigaslice.io/other"}]
    assert allocated(api, request_document(), name="d", constraints=missing) is None


def test_alternatives_are_tried_in_order(api):
    publish(api, 24, 24)
    one, two = (
        {"name": name, **asked_document(memory=memory, count=count)}
        for name, memory, count in (("four", "1Gi", 4), ("two", "20Gi", 2))
    )
    request = {"name": "gpus", "firstAvailable": [one, two]}
    assert allocated(api, request) == ["gpu-0", "gpu-1"]
    claim = api.get("resourceclaims", "c", "default")
    assert [one["request"] for one in claim["status"]["allocation"]["devices"]["results"]] == ["gpus/two"] * 2


def test_classes_and_expressions_are_functions_and_none_is_guessed(api):
    publish(api, 24, 48)
    api.create("deviceclasses", class_document("large"))
    api.create("deviceclasses", class_document("never"))
    large = {
        "large": lambda device: device["capacity"]["memory"]["value"] == "48Gi",
        "never": lambda _: False,
    }
    allocator = Allocator(api, large, {"device.driver == 'x'": lambda device: device["driver"] == "x"})
    assert allocated(api, request_document(device_class="large"), name="a", allocator=allocator) == ["gpu-1"]
    assert allocated(api, request_document(device_class="never"), name="b", allocator=allocator) is None
    other = request_document(selectors=[{"cel": {"expression": "device.driver  == 'x'"}}])
    assert allocated(api, other, name="c", allocator=allocator) is None
    assert "cannot allocate all claims" in condition(api, "pod-c")
    unknown = request_document(selectors=[{"cel": {"expression": "true"}}])
    assert allocated(api, unknown, name="d", allocator=allocator) is None
    assert "no test has said what this means: true" in condition(api, "pod-d")
    with pytest.raises(Unknown, match="device class other does not exist"):
        Allocator(api).allocate(claim_document("e", request_document(device_class="other")), NODE)


def test_a_tainted_device_is_for_claims_that_tolerate_it(api):
    taints = [{"key": "gigaslice.io/unhealthy", "value": "xid", "effect": "NoSchedule"}]
    api.put("resourceslices", slice_document(device_document(taints=taints)))
    assert allocated(api, request_document(), name="a") is None
    tolerations = [{"key": "gigaslice.io/unhealthy", "operator": "Exists"}]
    assert allocated(api, request_document(tolerations=tolerations), name="b") == ["gpu-0"]


def test_a_device_that_is_not_shared_is_given_once(api):
    api.put("resourceslices", slice_document({"name": "nic-0"}, {"name": "nic-1"}, driver="example.com"))
    names = [allocated(api, request_document(), name=name) for name in ("a", "b", "c")]
    assert names == [["nic-0"], ["nic-1"], None]
    claim = api.get("resourceclaims", "a", "default")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert not {"shareID", "consumedCapacity"} & set(result)


def test_a_pool_counts_with_all_slices_of_its_newest_generation(api):
    publish(api, 24, name="b", count=2)
    assert allocated(api, request_document(memory="1Gi"), name="x") is None
    api.put("resourceslices", slice_document(device_document("gpu-9"), name="a", count=2))
    assert allocated(api, request_document(memory="1Gi"), name="y") == ["gpu-9"]
    publish(api, 24, name="b", generation=2)
    assert allocated(api, request_document(memory="1Gi"), name="z") == ["gpu-0"]


def test_sums_are_never_over_the_capacity(api):
    """Claims come and go at random, with counts and several requests; each allocation is one that fits."""
    rng = random.Random(5)
    allocator, controller = Allocator(api), ClaimController(api)
    sizes = {"gpu-0": 24, "gpu-1": 11, "gpu-2": 7}
    publish(api, *sizes.values())
    given = 0
    for number in range(150):
        requests = [
            request_document(
                f"r{one}", memory=f"{rng.randint(1, 9 * 1024)}Mi", cores=str(rng.choice((0, 30, 60)))
            )
            for one in range(rng.randint(1, 2))
        ]
        given += allocated(api, *requests, name=f"c{number}", allocator=allocator) is not None
        used = {name: [0, 0] for name in sizes}
        for claim in api.all("resourceclaims"):
            for result in (
                (claim.get("status") or {}).get("allocation", {}).get("devices", {}).get("results", [])
            ):
                used[result["device"]][0] += parse_quantity(result["consumedCapacity"]["memory"])
                used[result["device"]][1] += parse_quantity(result["consumedCapacity"]["cores"])
        assert all(used[name][0] <= gib << 30 and used[name][1] <= 100 for name, gib in sizes.items())
        for one in rng.sample(api.all("pods"), rng.randint(0, 2) if len(api.all("pods")) > 1 else 0):
            api.delete("pods", one["metadata"]["name"], "default")
        controller.run_once()
    assert given > 50


def test_an_allocation_of_somebody_else_needs_its_time_stamp(api):
    """With it the pod is bound and the capacity counted; without it binding fails, and does so for ever."""
    publish(api, 24)
    api.create("deviceclasses", class_document("never"))
    allocator = Allocator(api, {"never": lambda _: False})
    for name in ("stamped", "bare"):
        claim = claim_document(name, request_document(device_class="never", memory="9Gi"))
        api.create("resourceclaims", claim)
        claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = CLASS
        made = allocator.allocate(claim, NODE)
        if name == "bare":
            del made["allocationTimestamp"]
        api.change("resourceclaims", name, {"status": {"allocation": made}}, "default")
        pod(api, name, name)
    for _ in range(2):
        allocator.run_once()
    assert api.get("pods", "stamped", "default")["spec"]["nodeName"] == NODE
    assert "nodeName" not in api.get("pods", "bare", "default")["spec"]
    assert "field is immutable" in condition(api, "bare")
    assert allocated(api, request_document(memory="24Gi"), name="a", allocator=allocator) is None
    assert allocated(api, request_document(memory="6Gi"), name="b", allocator=allocator) == ["gpu-0"]


def test_a_claim_of_a_template_lives_as_long_as_its_pod(api):
    publish(api, 24)
    template = template_document("t", request_document(memory="8Gi"))
    template["spec"]["metadata"] = {"labels": {"team": "a"}}
    owner = pod(api, "train", template="t")
    controller, allocator = ClaimController(api), Allocator(api)
    controller.run_once()
    allocator.run_once()
    assert "nodeName" not in api.get("pods", "train", "default")["spec"], "there is no template yet"
    api.create("resourceclaimtemplates", template)
    controller.run_once()
    allocator.run_once()
    (claim,) = api.all("resourceclaims")
    name = claim["metadata"]["name"]
    assert name.startswith("train-vgpu-")
    assert len(name) == len("train-vgpu-") + 5
    assert claim["metadata"]["labels"] == {"team": "a"}
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "vgpu"}
    (reference,) = claim["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"]) == ("Pod", owner["metadata"]["uid"])
    status = api.get("pods", "train", "default")["status"]
    assert status["resourceClaimStatuses"] == [{"name": "vgpu", "resourceClaimName": name}]
    controller.run_once()
    assert len(api.all("resourceclaims")) == 1
    api.delete("pods", "train", "default")
    for _ in range(2):
        controller.run_once()
    assert not api.all("resourceclaims")


def test_a_claim_is_free_when_its_last_pod_has_ended(api):
    publish(api, 24)
    api.create("resourceclaims", claim_document("shared", request_document()))
    for name in ("p", "q"):
        pod(api, name, "shared")
    controller, allocator = ClaimController(api), Allocator(api)
    allocator.run_once()

    def users():
        status = api.get("resourceclaims", "shared", "default").get("status") or {}
        return [one["name"] for one in status.get("reservedFor") or []], bool(status.get("allocation"))

    assert users() == (["p", "q"], True)
    api.change("pods", "p", {"status": {"phase": "Succeeded"}}, "default")
    controller.run_once()
    assert users() == (["q"], True)
    api.delete("pods", "q", "default")
    controller.run_once()
    assert users() == ([], False)
    claim = api.get("resourceclaims", "shared", "default")
    assert not claim["metadata"]["finalizers"]


def test_a_claim_that_is_used_is_deleted_after_its_pods(api):
    publish(api, 24)
    allocated(api, request_document())
    api.delete("resourceclaims", "c", "default")
    controller = ClaimController(api)
    controller.run_once()
    assert api.get("resourceclaims", "c", "default")["metadata"]["deletionTimestamp"]
    api.delete("pods", "pod-c", "default")
    controller.run_once()
    assert not api.all("resourceclaims")


def test_both_work_by_themselves_when_something_changes(api):
    with ClaimPlane(api):
        api.create("resourceclaimtemplates", template_document("t", request_document(memory="8Gi")))
        pod(api, "train", template="t")
        wait_until(lambda: api.get("pods", "train", "default").get("status", {}).get("conditions"))
        assert "cannot allocate all claims" in condition(api, "train")
        publish(api, 24)
        wait_until(lambda: api.get("pods", "train", "default")["spec"].get("nodeName"))
        api.delete("pods", "train", "default")
        wait_until(lambda: not api.all("resourceclaims"))
