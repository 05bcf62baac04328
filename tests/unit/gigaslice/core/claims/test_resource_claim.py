# SPDX-License-Identifier: Apache-2.0
"""What a ResourceClaim says, and that nothing at all makes reading it fail otherwise than with a sentence."""

from typing import Any

import pytest
from hypothesis import given

from gigaslice.core.claims.names import device_name
from gigaslice.core.claims.resource_claim import ClaimConfig, ClaimResult, PodReference, ResourceClaim
from tests.unit.gigaslice.core.claims.documents import (
    DEVICE,
    JSON,
    SHARE,
    UID,
    broken_claims,
    claim,
    config,
    result,
)

GIB = 1 << 30


def test_what_a_claim_says():
    document = claim(
        result(),
        result("b/small", shareID=None, consumedCapacity=None, adminAccess=True),
        result("c", driver="nic.example.com"),
        configs=(config("gpu", elastic=True), config(source="FromClass"), config(driver="nic.example.com")),
        requests=("c", "b", "gpu"),
    )
    parameters = {"apiVersion": "config.gigaslice.io/v1alpha1", "kind": "VGPU"}
    read = ResourceClaim.parse(document)
    assert read == ResourceClaim(
        namespace="team-a",
        name="train-vgpu-x7f2k",
        uid=UID,
        ending=False,
        results=(
            ClaimResult("gpu", "node-a", DEVICE, SHARE, 8 * GIB, 30),
            ClaimResult("b/small", "node-a", DEVICE, admin_access=True),
        ),
        other_drivers=True,
        configs=(
            ClaimConfig(("gpu",), {**parameters, "elastic": True}, from_class=False),
            ClaimConfig((), parameters, from_class=True),
        ),
        reserved_for=(PodReference("train", "e1b0c6a8-1f0e-4a51-9d0c-6d1f3a0f4b5e"),),
        spec_requests=("c", "b", "gpu"),
        allocated=True,
    )
    assert read.requests == ("b", "gpu"), "those with devices of ours, in the order of the claim"
    assert str(read) == "team-a/train-vgpu-x7f2k"


def test_a_claim_that_is_not_allocated_has_nothing():
    document = claim()
    document["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    del document["status"]
    read = ResourceClaim.parse(document)
    assert (read.results, read.reserved_for, read.allocated, read.ending) == ((), (), False, True)


def test_which_requests_ask_for_an_amount():
    document = claim(requests=("whole", "part", "either"))
    whole, part, either = document["spec"]["devices"]["requests"]
    whole["exactly"]["capacity"] = {"requests": {"nic.example.com/memory": "1Gi"}}
    part["exactly"]["capacity"] = {"requests": {"memory": "8Gi"}}
    del either["exactly"]
    either["firstAvailable"] = [
        {"name": "some", "capacity": {"requests": {"gigaslice.io/cores": "50"}}},
        {"name": "all"},
    ]
    assert ResourceClaim.parse(document).asking_capacity == {"part", "either/some"}


@pytest.mark.parametrize(
    ("consumed", "memory", "cores"),
    [
        ({"memory": "8500Mi"}, 8500 << 20, None),
        ({"memory": 8589934592, "cores": 0}, 8 * GIB, 0),
        ({"gigaslice.io/memory": "8Gi", "gigaslice.io/cores": "100"}, 8 * GIB, 100),
        ({"memory": "8Gi", "gigaslice.io/memory": "8192Mi"}, 8 * GIB, None),
        ({"tensors": "x", "example.com/memory": []}, None, None),
    ],
)
def test_amounts(consumed: dict[str, Any], memory: int | None, cores: int | None):
    read = ResourceClaim.parse(claim(result(consumedCapacity=consumed))).results[0]
    assert (read.memory_bytes, read.cores) == (memory, cores)


def test_only_pods_are_consumers():
    document = claim()
    document["status"]["reservedFor"] += [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "x", "uid": "1"},
        {"apiGroup": "example.com", "resource": "pods", "name": "x", "uid": "1"},
    ]
    assert [pod.name for pod in ResourceClaim.parse(document).reserved_for] == ["train"]


def test_parameters_are_for_a_request_and_its_alternatives():
    small = ClaimResult("b/small", "node-a", DEVICE)
    fits = [
        ClaimConfig(requests).is_for(small) for requests in ((), ("b",), ("b/small",), ("b/big",), ("a", "b"))
    ]
    assert fits == [True, True, True, False, True]


def changed(*path: Any, value: Any) -> dict[str, Any]:
    document = claim(configs=(config("gpu"),))
    node: Any = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return document


RESULT = ("status", "allocation", "devices", "results", 0)
CONFIG = ("status", "allocation", "devices", "config", 0)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("metadata", "uid"), "../../etc", "metadata.uid: '../../etc' is no name"),
        (("metadata", "uid"), "..", "metadata.uid: '..' is no name"),
        (("metadata", "uid"), 5, "metadata.uid: must be a text"),
        (("metadata", "namespace"), "a/b", "metadata.namespace: 'a/b' is no name"),
        (("metadata", "name"), "", "metadata.name: '' is no name"),
        (("spec",), [], "spec: must be an object"),
        (("spec", "devices", "requests", 0, "name"), "a/b", "spec.devices.requests[0].name: 'a/b' is no name"),
        (("status", "reservedFor", 0, "uid"), "", "status.reservedFor[0].uid: '' is no name"),
        (("status", "reservedFor"), {}, "status.reservedFor: must be a list"),
        (("status", "reservedFor", 0), "x", "status.reservedFor[0]: must be an object"),
        ((*RESULT, "device"), "gpu/0", "status.allocation.devices.results[0].device: 'gpu/0' is no name"),
        ((*RESULT, "pool"), "node-a/", "status.allocation.devices.results[0].pool: 'node-a/' is no name of a pool"),
        ((*RESULT, "request"), "a/b/c",
         "status.allocation.devices.results[0].request: 'a/b/c' is no name of a request"),
        ((*RESULT, "driver"), None, "status.allocation.devices.results[0].driver: must be a text"),
        ((*RESULT, "adminAccess"), "yes", "status.allocation.devices.results[0].adminAccess: must be true or false"),
        ((*RESULT, "consumedCapacity", "memory"), "lots",
         "status.allocation.devices.results[0].consumedCapacity.memory: 'lots' is no amount"),
        ((*RESULT, "consumedCapacity", "memory"), "-1Gi",
         "status.allocation.devices.results[0].consumedCapacity.memory: '-1Gi' is no amount"),
        ((*RESULT, "consumedCapacity", "memory"), [[]],
         "status.allocation.devices.results[0].consumedCapacity.memory: must be an amount"),
        ((*RESULT, "consumedCapacity", "gigaslice.io/memory"), "9Gi",
         "status.allocation.devices.results[0].consumedCapacity: memory is said twice and differently"),
        ((*RESULT, "consumedCapacity", "cores"), "101",
         "status.allocation.devices.results[0].consumedCapacity.cores: 101 is more than 100 per cent"),
        ((*CONFIG, "source"), "FromNobody",
         "status.allocation.devices.config[0].source: must be one of FromClass, FromClaim"),
        ((*CONFIG, "requests"), "gpu", "status.allocation.devices.config[0].requests: must be a list"),
        ((*CONFIG, "opaque", "parameters"), "x",
         "status.allocation.devices.config[0].opaque.parameters: must be an object"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(path: tuple[Any, ...], value: Any, sentence: str):
    with pytest.raises(ValueError) as raised:
        ResourceClaim.parse(changed(*path, value=value))
    assert str(raised.value) == sentence


@given(JSON | broken_claims())
def test_nothing_makes_reading_fail_otherwise(document: Any):
    try:
        read = ResourceClaim.parse(document)
    except ValueError as error:
        assert type(error) is ValueError, "and not of a decoder or of a table"
        assert "\n" not in str(error) and str(error).isprintable()
    else:
        assert all("/" not in text for text in (read.uid, read.namespace, read.name))
        assert {result.main for result in read.results} == set(read.requests)


def test_a_deep_document_is_no_trouble():
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    for path in ((*RESULT, "consumedCapacity", "memory"), (*RESULT, "device"), ("status", "reservedFor", 0)):
        with pytest.raises(ValueError):
            ResourceClaim.parse(changed(*path, value=deep))


@pytest.mark.parametrize(
    ("uuid", "name"),
    [
        ("GPU-58A9C2ED-a697-4a1c-9aa1-906b87e19b3f", "gpu-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f"),
        ("MIG-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f", "gpu-mig-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f"),
        (
            "MIG-GPU-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f/1/0",
            "gpu-mig-gpu-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f-1-0",
        ),
    ],
)
def test_names_of_devices(uuid: str, name: str):
    assert device_name(uuid) == name
