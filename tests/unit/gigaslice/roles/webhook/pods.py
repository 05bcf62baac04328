# SPDX-License-Identifier: Apache-2.0
"""Pods as the API server sends them, and a cluster to judge them by."""

from __future__ import annotations

from typing import Any

from gigaslice.core.classes.resource_class import parse_resource_class
from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.names import MEMORY_RESOURCE
from gigaslice.roles.webhook.facts import AdmissionFacts
from tests.fakes.clusters import inventory_gpu, node_inventory

Document = dict[str, Any]


def inventory(*models: tuple[str, int], resource: str = MEMORY_RESOURCE) -> NodeInventory:
    """A node with such GPUs: model and slices of each."""
    return node_inventory(
        inventory_gpu("n", index, slices, model=model, resource=resource)
        for index, (model, slices) in enumerate(models)
    )


def klass(name: str, model: str, **share: object) -> Document:
    spec: Document = {"selector": {"matchLabels": {"model": model}}}
    return {"metadata": {"name": name}, "spec": {**spec, **({"share": share} if share else {})}}


def facts(**changes: Any) -> AdmissionFacts:
    """Two nodes: four H100 of 80 slices; an A100 and a T4. The class h100.small is 8 GiB of an H100."""
    classes = [
        klass("nvidia.h100", "H100"),
        klass("nvidia.t4", "T4"),
        klass("nvidia.b200", "B200"),
        klass("h100.small", "H100", memory="8GiB"),
        klass("h100.odd", "H100", memory="1.5GiB"),
    ]
    given: Document = {
        "classes": {one["metadata"]["name"]: parse_resource_class(one) for one in classes},
        "nodes": {"a": inventory(*[("H100", 80)] * 4), "b": inventory(("A100", 40), ("T4", 15))},
    }
    return AdmissionFacts(**{**given, **changes})


def pod(*containers: Document, init: tuple[Document, ...] = (), **spec: Any) -> Document:
    """A pod as it is when admission sees it: with the API server's defaults, without name and UID."""
    annotations = spec.pop("annotations", None)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "p-", **({"annotations": annotations} if annotations else {})},
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [
                {"name": f"c{number}", **one} if "name" not in one else one
                for number, one in enumerate(containers)
            ],
            **(
                {"initContainers": [{"name": f"i{number}", **one} for number, one in enumerate(init)]}
                if init
                else {}
            ),
            **spec,
        },
    }


def asks(**more: Any) -> Document:
    """A container with such limits, as `{"gigaslice.io/gpu": 1}` under `limits`, and the requests that follow."""
    limits = {name: str(count) for name, count in more.pop("limits", {}).items()}
    return {"resources": {"limits": limits, "requests": dict(limits)}, **more}


def h100(count: object = 1) -> Document:
    return asks(limits={"gpuclass.gigaslice.io/nvidia.h100": count})
