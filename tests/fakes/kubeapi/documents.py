"""Documents of pods as an API server has them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

NODE = "node-a"


def pod_document(
    name: str,
    *requests: Mapping[str, int],
    namespace: str = "default",
    init: tuple[Mapping[str, int], ...] = (),
    sidecars: tuple[Mapping[str, int], ...] = (),
    annotations: Mapping[str, str] | None = None,
    node: str = NODE,
    uid: str | None = None,
    controlled: bool = False,
) -> dict[str, Any]:
    """A pod of containers c0, c1, …; init containers i0, …; sidecars s0, …, each with what it asks for."""

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

    metadata: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "uid": uid or str(uuid.uuid4()),
        "annotations": dict(annotations or {}),
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
    }
    if controlled:
        metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r", "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "nodeName": node,
            "initContainers": containers("i", init) + containers("s", sidecars, restartPolicy="Always"),
            "containers": containers("c", requests),
        },
        "status": {"phase": "Pending"},
    }


def published(spec: Any, uid: str, node: str = NODE) -> dict[str, Any]:
    """The document of a pod of the kubelet stand-in (a PodSpec)."""

    def container(one: Any) -> dict[str, Any]:
        limits = {name: str(count) for name, count in one.resources.items()}
        more = {"restartPolicy": "Always"} if one.sidecar else {}
        return {"name": one.name, "image": "x", "resources": {"limits": limits}, **more}

    document = pod_document(
        spec.name, namespace=spec.namespace, annotations=spec.annotations, node=node, uid=uid
    )
    document["spec"]["initContainers"] = [container(one) for one in spec.init_containers]
    document["spec"]["containers"] = [container(one) for one in spec.containers]
    return document
