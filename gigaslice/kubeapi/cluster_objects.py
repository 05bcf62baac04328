# SPDX-License-Identifier: Apache-2.0
"""The objects that make up `ClusterState`, cut down to what it takes: for the `parse` of informers.

A node is some twenty kilobytes and a pod ten, of which a few hundred bytes matter. Texts that many objects share, such
as names of nodes and resources, are kept once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gigaslice.core.cluster.demand import ClusterUnits, asks_for_gpus
from gigaslice.core.cluster.names import GROUP, INVENTORY, RESOURCE_CLASSES, VERSION
from gigaslice.core.cluster.node_record import NodeFacts
from gigaslice.core.kube.decode import parse_pod, unread_pod
from gigaslice.core.kube.fields import object_at, objects_at, text_at
from gigaslice.core.model import DATASET_DRIVER, Pod, PodContainer
from gigaslice.core.text import plain

__all__ = [
    "CLASSES_PATH",
    "NODES_PATH",
    "PODS_PATH",
    "PODS_QUERY",
    "gpu_pod",
    "node_facts",
    "unread_gpu_pod",
]

NODES_PATH = "/api/v1/nodes"
PODS_PATH = "/api/v1/pods"
PODS_QUERY = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
CLASSES_PATH = f"/apis/{GROUP}/{VERSION}/{RESOURCE_CLASSES}"

_OURS = f"{GROUP}/"
_UNITS = ClusterUnits()
_LONGEST = 512  # characters of what an unreadable pod without a UID goes by


def node_facts(document: Mapping[str, Any]) -> NodeFacts:
    """Returns what matters of a Node. Raises ValueError for what is none."""
    metadata = object_at(document, "metadata")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("a node has no name")
    inventory = object_at(metadata, "annotations").get(INVENTORY)
    conditions = objects_at(object_at(document, "status"), "conditions")
    return NodeFacts(
        name=sys.intern(name),
        inventory_text=inventory if isinstance(inventory, str) else None,
        schedulable=not object_at(document, "spec").get("unschedulable"),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions
        ),
        labels={
            sys.intern(key): sys.intern(value)
            for key, value in object_at(metadata, "labels").items()
            if isinstance(value, str)
        },
    )


def gpu_pod(document: Mapping[str, Any], units: ClusterUnits = _UNITS) -> Pod | None:
    """Returns the pod, without what others have written to it; None for one that has nothing to do with GPUs."""
    pod = parse_pod(document)
    if pod.terminal or not asks_for_gpus(pod, units):
        return None
    return replace(
        pod,
        namespace=sys.intern(pod.namespace),
        node=sys.intern(pod.node),
        nominated=sys.intern(pod.nominated),
        scheduler=sys.intern(pod.scheduler),
        phase=sys.intern(pod.phase),
        annotations={
            sys.intern(key): value for key, value in pod.annotations.items() if key.startswith(_OURS)
        },
        containers=tuple(_container(container) for container in pod.containers),
        volumes=pod.volumes_of(DATASET_DRIVER),
    )


def unread_gpu_pod(document: Mapping[str, Any], last: Pod | None = None) -> Pod | None:
    """Returns what stands for a pod that cannot be read: where it is bound, its last value, or that it is there.

    One that is bound may hold GPUs, which nobody else may get for a mistake in it. One that only asks is left out.
    """
    if last is not None and last.node:
        return last
    metadata, node = object_at(document, "metadata"), text_at(object_at(document, "spec"), "nodeName")
    who = plain(f"{text_at(metadata, 'namespace')}/{text_at(metadata, 'name')}")[:_LONGEST]
    pod = unread_pod(document) or Pod("", "", who, node=node, readable=False)
    return pod if pod.node and not pod.terminal else None


def _container(container: PodContainer) -> PodContainer:
    return PodContainer(
        sys.intern(container.name),
        container.kind,
        {sys.intern(name): count for name, count in container.requests.items()},
    )
