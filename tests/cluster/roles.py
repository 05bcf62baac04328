# SPDX-License-Identifier: Apache-2.0
"""The chart on a control plane without kubelets: its rights and definitions, and tokens of its accounts.

What tests start works with a token of the role's own account, and so with exactly the rights that the chart gives it.
Deployments are created too, and nothing runs them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.control_plane import ControlPlane, Refused, until
from tests.unit.manifests.test_chart import listed

NAMESPACE = "gigaslice"
SCHEDULER, CONTROLLER, AGENT = "gigaslice-scheduler", "gigaslice-controller", "gigaslice"
DATASET = "gigaslice-dataset"
Document = dict[str, Any]


def chart(*values: str, version: str = "1.36.0") -> list[Document]:
    """The chart's documents with these values, for a cluster of that version."""
    chosen = ",".join(("cluster.enabled=true", *values))
    return listed("--set", chosen, "--kube-version", version, "--namespace", NAMESPACE)


def install(plane: ControlPlane, *values: str, without: tuple[str, ...] = ()) -> list[Document]:
    """Applies the chart with these values, WITHOUT some kinds; returns its documents."""
    documents = chart(*values)
    apply(plane, documents, without=without)
    return documents


def apply(plane: ControlPlane, documents: list[Document], *, without: tuple[str, ...] = ()) -> None:
    """Applies the chart's documents, WITHOUT some kinds; returns when its definitions are served."""
    with contextlib.suppress(Refused):  # it is there
        plane.admin.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    first = ("CustomResourceDefinition", "ServiceAccount")
    for document in sorted(documents, key=lambda one: one["kind"] not in first):
        if document["kind"] not in without:
            plane.admin.apply(document)

    def served() -> bool:
        try:
            return "items" in plane.admin.get("/apis/gigaslice.io/v1alpha1/resourceclasses")
        except Refused:
            return False

    until(served, 60)


def kubeconfig(plane: ControlPlane, account: str, node: str = "", port: int = 0) -> Path:
    """A kubeconfig with a token of an account of the chart, bound to a NODE as the kubelet binds those of its pods.

    port: of a proxy.
    """
    spec: Document = {"expirationSeconds": 36000}
    if node:
        found = plane.admin.get(f"/api/v1/nodes/{node}")
        spec["boundObjectRef"] = {
            "kind": "Node", "apiVersion": "v1", "name": node, "uid": found["metadata"]["uid"],
        }  # fmt: skip
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    token = plane.admin.post(
        path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    )
    name = f"{account}.{node}" if node else account
    return plane.kubeconfig(name, token["status"]["token"], port)


def scheduler_configuration(
    documents: list[Document], plane: ControlPlane, port: int, *, lease: str = ""
) -> str:
    """The chart's configuration of kube-scheduler, for a service at PORT; without a lease it is the only one."""
    (text,) = (one["data"]["scheduler.yaml"] for one in documents if one["kind"] == "ConfigMap")
    found: Document = yaml.safe_load(text)
    found["clientConnection"] = {"kubeconfig": str(kubeconfig(plane, SCHEDULER))}
    found["leaderElection"]["leaderElect"] = bool(lease)
    found["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{port}/scheduler"
    return yaml.safe_dump(found)
