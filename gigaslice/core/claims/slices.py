# SPDX-License-Identifier: Apache-2.0
"""The devices of a node as the API server publishes them (ResourceSlice): one for each GPU, to be shared. Pure.

Equal arguments have equal documents, so that nothing is written where nothing has changed. A server refuses a slice as
a whole, for one value that is too long: what does not fit its rules is left out, with a sentence for the log. The order
of devices is the placement policy: the scheduler takes the first that fits (`gigaslice.core.placement.first_fit`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gigaslice.core.claims.names import CORES, DRIVER, MEMORY, device_name, is_subdomain
from gigaslice.core.model import CORES_PER_GPU, Gpu, LinkLevel, Topology
from gigaslice.core.placement.tree import islands
from gigaslice.core.text import plain

__all__ = [
    "UNHEALTHY",
    "DeviceDocuments",
    "PublishedGpu",
    "device_documents",
    "pool_specs",
    "quantity",
    "slice_name",
]

UNHEALTHY = f"{DRIVER}/unhealthy"
"""Key of the taint of a GPU that gets no containers."""

_STANDARD = "resource.kubernetes.io/"
_MOST_TEXT = 64  # bytes
_MOST_NAME = 32
_MOST_DOMAIN = 63
_MOST_FIELDS = 32  # attributes and capacities
_MOST_DEVICES = 64  # of a slice in which some have taints
_MOST_SLICE_NAME = 253
_DIGEST = 16
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,2}")
_BUS_ID = re.compile(r"(?P<domain>[0-9A-Fa-f]{4,8}):(?P<rest>[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_TAINT_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_UNITS = tuple(
    (1 << 10 * power, f"{letter}i") for power, letter in reversed(list(enumerate("KMGTPE", start=1)))
)

_TEXT, _INT, _VERSION_KIND = "string", "int", "version"
_OF_PROPERTIES = {
    "architecture": ("architecture", _TEXT),
    "computeCapability": ("cudaComputeCapability", _VERSION_KIND),
    "driver": ("driverVersion", _VERSION_KIND),
    "cudaDriver": ("cudaDriverVersion", _VERSION_KIND),
    "nvlink": ("nvlinks", _INT),
    "pcieRoot": (f"{_STANDARD}pcieRoot", _TEXT),
}
"""What of the inventory's properties is which attribute, and of which kind."""


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """What is published of one GPU.

    Attributes:
        gpu: The GPU. Memory of the host that is lent to it is not published.
        unhealthy: A word for why it gets no containers; empty while it is healthy.
        properties: What else is known of it (`agent.inventory`).
        labels: Properties of the operator's.
        other_bytes: Memory of it that allocations of another API have.
        other_cores: Compute of it that they have, in per cent.
    """

    gpu: Gpu
    unhealthy: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    other_bytes: int = 0
    other_cores: int = 0

    @property
    def slices(self) -> int:
        """How many slices of it claims can have altogether."""
        return max(0, self.gpu.own_slices - -(-max(0, self.other_bytes) // self.gpu.slice_bytes))


@dataclass(frozen=True, slots=True)
class DeviceDocuments:
    """Devices as a slice has them, in order. notes: sentences about what was left out."""

    devices: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()


def device_documents(
    devices: Sequence[PublishedGpu], topology: Topology, order: Sequence[str], *, taints: bool = True
) -> DeviceDocuments:
    """Returns the devices of a node.

    Args:
        devices: One for each GPU.
        topology: How they are linked, row by row.
        order: UUIDs of GPUs in the order of placement. One that is not named comes last.
        taints: Whether the server keeps taints. Where it does not, an unhealthy GPU is left out.
    """
    place = {uuid: position for position, uuid in enumerate(order)}
    groups = _groups(devices, topology)
    notes: list[str] = []
    documents = [
        _document(device, group, notes)
        for device, group in sorted(
            zip(devices, groups, strict=True),
            key=lambda entry: (place.get(entry[0].gpu.uuid, len(place)), entry[0].gpu.uuid),
        )
        if device.slices and (taints or not device.unhealthy)
    ]
    return DeviceDocuments(tuple(documents), tuple(dict.fromkeys(notes)))


def pool_specs(node: str, devices: Sequence[Mapping[str, Any]], generation: int) -> dict[str, dict[str, Any]]:
    """Returns the specs of a node's slices by name. Their names are in the order in which they are looked through."""
    pieces = [devices[start : start + _MOST_DEVICES] for start in range(0, len(devices), _MOST_DEVICES)] or [
        ()
    ]
    return {
        slice_name(node, number): {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": len(pieces)},
            "devices": [dict(device) for device in piece],
        }
        for number, piece in enumerate(pieces)
    }


def slice_name(node: str, number: int = 0) -> str:
    """Returns the name of a node's slice. No other node has the same: none of their names can end otherwise."""
    end = "-gigaslice" + (f"-{number}" if number else "")
    if len(node) + len(end) > _MOST_SLICE_NAME:
        digest = hashlib.sha256(node.encode("utf-8", "replace")).hexdigest()[:_DIGEST]
        node = f"{node[: _MOST_SLICE_NAME - len(end) - _DIGEST - 1].rstrip('.-')}-{digest}"
    return node + end


def quantity(count: int) -> str:
    """Writes a number as a server gives it back: with the largest binary unit that divides it."""
    for size, unit in _UNITS:
        if count and not count % size:
            return f"{count // size}{unit}"
    return str(count)


def _document(device: PublishedGpu, groups: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    cores = max(0, CORES_PER_GPU - max(0, device.other_cores))
    capacity = {MEMORY: _memory(device), CORES: _cores(cores)}
    document: dict[str, Any] = {
        "name": device_name(device.gpu.uuid),
        "allowMultipleAllocations": True,
        "attributes": _attributes(device, groups, _MOST_FIELDS - len(capacity), notes),
        "capacity": capacity,
    }
    if device.unhealthy:
        word = device.unhealthy if _TAINT_VALUE.fullmatch(device.unhealthy) else "unhealthy"
        document["taints"] = [{"key": UNHEALTHY, "value": word, "effect": "NoSchedule"}]
    return document


def _memory(device: PublishedGpu) -> dict[str, Any]:
    """A claim that says nothing of memory has all of it."""
    unit = device.gpu.slice_bytes
    return _shared(device.slices * unit, unit, unit, default=device.slices * unit)


def _cores(cores: int) -> dict[str, Any]:
    return _shared(cores, 0, 1, default=0)


def _shared(value: int, least: int, step: int, *, default: int) -> dict[str, Any]:
    """A capacity of which claims have steps. A range must have room for a step; else its only value is named."""
    policy: dict[str, Any] = {"default": quantity(default)}
    if least + step > value:
        policy["validValues"] = [quantity(default)]
    else:
        policy["validRange"] = {"min": quantity(least), "max": quantity(value), "step": quantity(step)}
    return {"value": quantity(value), "requestPolicy": policy}


def _attributes(
    device: PublishedGpu, groups: Mapping[str, str], most: int, notes: list[str]
) -> dict[str, dict[str, Any]]:
    gpu, properties = device.gpu, device.properties
    attributes: dict[str, dict[str, Any] | None] = {
        "type": {_TEXT: "gpu"},
        "uuid": _attribute(_TEXT, gpu.uuid),
        "model": _attribute(_TEXT, gpu.model),
        "productName": _attribute(_TEXT, gpu.model),
        "index": {_INT: gpu.index},
        **{
            name: _attribute(kind, properties[key])
            for key, (name, kind) in _OF_PROPERTIES.items()
            if properties.get(key)
        },
        **{name: {_TEXT: group} for name, group in groups.items()},
        f"{_STANDARD}numaNode": None if gpu.numa_node is None else {_INT: gpu.numa_node},
        f"{_STANDARD}pciBusID": _attribute(_TEXT, _bus_id(gpu.pci_bus_id)),
    }
    attributes = {name: value for name, value in attributes.items() if value is not None}
    for key in sorted(device.labels):
        problem = _label_problem(key, device.labels[key], attributes)
        if not problem and len(attributes) >= most:
            problem = f"a device has at most {_MOST_FIELDS} attributes and capacities"
        if problem:
            notes.append(
                f"label {plain(key)[:_MOST_TEXT]} of {gpu.uuid} is not published with its device: {problem}"
            )
        else:
            attributes[key] = {_TEXT: device.labels[key]}
    return {name: attributes[name] for name in sorted(attributes)}  # type: ignore[misc]


def _label_problem(key: str, value: str, taken: Iterable[str]) -> str:
    """Why a label can be no attribute; empty where it can."""
    domain, slash, name = key.rpartition("/")
    if len(name) > _MOST_NAME or not _IDENTIFIER.fullmatch(name):
        return f'its name must be letters, digits and "_", {_MOST_NAME} at most'
    if slash and (len(domain) > _MOST_DOMAIN or not is_subdomain(domain)):
        return f"what is before the / must be a domain of {_MOST_DOMAIN} characters at most"
    if key.removeprefix(f"{DRIVER}/") in taken or key in taken or key.startswith(_STANDARD):
        return "there is an attribute of that name"
    if _attribute(_TEXT, value) is None:
        return f"its value must have {_MOST_TEXT} bytes at most"
    return ""


def _attribute(kind: str, text: str) -> dict[str, Any] | None:
    """The value of an attribute; None for a text that is none."""
    if kind == _INT:
        return {_INT: int(text)} if re.fullmatch(r"[0-9]{1,9}", text) else None
    if kind == _VERSION_KIND:
        if not _VERSION.fullmatch(text):
            return None
        return {_VERSION_KIND: ".".join(str(int(part)) for part in [*text.split("."), "0", "0"][:3])}
    return (
        {_TEXT: text}
        if 0 < len(text.encode("utf-8", "replace")) <= _MOST_TEXT and text.isprintable()
        else None
    )


def _bus_id(text: str) -> str:
    """As the kernel writes it: NVML prints eight digits of the domain."""
    match = _BUS_ID.fullmatch(text)
    return f"{int(match['domain'], 16):04x}:{match['rest'].lower()}" if match else ""


def _groups(devices: Sequence[PublishedGpu], topology: Topology) -> list[dict[str, str]]:
    """For each GPU the groups of near ones that it is in, named after the first of them."""
    size = range(len(devices))
    linked = islands([[topology.nvlinks[i][j] for j in size] for i in size])
    paired = [next(j for j in size if j == i or topology.levels[i][j] <= LinkLevel.SINGLE) for i in size]
    groups: list[dict[str, str]] = [{} for _ in devices]
    for name, word, first in (("nvlinkGroup", "nvlink", linked), ("pairGroup", "pair", paired)):
        for i in size:
            if first.count(first[i]) > 1:
                groups[i][name] = f"{word}-{devices[first[i]].gpu.index}"
    return groups
