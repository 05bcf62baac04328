# SPDX-License-Identifier: Apache-2.0
"""Nodes, pods and classes for tests, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import ClusterUnits, PodDemand
from gigaslice.core.cluster.inventory import InventoryGpu, NodeInventory
from gigaslice.core.cluster.names import ASSIGNMENT, CLASS_PREFIX, GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.core.cluster.node_record import NodeFacts
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import (
    AnnotationRights,
    ContainerKind,
    Pod,
    PodContainer,
    Share,
    Topology,
)
from tests.fakes.gpus import make_gpu, pairs_topology

CHECKED = ClusterUnits(rights=AnnotationRights.CHECKED)
"""Of a cluster whose policy lets its pods write every annotation."""


def uuid(node: str, gpu: int) -> str:
    return f"GPU-{node}-{gpu}"


def inventory_gpu(node: str, index: int, slices: int = 16, **fields: Any) -> InventoryGpu:
    """One GPU, all of it free; fields of InventoryGpu, and of the Gpu in it."""
    reported = {
        key: fields.pop(key) for key in ("unhealthy", "free", "resource", "properties") if key in fields
    }
    own = {"model": "NVIDIA A", "uuid": uuid(node, index), "healthy": not reported.get("unhealthy"), **fields}
    return InventoryGpu(make_gpu(index, slices, **own), **{"free": slices, **reported})


def node_inventory(
    gpus: Iterable[InventoryGpu], topology: Topology | None = None, **fields: Any
) -> NodeInventory:
    """What a node has; its GPUs are equally far apart."""
    found = tuple(gpus)
    return NodeInventory(found, topology or Topology.flat(len(found)), **fields)


def facts(
    name: str, gpus: Sequence[InventoryGpu] | int = 2, topology: Topology | None = None, **fields: Any
) -> NodeFacts:
    """A node with GPUs of 16 slices, or the given ones; fields of NodeInventory and of NodeFacts."""
    found = (
        tuple(inventory_gpu(name, index) for index in range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    )
    inventory_fields = {
        key: fields.pop(key)
        for key in ("held", "whole_resource", "rights", "exclusive", "lent")
        if key in fields
    }
    inventory = NodeInventory(found, topology or pairs_topology(len(found)), **inventory_fields)
    return NodeFacts(name, inventory.encode(), **fields)


def container(
    name: str = "main",
    slices: int = 0,
    gpus: int = 0,
    classes: Mapping[str, int] | None = None,
    kind: ContainerKind = ContainerKind.APP,
) -> PodContainer:
    requests = {MEMORY_RESOURCE: slices, GPU_RESOURCE: gpus}
    requests |= {CLASS_PREFIX + name: count for name, count in (classes or {}).items()}
    return PodContainer(name, kind, {key: count for key, count in requests.items() if count})


def pod(uid: str, *containers: PodContainer, **fields: Any) -> Pod:
    """A pod; annotations are named without their prefix."""
    annotations = {
        key if "/" in key else f"gigaslice.io/{key}": text
        for key, text in fields.pop("annotations", {}).items()
    }
    return Pod("team", f"pod-{uid}", uid, annotations, containers, **fields)


def bound(uid: str, node: str, *shares: Sequence[int], **fields: Any) -> Pod:
    """A pod on a node with shares (GPU, slices[, cores])."""
    found = tuple(Share(uuid(node, share[0]), *share[1:]) for share in shares)
    annotations = {ASSIGNMENT: Assignment({"main": found}).encode(), **fields.pop("annotations", {})}
    return pod(
        uid,
        container(slices=sum(share.slices for share in found)),
        node=node,
        annotations=annotations,
        **fields,
    )


def demand(state: ClusterState, one: Pod) -> PodDemand:
    found = state.demand_of(one)
    assert isinstance(found, PodDemand), found
    return found


def chosen(state: ClusterState, one: Pod, node: str) -> dict[str, list[tuple[int, ...]]]:
    """The assignment of a pod on a node, as (GPU, slices) or (GPU, slices, cores)."""
    found = state.choose(demand(state, one), node)
    assert isinstance(found, Assignment), found
    return {
        name: [
            (int(share.gpu.rpartition("-")[2]), share.slices, *((share.cores,) if share.cores else ()))
            for share in shares
        ]
        for name, shares in found.containers.items()
    }
