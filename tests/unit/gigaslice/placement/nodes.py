"""Nodes for tests: from the topologies of vectors.json, and from a few words."""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from gigaslice.model import (
    Gpu,
    LinkLevel,
    NodeState,
    Placement,
    Prefer,
    Request,
    Shape,
    Share,
    Topology,
    count_slices,
)

GIB = 1 << 30
VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))


def uuid(index: int) -> str:
    return f"GPU-{index:02d}"


def make_gpu(index: int, slices: int = 16, model: str = "gpu", **fields: Any) -> Gpu:
    return Gpu(uuid(index), index, model, slices * GIB, slices, GIB, **fields)


def vector_node(name: str) -> NodeState:
    """Return an idle node of vectors.json."""
    raw = VECTORS["topologies"][name]
    gpus = []
    for gpu in raw["gpus"]:
        slice_bytes = gpu.get("slice_gib", 1) * GIB
        host = gpu.get("host_gib", 0) * GIB
        memory = gpu["mem_gib"] * GIB if "mem_gib" in gpu else gpu["slices"] * GIB
        slices = gpu.get("slices") or count_slices(memory, slice_bytes, host)
        gpus.append(Gpu(uuid(gpu["id"]), gpu["id"], gpu["model"], memory, slices, slice_bytes, host))
    levels = [[0 if word == "X" else LinkLevel.from_word(word) for word in row] for row in raw["levels"]]
    return NodeState.build(gpus, Topology.build(levels, raw.get("nvlink")))


def vector_request(raw: dict[str, Any]) -> Request:
    """Return a request as vectors.json writes it."""
    fields = {key: raw[key] for key in ("gpus", "cores", "model", "elastic") if key in raw}
    if raw.get("slices", "whole") != "whole":
        fields["slices"] = raw["slices"]
    if "gpu_units" in raw:
        fields["gpu_units"] = Fraction(raw["gpu_units"])
    if "max" in raw:
        fields["max_slices"] = raw["max"]
    return Request(
        **fields, shape=Shape(raw.get("shape", "even")), prefer=Prefer(raw.get("prefer", "fragments"))
    )


def placement(*shares: Sequence[int]) -> Placement:
    """Return a placement of (index, slices) pairs; a third number is the compute share."""
    return Placement(tuple(Share(uuid(share[0]), *share[1:]) for share in shares))


def as_pairs(answer: object) -> list[list[int]]:
    """Return a placement as [[index, slices], …], the way vectors.json writes it."""
    assert isinstance(answer, Placement), answer
    return [[int(share.gpu.removeprefix("GPU-")), share.slices] for share in answer.shares]
