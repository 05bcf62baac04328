# SPDX-License-Identifier: Apache-2.0
"""What bounds the tokens of a node's agent and dataset service to their node, evaluated as the API server does it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.manifests.cel import Policy, Request
from tests.unit.manifests.test_chart import ROOT, documents_of, listed

Document = dict[str, Any]
OWN, OTHER = "gpu-1", "gpu-2"
AGENT = "system:serviceaccount:gigaslice:gigaslice"
DATASET = "system:serviceaccount:gigaslice:gigaslice-dataset"
INSTALLATIONS = {
    "chart": listed("--set", "node.api=dra,dataset.enabled=true", "--kube-version", "1.36.0"),
    "manifests": [
        document
        for name in ("node-policy", "claims", "dataset")
        for document in documents_of((ROOT / "deploy" / f"{name}.yaml").read_text())
    ],
}


class Bound:
    """A policy of each way to install, asked by the account that it is about."""

    def __init__(self, name: str) -> None:
        self._policies = []
        for documents in INSTALLATIONS.values():
            (policy,) = [
                document
                for document in documents
                if (document["kind"], document["metadata"]["name"]) == ("ValidatingAdmissionPolicy", name)
            ]
            (binding,) = [
                document
                for document in documents
                if document["kind"] == "ValidatingAdmissionPolicyBinding"
                and document["spec"]["policyName"] == name
            ]
            assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == (
                "Fail",
                ["Deny"],
            )
            self._policies.append(Policy(policy))

    def refusals(self, request: Request) -> list[str]:
        found = [policy.refusals(request) for policy in self._policies]
        assert found[0] == found[1], "chart and manifests"
        return found[0]


NODE, SLICES, WAKE, DATASETNODE = (
    Bound(f"gigaslice{end}") for end in ("-node", "-slices", "-wake", "-dataset")
)


def changed(document: Document, path: str, value: Any) -> Document:
    """A copy with another VALUE at the PATH of keys, which are separated by '>'; None takes the key away."""
    document = copy.deepcopy(document)
    *parents, last = path.split(">")
    place = document
    for key in parents:
        place = place.setdefault(key, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


def update(
    old: Document, path: str = "metadata>annotations>gigaslice.io/x", value: Any = "1", **more: Any
) -> Request:
    return Request("UPDATE", changed(old, path, value), old, **{"user": AGENT, "node_name": OWN, **more})


# --- Nodes ------------------------------------------------------------------------------------------------------------


def node(name: str = OWN) -> Document:
    return {
        "metadata": {
            "name": name,
            "annotations": {"gigaslice.io/inventory": "{}", "other.io/a": "b"},
            "labels": {"gigaslice.io/gpus": "2", "zone": "a"},
            "finalizers": ["f"],
            "ownerReferences": [{"kind": "Machine", "name": "m", "uid": "1"}],
        },
        "spec": {"unschedulable": True},
    }


@pytest.mark.parametrize("kind", ["annotations", "labels"])
@pytest.mark.parametrize("key, value", [
    ("gigaslice.io/new", "1"), ("gigaslice.io/inventory", "[]"), ("gigaslice.io/gpus", "3"),
])  # fmt: skip
def test_an_agent_writes_our_keys_of_its_own_node_and_of_no_other(kind, key, value):
    path = f"metadata>{kind}>{key}"
    assert NODE.refusals(update(node(), path, value, resource="nodes")) == []
    for token in (OTHER, ""):
        assert NODE.refusals(update(node(), path, value, resource="nodes", node_name=token)) == [
            "a node agent of gigaslice changes its own Node only, which its token names"
        ]


def test_an_agent_takes_our_keys_away():
    for path in ("metadata>annotations>gigaslice.io/inventory", "metadata>labels>gigaslice.io/gpus"):
        assert NODE.refusals(update(node(), path, None, resource="nodes")) == []


@pytest.mark.parametrize("path, value", [
    ("metadata>annotations>other.io/a", "c"), ("metadata>annotations>other.io/a", None),
    ("metadata>annotations>other.io/new", "1"), ("metadata>annotations>gigaslice.io", "1"),
    ("metadata>annotations>x-gigaslice.io/a", "1"),
    ("metadata>labels>zone", "b"), ("metadata>labels>zone", None),
    ("metadata>labels>node-role.kubernetes.io/control-plane", ""),
])  # fmt: skip
def test_an_agent_changes_no_other_key_of_its_node(path, value):
    assert NODE.refusals(update(node(), path, value, resource="nodes")) == [
        "a node agent of gigaslice changes annotations and labels under gigaslice.io/ only"
    ]


@pytest.mark.parametrize("path, value", [
    ("spec", None), ("spec>unschedulable", False), ("spec>taints", [{"key": "a"}]),
    ("metadata>finalizers", None), ("metadata>finalizers", ["g"]),
    ("metadata>ownerReferences", None), ("metadata>ownerReferences", []),
])  # fmt: skip
def test_an_agent_changes_nothing_of_its_node_but_keys(path, value):
    assert NODE.refusals(update(node(), path, value, resource="nodes")) == [
        "a node agent of gigaslice changes annotations and labels of its Node, and nothing else"
    ]


@pytest.mark.parametrize("part", ["status", "proxy"])
def test_an_agent_writes_no_part_of_its_node(part):
    assert NODE.refusals(update(node(), resource="nodes", subresource=part)) != []


def test_an_agent_makes_and_removes_no_node():
    """The missing object has metadata here: `Policy` evaluates variables that the API server does not come to."""
    nothing: Document = {"metadata": {}}
    made = Request("CREATE", node(), nothing, user=AGENT, node_name=OWN, resource="nodes")
    for request in (made, replace(made, operation="DELETE", new=nothing, old=node())):
        assert NODE.refusals(request) == [
            "a node agent of gigaslice changes annotations of its Node, and nothing else"
        ]


# --- ResourceSlices ---------------------------------------------------------------------------------------------------


def resource_slice(node_name: str = OWN) -> Document:
    return {
        "metadata": {"name": f"{node_name}-gigaslice"},
        "spec": {
            "driver": "gigaslice.io",
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1},
        },
    }


def slice_requests(document: Document, token: str) -> dict[str, Request]:
    asks = {"user": AGENT, "node_name": token, "resource": "resourceslices"}
    return {
        "made": Request("CREATE", document, None, **asks),
        "changed from": Request("UPDATE", resource_slice(token or OWN), document, **asks),
        "changed to": Request("UPDATE", document, resource_slice(token or OWN), **asks),
        "removed": Request("DELETE", None, document, **asks),
    }


@pytest.mark.parametrize("how", ["made", "changed from", "changed to", "removed"])
def test_an_agent_writes_slices_of_its_own_node_and_of_no_other(how):
    assert SLICES.refusals(slice_requests(resource_slice(), OWN)[how]) == []
    for document, token in (
        (resource_slice(OTHER), OWN),
        (resource_slice(), ""),
        (changed(resource_slice(), "spec>driver", "gpu.nvidia.com"), OWN),
        (changed(resource_slice(), "spec>nodeName", None), OWN),
        (changed(resource_slice(), "spec>nodeName", OTHER), OWN),
        (changed(resource_slice(), "spec>pool>name", OTHER), OWN),
    ):
        assert len(SLICES.refusals(slice_requests(document, token)[how])) == 1, document


# --- pods -------------------------------------------------------------------------------------------------------------


def pod(node_name: str = OWN) -> Document:
    return {
        "metadata": {
            "name": "p",
            "annotations": {"gigaslice.io/assignment": "{}", "gigaslice.io/wake": "1"},
            "labels": {"app": "a"},
            "finalizers": ["f"],
            "ownerReferences": [{"kind": "Job", "name": "j", "uid": "1"}],
        },
        "spec": {"containers": [{"name": "c"}], **({"nodeName": node_name} if node_name else {})},
    }


WAKE_PATH = "metadata>annotations>gigaslice.io/wake"


def test_an_agent_wakes_pods_of_its_own_node_and_of_no_other():
    for value in ("2", None):
        assert WAKE.refusals(update(pod(), WAKE_PATH, value)) == []
    for document, token in ((pod(OTHER), OWN), (pod(), OTHER), (pod(), ""), (pod(""), OWN)):
        assert WAKE.refusals(update(document, WAKE_PATH, "2", node_name=token)) == [
            "a node agent of gigaslice changes pods of its own node only, which its token names"
        ]
    for part in ("status", "resize", "ephemeralcontainers"):
        assert WAKE.refusals(update(pod(), WAKE_PATH, "2", subresource=part)) != []
    assert WAKE.refusals(Request("CREATE", pod(), None, user=AGENT, node_name=OWN)) != []


@pytest.mark.parametrize("path, value", [
    ("metadata>annotations>gigaslice.io/assignment", "[]"), ("metadata>annotations>gigaslice.io/assignment", None),
    ("metadata>annotations>gigaslice.io/share", "2"), ("spec>containers", []), ("spec>nodeName", OTHER),
    ("metadata>labels>app", "b"), ("metadata>labels", None),
    ("metadata>finalizers", None), ("metadata>ownerReferences", None),
])  # fmt: skip
def test_an_agent_changes_nothing_of_a_pod_but_what_wakes_it(path, value):
    assert WAKE.refusals(update(pod(), path, value)) == [
        "a node agent of gigaslice changes the annotation gigaslice.io/wake of a pod, and nothing else"
    ]


# --- DatasetNodes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_dataset_service_writes_the_object_of_its_own_node_and_of_no_other(operation):
    document: Document = {"metadata": {"name": OWN}}
    request = Request(operation, document, document, user=DATASET, node_name=OWN, resource="datasetnodes")
    assert DATASETNODE.refusals(request) == []
    for token in (OTHER, ""):
        assert DATASETNODE.refusals(replace(request, node_name=token)) == [
            "a dataset service of gigaslice writes the DatasetNode of its own node only, which its token names"
        ]


# --- whom they are about ----------------------------------------------------------------------------------------------


def test_the_policies_are_about_the_two_accounts_alone():
    """Everybody else is bounded by RBAC, and a person may repair a Node by hand."""
    for user in ("admin", DATASET, f"{AGENT}-scheduler"):
        assert NODE.refusals(update(node(), "spec>unschedulable", False, resource="nodes", user=user)) == []
        assert WAKE.refusals(update(pod(OTHER), "metadata>labels>app", "b", user=user)) == []
        for request in slice_requests(resource_slice(OTHER), OWN).values():
            assert SLICES.refusals(replace(request, user=user)) == []
    foreign = Request("CREATE", {"metadata": {"name": OTHER}}, None, user=AGENT, resource="datasetnodes")
    assert DATASETNODE.refusals(foreign) == []
