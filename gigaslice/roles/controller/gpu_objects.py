# SPDX-License-Identifier: Apache-2.0
"""The ExtendedResource objects of a node, one per GPU, from its inventory and from what pods hold. Pure.

An object is deleted when its GPU goes. While pods still hold the GPU it stays, with the phase Lost, and so it does
while the node does not report: who searches for the pods of a broken GPU finds them here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gigaslice.core.cluster.inventory import InventoryGpu, NodeInventory
from gigaslice.core.cluster.names import GROUP, VERSION
from gigaslice.roles.controller.object_plan import DesiredObject, ObjectWrite, StoredObject, plan_object

__all__ = ["API_VERSION", "KIND", "GpuPhase", "PodOnGpu", "ReportingNode", "gpu_object_name", "plan_node"]

API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ExtendedResource"
_LONGEST_NAME = 253
_MIB = 1 << 20
_MOST_HOLDERS = 1024
_MOST_TEXT = 1024
_UNREADABLE = "the node's inventory cannot be read"
_NOT_READY = "the node is not ready"
_GONE = "the node has no such GPU any more"


class GpuPhase(Enum):
    """What a GPU is doing. The texts are those of the API."""

    AVAILABLE = "Available"
    PENDING = "Pending"
    BOUND = "Bound"
    UNHEALTHY = "Unhealthy"
    LOST = "Lost"


@dataclass(frozen=True, slots=True)
class PodOnGpu:
    """A pod's part of a GPU. running: its containers have started. holding: what it shares with other pods, if any."""

    uid: str
    namespace: str
    name: str
    slices: int
    cores: int = 0
    running: bool = False
    holding: str = ""


@dataclass(frozen=True, slots=True)
class ReportingNode:
    """A node as its GPUs' objects need it.

    Attributes:
        name: Its name.
        uid: Its UID, by which the API server deletes the objects with the node.
        inventory: What it has; None where it publishes nothing.
        readable: Whether what it publishes could be read.
        ready: Whether its kubelet reports.
        holders: Pods by the UUID of the GPU that they hold.
    """

    name: str
    uid: str
    inventory: NodeInventory | None = None
    readable: bool = True
    ready: bool = True
    holders: Mapping[str, Sequence[PodOnGpu]] = field(default_factory=dict)


def gpu_object_name(node: str, gpu: str) -> str:
    """Returns the name of the object of a GPU: the node's name and the UUID, cut where that is too long."""
    name = f"{node}-{gpu}".lower()
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: _LONGEST_NAME - 17].rstrip('.-')}-{digest}"


def plan_node(node: ReportingNode | None, present: Mapping[str, StoredObject]) -> tuple[ObjectWrite, ...]:
    """Returns the writes for the objects of one node.

    Args:
        node: The node; None where there is none any more.
        present: Its objects by name.
    """
    desired = {} if node is None else _desired(node, present)
    return tuple(
        write
        for name in sorted({*desired, *present})
        for write in plan_object(API_VERSION, KIND, name, desired.get(name), present.get(name))
    )


def _desired(node: ReportingNode, present: Mapping[str, StoredObject]) -> dict[str, DesiredObject]:
    gpus = node.inventory.gpus if node.inventory is not None and node.readable else ()
    desired = {gpu_object_name(node.name, gpu.gpu.uuid): _of_gpu(node, gpu) for gpu in gpus}
    reason = _GONE if node.readable else _UNREADABLE
    for name, stored_object in present.items():
        uuid = stored_object.spec.get("deviceID")
        if name not in desired and isinstance(uuid, str) and (not node.readable or node.holders.get(uuid)):
            desired[name] = _lost(node, uuid, stored_object, reason)
    return desired


def _of_gpu(node: ReportingNode, gpu: InventoryGpu) -> DesiredObject:
    holders = node.holders.get(gpu.gpu.uuid, ())
    phase, reason = GpuPhase.AVAILABLE, ""
    if not node.ready:
        phase, reason = GpuPhase.LOST, _NOT_READY
    elif gpu.unhealthy:
        phase, reason = GpuPhase.UNHEALTHY, gpu.unhealthy
    elif holders:
        phase = GpuPhase.BOUND if any(holder.running for holder in holders) else GpuPhase.PENDING
    spec = {
        "nodeName": node.name,
        "deviceID": gpu.gpu.uuid,
        "rawResourceName": gpu.resource,
        "properties": {key: value[:_MOST_TEXT] for key, value in gpu.all_properties(node.name).items()},
    }
    return DesiredObject(_owner(node), spec, _status(phase, reason, holders, gpu.gpu.slice_bytes))


def _lost(node: ReportingNode, gpu: str, present: StoredObject, reason: str) -> DesiredObject:
    """The object of a GPU that the node does not report: as it was, without saying how much memory is used."""
    return DesiredObject(
        _owner(node), present.spec, _status(GpuPhase.LOST, reason, node.holders.get(gpu, ()), 0)
    )


def _status(phase: GpuPhase, reason: str, holders: Sequence[PodOnGpu], slice_bytes: int) -> dict[str, Any]:
    slices = sum({holder.holding or holder.uid: holder.slices for holder in holders}.values())
    used: dict[str, Any] = {"slices": slices}
    if slice_bytes:
        used["memory"] = f"{slices * slice_bytes // _MIB}MiB"
    status: dict[str, Any] = {"phase": phase.value, "used": used}
    if reason:
        status["reason"] = reason[:_MOST_TEXT]
    if holders:
        ordered = sorted(holders, key=lambda holder: (holder.namespace, holder.name, holder.uid))
        status["podRefs"] = [_pod_ref(holder) for holder in ordered[:_MOST_HOLDERS]]
    return status


def _pod_ref(holder: PodOnGpu) -> dict[str, Any]:
    reference: dict[str, Any] = {"uid": holder.uid, "slices": holder.slices}
    optional = {"namespace": holder.namespace, "name": holder.name, "cores": holder.cores}
    return {**reference, **{key: value for key, value in optional.items() if value}}


def _owner(node: ReportingNode) -> tuple[dict[str, str], ...]:
    """The node as owner: a cluster-scoped object may have a cluster-scoped one."""
    return ({"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},)
