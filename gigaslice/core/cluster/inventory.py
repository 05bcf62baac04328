# SPDX-License-Identifier: Apache-2.0
"""What a node has, as one annotation of its Node object: GPUs, links, health, what is free. One writer, its agent.

The text changes only when the node does: it holds no time, no temperature and no use of memory. An agent of another
version may write more than is known here; unknown keys are left alone, and another schema is refused.

`free` is for people. A scheduler counts for itself: `held` are the allocations whose GPUs the agent chose, because
their pods came without an assignment; every other one is in the annotation of its own pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from typing import Any

from gigaslice.core.cluster.names import GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.core.errors import GigasliceError
from gigaslice.core.kube.json_text import read_json
from gigaslice.core.model import AnnotationRights, Gpu, NodeState, Occupant, Share, Topology
from gigaslice.core.text import plain

__all__ = ["InventoryFormatError", "InventoryGpu", "NodeInventory"]

SCHEMA = 1
_MIB = 1 << 20
_MOST_GPUS = 256
_MOST_SLICES = 1 << 24  # of one GPU
_MOST_BYTES = 1 << 50  # of one GPU
_Triangle = tuple[tuple[int, ...], ...]


class InventoryFormatError(GigasliceError):
    """The annotation cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class InventoryGpu:
    """One GPU of a node.

    Attributes:
        gpu: The GPU as placement takes it.
        unhealthy: Why it gets no containers; empty while it is healthy.
        free: Slices without a holder.
        resource: The resource that its slices are requested by.
        properties: What selectors may ask for beside the derived ones (see `all_properties`): architecture,
            computeCapability, driver, cudaDriver, nvlink, pcieRoot, and the labels of the agent's settings.
    """

    gpu: Gpu
    unhealthy: str = ""
    free: int = 0
    resource: str = MEMORY_RESOURCE
    properties: Mapping[str, str] = field(default_factory=dict)

    def all_properties(self, node: str) -> dict[str, str]:
        """Returns every property that a selector can ask for, of this GPU on the node of that name."""
        derived = {
            "vendor": "NVIDIA",
            "model": self.gpu.model,
            "memory": f"{self.gpu.memory_bytes // _MIB}MiB",
            "uuid": self.gpu.uuid,
            "node": node,
        }
        if self.gpu.numa_node is not None:
            derived["numa"] = str(self.gpu.numa_node)
        return {**self.properties, **derived}


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """What one node has.

    Attributes:
        gpus: By index.
        topology: One row per GPU.
        held: Allocations that no assignment explains; an occupant's name is its pod's UID, or what the agent calls it.
        whole_resource: The resource that whole GPUs are requested by; empty where the node offers none.
        rights: Which annotations of pods its agent takes.
        exclusive: UUIDs of the GPUs that a pod was given for itself, by the pod's UID. None of them: its annotations
            say by now that it has some, and it has not. A pod that is not named has none by either, or no GPUs yet.
        lent: The same for GPUs whose lent host memory a pod may use.
    """

    gpus: tuple[InventoryGpu, ...]
    topology: Topology
    held: tuple[Occupant, ...] = ()
    whole_resource: str = GPU_RESOURCE
    rights: AnnotationRights = AnnotationRights.REFUSE
    exclusive: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def state(self, occupants: Sequence[Occupant] = ()) -> NodeState:
        """Returns the node for placement, with its own held allocations and the given ones."""
        return NodeState.build([gpu.gpu for gpu in self.gpus], self.topology, [*self.held, *occupants])

    def encode(self) -> str:
        """Returns the annotation's text; equal inventories have equal texts."""
        index = {gpu.gpu.uuid: number for number, gpu in enumerate(self.gpus)}
        size = len(self.gpus)
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "gpus": [_gpu_row(gpu) for gpu in self.gpus],
            "levels": [[int(self.topology.levels[i][j]) for j in range(i)] for i in range(size)],
            "wholeResource": self.whole_resource,
        }
        if any(map(any, self.topology.nvlinks)):
            document["nvlinks"] = [[self.topology.nvlinks[i][j] for j in range(i)] for i in range(size)]
        if self.rights is not AnnotationRights.REFUSE:
            document["annotationRights"] = self.rights.value
        for name, recorded in (("exclusive", self.exclusive), ("lent", self.lent)):
            if recorded:
                document[name] = {uid: [index[gpu] for gpu in recorded[uid]] for uid in sorted(recorded)}
        if self.held:
            document["held"] = {
                occupant.name: [[index[share.gpu], share.slices, share.cores] for share in occupant.shares]
                for occupant in sorted(self.held, key=lambda occupant: occupant.name)
            }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def decode(cls, text: str) -> NodeInventory:
        """Reads the annotation's text.

        Raises:
            InventoryFormatError: It is none, or of a schema that is not known here.
        """
        try:
            document = read_json(text)
        except ValueError:
            raise InventoryFormatError("the inventory is not JSON") from None
        if not isinstance(document, dict) or not isinstance(document.get("gpus"), list):
            raise InventoryFormatError("the inventory has no GPUs")
        if document.get("schema") != SCHEMA:
            schema = plain(repr(document.get("schema")))[:40]
            raise InventoryFormatError(
                f"the inventory has schema {schema}, and {SCHEMA} is known here; run the same "
                "version of gigaslice on nodes and in the cluster"
            )
        try:
            return _inventory(document)
        except GigasliceError as error:
            raise InventoryFormatError(f"the inventory makes no sense: {error}") from None


def _gpu_row(inventory_gpu: InventoryGpu) -> dict[str, Any]:
    gpu = inventory_gpu.gpu
    row: dict[str, Any] = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memoryBytes": gpu.memory_bytes,
        "slices": gpu.slices,
        "sliceBytes": gpu.slice_bytes,
        "free": inventory_gpu.free,
        "resource": inventory_gpu.resource,
    }
    optional = {
        "hostBytes": gpu.host_bytes,
        "pciBusId": gpu.pci_bus_id,
        "unhealthy": inventory_gpu.unhealthy,
        "properties": {key: inventory_gpu.properties[key] for key in sorted(inventory_gpu.properties)},
    }
    if gpu.numa_node is not None:
        row["numa"] = gpu.numa_node
    return {**row, **{key: value for key, value in optional.items() if value}}


def _inventory(document: Mapping[str, Any]) -> NodeInventory:
    rows = _list("gpus", document["gpus"])
    if len(rows) > _MOST_GPUS:
        raise InventoryFormatError(f"more than {_MOST_GPUS} GPUs")
    gpus = tuple(_gpu(_object("a GPU", row)) for row in rows)
    size = len(gpus)
    if len({gpu.gpu.uuid for gpu in gpus}) != size:
        raise InventoryFormatError("two GPUs have the same UUID")
    levels = _triangle("levels", document.get("levels"), size)
    nvlinks = document.get("nvlinks")
    none = tuple((0,) * number for number in range(size))
    topology = _topology(size, levels, _triangle("nvlinks", nvlinks, size) if nvlinks else none)
    held = tuple(
        Occupant(name, tuple(_share(gpus, share) for share in _list("held", shares)))
        for name, shares in _object("held", document.get("held")).items()
    )
    checked = document.get("annotationRights") == AnnotationRights.CHECKED.value
    return NodeInventory(
        gpus,
        topology,
        held,
        _text_or_empty("wholeResource", document.get("wholeResource")),
        AnnotationRights.CHECKED if checked else AnnotationRights.REFUSE,
        _recorded(document, "exclusive", gpus),
        _recorded(document, "lent", gpus),
    )


def _recorded(
    document: Mapping[str, Any], name: str, gpus: Sequence[InventoryGpu]
) -> dict[str, tuple[str, ...]]:
    """Which pods have which of GPUS by what is recorded under NAME."""
    rows = _object(name, document.get(name)).items()
    return {uid: tuple(_uuid(gpus, number) for number in _list(name, row)) for uid, row in rows}


def _gpu(row: Mapping[str, Any]) -> InventoryGpu:
    unhealthy = _text_or_empty("unhealthy", row.get("unhealthy"))
    gpu = Gpu(
        uuid=_text(row, "uuid"),
        index=_count("index", row.get("index")),
        model=intern(_text(row, "model")),
        memory_bytes=_count("memoryBytes", row.get("memoryBytes"), _MOST_BYTES),
        slices=_count("slices", row.get("slices"), _MOST_SLICES),
        slice_bytes=_count("sliceBytes", row.get("sliceBytes"), _MOST_BYTES),
        host_bytes=_count("hostBytes", row.get("hostBytes", 0), _MOST_BYTES),
        numa_node=None if row.get("numa") is None else _count("numa", row["numa"]),
        pci_bus_id=_text_or_empty("pciBusId", row.get("pciBusId")),
        healthy=not unhealthy,
    )
    if gpu.slice_bytes < 1:
        raise InventoryFormatError("a slice of no bytes")
    properties = _properties(
        tuple(
            (key, _text_or_empty(key, value))
            for key, value in _object("properties", row.get("properties")).items()
        )
    )
    free = _count("free", row.get("free", 0))
    return InventoryGpu(gpu, unhealthy, free, intern(_text(row, "resource")), properties)


def _uuid(gpus: Sequence[InventoryGpu], number: object) -> str:
    at = _count("a GPU", number)
    if at >= len(gpus):
        raise InventoryFormatError(f"there is no GPU {at}")
    return gpus[at].gpu.uuid


def _share(gpus: Sequence[InventoryGpu], share: object) -> Share:
    match share:
        case [number, slices, cores]:
            uuid = _uuid(gpus, number)
            return Share(uuid, _count("slices", slices, _MOST_SLICES), _count("cores", cores))
        case _:
            raise InventoryFormatError("what is held is not GPU, slices and cores")


@lru_cache(maxsize=1024)  # thousands of GPUs have the same ones
def _properties(rows: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return dict(rows)


@lru_cache(maxsize=256)  # a cluster has few kinds of nodes, and every change of a node brings its links again
def _topology(size: int, levels: _Triangle, nvlinks: _Triangle) -> Topology:
    return Topology.build(_square(levels, size), _square(nvlinks, size))


def _triangle(name: str, value: object, size: int) -> _Triangle:
    """A matrix below its diagonal: as many rows as GPUs, each as long as its number."""
    rows = tuple(tuple(_count(name, value) for value in _list(name, row)) for row in _list(name, value))
    if [len(row) for row in rows] != list(range(size)):
        raise InventoryFormatError(f"{name} do not fit the GPUs")
    return rows


def _square(rows: _Triangle, size: int) -> list[list[int]]:
    """Returns the whole matrix of a triangle without its diagonal."""
    return [[0 if i == j else rows[max(i, j)][min(i, j)] for j in range(size)] for i in range(size)]


def _object(name: str, value: object) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise InventoryFormatError(f"{name} is no object")
    return value or {}


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InventoryFormatError(f"{name} is no list")
    return value


def _count(name: str, value: object, most: int = (1 << 63) - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InventoryFormatError(f"{name} is no count")
    return value


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise InventoryFormatError(f"{name} is no text")
    return value


def _text_or_empty(name: str, value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise InventoryFormatError(f"{name} is no text")
    return value or ""
