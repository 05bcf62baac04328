# SPDX-License-Identifier: Apache-2.0
"""Documents of pods and nodes as an API server has them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from gigaslice.core.cluster.names import INVENTORY

NODE = "node-a"


def new_pod(
    name: str,
    *requests: Mapping[str, int],
    init: tuple[Mapping[str, int], ...] = (),
    sidecars: tuple[Mapping[str, int], ...] = (),
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod as a client sends it: containers c0, c1, …; init containers i0, …; sidecars s0, …, and what they ask for.

    SPEC are other fields of its spec, under their names in the API.
    """

    def containers(
        letter: str, requested: tuple[Mapping[str, int], ...], **more: object
    ) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{letter}{number}",
                "image": "x",
                "resources": {"limits": {key: str(count) for key, count in one.items()}},
                **more,
            }
            for number, one in enumerate(requested)
        ]

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name}
        if annotations is None
        else {"name": name, "annotations": dict(annotations)},
        "spec": {
            "initContainers": containers("i", init) + containers("s", sidecars, restartPolicy="Always"),
            "containers": containers("c", requests),
            **spec,
        },
    }


def pod_document(
    name: str,
    *requests: Mapping[str, int],
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    node: str = NODE,
    uid: str | None = None,
    controlled: bool = False,
    phase: str = "Pending",
    **more: Any,
) -> dict[str, Any]:
    """A pod as an API server has it, on a node unless that is empty; MORE is as for new_pod()."""
    if node:
        more["nodeName"] = node
    document = new_pod(name, *requests, annotations=annotations or {}, **more)
    document["metadata"] |= {
        "namespace": namespace,
        "uid": uid or str(uuid.uuid4()),
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
    }
    if controlled:
        document["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r", "controller": True}]
    document["status"] = {"phase": phase}
    return document


def node_document(
    name: str,
    inventory: str | None = None,
    *,
    ready: bool = True,
    schedulable: bool = True,
    allocatable: Mapping[str, str] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """A node as an API server has it, with the inventory that its agent published; METADATA are fields of that."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {} if inventory is None else {INVENTORY: inventory},
            **metadata,
        },
        "spec": {} if schedulable else {"unschedulable": True},
        "status": {
            "allocatable": dict(allocatable or {}),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def published(spec: Any, uid: str, node: str = NODE) -> dict[str, Any]:
    """The document of a pod of the kubelet stand-in (a PodSpec), on a node unless that is empty."""

    def container(one: Any) -> dict[str, Any]:
        resources: dict[str, Any] = {"limits": {name: str(count) for name, count in one.resources.items()}}
        if one.claims:
            uses = (use.partition("/") for use in one.claims)
            resources["claims"] = [
                {"name": name, "request": request} if request else {"name": name} for name, _, request in uses
            ]
        more = {"restartPolicy": "Always"} if one.sidecar else {}
        return {"name": one.name, "image": "x", "resources": resources, **more}

    document = pod_document(
        spec.name, namespace=spec.namespace, annotations=spec.annotations, node=node, uid=uid
    )
    document["spec"]["initContainers"] = [container(one) for one in spec.init_containers]
    document["spec"]["containers"] = [container(one) for one in spec.containers]
    if spec.claims:
        document["spec"]["resourceClaims"] = [
            {"name": one.name, "resourceClaimName": one.claim}
            if one.claim
            else {"name": one.name, "resourceClaimTemplateName": one.template}
            for one in spec.claims
        ]
    return document
