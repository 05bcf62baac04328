# SPDX-License-Identifier: Apache-2.0
"""Documents of resource.k8s.io/v1 in few words: slices with their devices, classes, claims and templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DRIVER = "gigaslice.io"
CLASS = "vgpu.gigaslice.io"
_VERSION = "resource.k8s.io/v1"


def device_document(name: str = "gpu-0", gib: int = 24, **fields: Any) -> dict[str, Any]:
    """A device of so much memory and 100 parts of compute that claims share; FIELDS replace its fields."""
    memory: dict[str, Any] = {"default": f"{gib}Gi", "validRange": {"min": "1Gi", "max": f"{gib}Gi"}}
    if gib > 1:  # a step that leads beyond the value is refused
        memory["validRange"]["step"] = "1Gi"
    cores = {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {
            "uuid": {"string": f"GPU-{name}"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:17"},
        },
        "capacity": {
            "memory": {"value": f"{gib}Gi", "requestPolicy": memory},
            "cores": {"value": "100", "requestPolicy": cores},
        },
        **fields,
    }


def slice_document(
    *devices: dict[str, Any],
    node: str = "node-a",
    name: str = "",
    driver: str = DRIVER,
    generation: int = 1,
    count: int = 1,
) -> dict[str, Any]:
    """A slice of a node's pool, which has COUNT of them."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": _VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{node}-{driver}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)},
    }


def class_document(name: str = CLASS, **spec: Any) -> dict[str, Any]:
    """A class of devices."""
    return {"apiVersion": _VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def asked_document(device_class: str = CLASS, **fields: Any) -> dict[str, Any]:
    """What a request asks for. memory, cores: of each device; other FIELDS are those of the API."""
    capacity = {key: fields.pop(key) for key in ("memory", "cores") if key in fields}
    return {
        "deviceClassName": device_class,
        **({"capacity": {"requests": capacity}} if capacity else {}),
        **fields,
    }


def request_document(name: str = "gpu", device_class: str = CLASS, **fields: Any) -> dict[str, Any]:
    """A request of a claim, as asked_document()."""
    return {"name": name, "exactly": asked_document(device_class, **fields)}


def claim_document(
    name: str, *requests: dict[str, Any], namespace: str = "default", **devices: Any
) -> dict[str, Any]:
    """A claim; DEVICES: constraints and config."""
    return {
        "apiVersion": _VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": _spec(requests, devices),
    }


def template_document(
    name: str, *requests: dict[str, Any], namespace: str = "default", **devices: Any
) -> dict[str, Any]:
    """A template of claims."""
    return {
        "apiVersion": _VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": _spec(requests, devices)},
    }


def _spec(requests: Sequence[dict[str, Any]], devices: dict[str, Any]) -> dict[str, Any]:
    return {"devices": {"requests": list(requests), **devices}}
