# SPDX-License-Identifier: Apache-2.0
"""GPUs from a file: dry runs, tests and demonstrations on machines without one.

    gpus:
      - uuid: GPU-6e1b5c1e-0000-4000-8000-000000000000
        model: NVIDIA L4
        memory: 24GiB
        numa: 0                 # optional
        pci: "00000000:3b:00.0" # optional
        healthy: false          # optional, true if left out
        properties: {architecture: Ada, computeCapability: "8.9"}   # optional, for selectors of GPU classes
    topology: |                 # optional: the output of nvidia-smi topo -m
      ...

The file is read again at every scan, so a GPU can be declared unhealthy while the agent runs. All mistakes are reported
together, each with its line. Nothing here looks at real hardware.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import yaml

from agent.inventory.source import GpuEvent, Inventory, Vitals
from gigaslice.core import units
from gigaslice.core.errors import GigasliceError, InventoryError, TopologyTextError
from gigaslice.core.model import Gpu, Topology, TopoMatrix, count_slices, parse_topo_matrix
from gigaslice.runtime.files import read_file

__all__ = ["StaticSource", "parse_inventory"]

_T = TypeVar("_T")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_BYTES = 1 << 20
_KEYS = ("uuid", "model", "memory", "numa", "pci", "healthy", "properties")
_PROPERTIES = ("architecture", "computeCapability", "driver", "cudaDriver", "nvlink", "pcieRoot")


class StaticSource:
    """The GPUs that the file at PATH lists, each cut into slices of SLICE_BYTES."""

    def __init__(self, path: Path, slice_bytes: int) -> None:
        self._path = path
        self._slice_bytes = slice_bytes

    def scan(self) -> Inventory:
        """Reads the file. Raises InventoryError with every mistake in it."""
        try:
            raw = read_file(self._path, _MAX_BYTES + 1)
        except OSError as error:
            raise InventoryError(
                [f"inventory {self._path}: {error.strerror}; name a readable file"]
            ) from error
        if len(raw) > _MAX_BYTES:
            raise InventoryError([f"inventory {self._path}: larger than 1 MiB; that is no list of GPUs"])
        return parse_inventory(raw, f"inventory {self._path}", self._slice_bytes)

    def process_memory(self) -> Mapping[str, Mapping[int, int]] | None:
        """None: GPUs that are only listed are not measured."""
        return None

    def process_busy(self, gpu: str) -> Mapping[int, float] | None:
        """None, likewise."""
        del gpu
        return None

    def events(self, seconds: float) -> tuple[GpuEvent, ...] | None:
        """None: GPUs that are only listed report nothing."""
        del seconds
        return None

    def vitals(self) -> Mapping[str, Vitals] | None:
        """None: they have no vital signs."""
        return None

    def close(self) -> None:
        """Nothing is held."""


def parse_inventory(raw: bytes, name: str, slice_bytes: int) -> Inventory:
    """The inventory that the YAML text RAW describes. Raises InventoryError; NAME starts each of its lines."""
    reader = _Reader(name, slice_bytes)
    try:
        root = yaml.compose(raw, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InventoryError([f"{name}: not YAML: {' '.join(str(error).split())}"]) from error
    inventory = reader.document(root)
    if reader.mistakes or inventory is None:
        raise InventoryError(reader.mistakes)
    return inventory


def _line(node: yaml.Node) -> int:
    """Where NODE begins, from 1."""
    return int(node.start_mark.line) + 1


def _mapping(node: yaml.Node) -> list[tuple[str, yaml.Node]] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return [(str(key.value), value) for key, value in node.value]


def _text(node: yaml.Node) -> str | None:
    if not isinstance(node, yaml.ScalarNode) or node.tag.endswith(":null"):
        return None
    return str(node.value)


class _Reader:
    """Walks the document once and collects mistakes; `None` stands for a value that could not be read."""

    def __init__(self, name: str, slice_bytes: int) -> None:
        self.mistakes: list[str] = []
        self.properties: dict[str, dict[str, str]] = {}
        self._name = name
        self._slice_bytes = slice_bytes

    def document(self, root: yaml.Node | None) -> Inventory | None:
        if root is None or _mapping(root) is None:
            self._wrong(1, "must be a mapping with a list called gpus")
            return None
        fields = self._fields(root, "the file", ("gpus", "topology"))
        gpus_node = fields.get("gpus")
        listed: list[yaml.Node] = gpus_node.value if isinstance(gpus_node, yaml.SequenceNode) else []
        if not listed:
            line = 1 if gpus_node is None else _line(gpus_node)
            self._wrong(line, "gpus must be a list with at least one GPU (uuid, model, memory)")
            return None
        gpus = [self._gpu(index, item) for index, item in enumerate(listed)]
        self._check_unique([(gpu, _line(item)) for gpu, item in zip(gpus, listed, strict=True) if gpu])
        matrix = self._topology(fields["topology"], len(listed)) if "topology" in fields else None
        described = tuple(gpu for gpu in gpus if gpu is not None)
        if self.mistakes or len(described) != len(gpus):
            return None
        return replace(_assembled(described, matrix), properties=self.properties)

    def _gpu(self, index: int, item: yaml.Node) -> Gpu | None:
        name = f"gpus[{index}]"
        if _mapping(item) is None:
            self._wrong(_line(item), f"{name} must be a mapping with uuid, model and memory")
            return None
        fields = self._fields(item, name, _KEYS)
        for key in ("uuid", "model", "memory"):
            if key not in fields:
                self._wrong(_line(item), f"{name} has no {key}")
        uuid = self._field(fields, name, "uuid", _uuid)
        model = self._field(fields, name, "model", _words)
        memory = self._field(fields, name, "memory", units.parse_bytes)
        numa = self._field(fields, name, "numa", _whole_number)
        bus_id = self._field(fields, name, "pci", _words)
        healthy = self._field(fields, name, "healthy", _truth)
        if memory is not None and memory < self._slice_bytes:
            size, unit = units.format_bytes(memory), units.format_bytes(self._slice_bytes)
            self._wrong(_line(fields["memory"]), f"{name}.memory: {size} are less than one slice of {unit}")
        properties = self._properties(fields.get("properties"), name)
        if uuid is None or model is None or memory is None:
            return None
        if properties:
            self.properties[uuid] = properties
        slices = count_slices(memory, self._slice_bytes)
        unhealthy = healthy is False
        return Gpu(
            uuid, index, model, memory, slices, self._slice_bytes, 0, numa, bus_id or "", not unhealthy
        )

    def _properties(self, value: yaml.Node | None, name: str) -> dict[str, str]:
        if value is None:
            return {}
        if _mapping(value) is None:
            self._wrong(_line(value), f"{name}.properties must be a mapping, such as {{architecture: Ada}}")
            return {}
        fields = self._fields(value, f"{name}.properties", _PROPERTIES)
        texts = {key: self._field(fields, f"{name}.properties", key, _words) for key in fields}
        return {key: text for key, text in texts.items() if text is not None}

    def _topology(self, value: yaml.Node, count: int) -> TopoMatrix | None:
        text = _text(value)
        if text is None:
            self._wrong(_line(value), "topology must be the text of nvidia-smi topo -m, after topology: |")
            return None
        try:
            matrix = parse_topo_matrix(text)
        except TopologyTextError as error:
            self._wrong(_line(value) + error.line, str(error).partition(": ")[2])
            return None
        except GigasliceError as error:
            self._wrong(_line(value), f"topology: {error}")
            return None
        if matrix.topology.size != count:
            self._wrong(_line(value), f"topology has {matrix.topology.size} GPUs, gpus has {count}")
            return None
        return matrix

    def _fields(self, value: yaml.Node, name: str, allowed: tuple[str, ...]) -> dict[str, yaml.Node]:
        fields: dict[str, yaml.Node] = {}
        for key, field in _mapping(value) or []:
            if key not in allowed:
                self._wrong(
                    _line(field), f"{name} has an unknown key {key!r}; known are {', '.join(allowed)}"
                )
            elif key in fields:
                self._wrong(_line(field), f"{name} has {key} twice")
            else:
                fields[key] = field
        return fields

    def _field(
        self, fields: dict[str, yaml.Node], name: str, key: str, parse: Callable[[str], _T]
    ) -> _T | None:
        if key not in fields:
            return None
        text = _text(fields[key])
        try:
            if text is None:
                raise ValueError("must be a single value")
            return parse(text)
        except ValueError as error:
            self._wrong(_line(fields[key]), f"{name}.{key}: {error}")
            return None

    def _check_unique(self, gpus: list[tuple[Gpu, int]]) -> None:
        first: dict[str, int] = {}
        for gpu, line in gpus:
            if gpu.uuid in first:
                self._wrong(line, f"gpus[{gpu.index}].uuid: {gpu.uuid} is gpus[{first[gpu.uuid]}] already")
            first.setdefault(gpu.uuid, gpu.index)

    def _wrong(self, line: int, sentence: str) -> None:
        self.mistakes.append(f"{self._name}, line {line}: {sentence}")


def _assembled(gpus: tuple[Gpu, ...], matrix: TopoMatrix | None) -> Inventory:
    if matrix is None:
        return Inventory(gpus, Topology.flat(len(gpus)))
    placed = tuple(
        gpu if gpu.numa_node is not None else replace(gpu, numa_node=node)
        for gpu, node in zip(gpus, matrix.numa_nodes, strict=True)
    )
    return Inventory(placed, matrix.topology, matrix.topology.degraded)


def _uuid(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise ValueError(f"{text!r} is no GPU UUID; write GPU- and 32 lower-case hex digits as 8-4-4-4-12")
    return text


def _words(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("must be a printable text")
    return text


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise ValueError(f"{text!r} is no NUMA node; write a whole number from 0")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"
