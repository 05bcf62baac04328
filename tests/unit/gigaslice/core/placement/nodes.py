# SPDX-License-Identifier: Apache-2.0
"""Nodes for tests: from the topologies of vectors.json, and from a few words."""

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

from gigaslice.core.model import (
    Gpu,
    Infeasible,
    LinkLevel,
    NodeState,
    Placement,
    Request,
    RequestOptions,
    Share,
    Topology,
    count_slices,
)
from gigaslice.core.placement import Policy, place
from tests.fakes import gpus
from tests.fakes.gpus import GIB

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))


def uuid(index: int) -> str:
    return f"GPU-{index:02d}"


def make_gpu(index: int, slices: int = 16, model: str = "gpu", **fields: Any) -> Gpu:
    return gpus.make_gpu(index, slices, model, uuid=uuid(index), **fields)


def vector_node(name: str) -> NodeState:
    """Return an idle node of vectors.json."""
    raw = VECTORS["topologies"][name]
    found = []
    for gpu in raw["gpus"]:
        slice_bytes = gpu.get("slice_gib", 1) * GIB
        host = gpu.get("host_gib", 0) * GIB
        memory = gpu["mem_gib"] * GIB if "mem_gib" in gpu else gpu["slices"] * GIB
        slices = gpu.get("slices") or count_slices(memory, slice_bytes, host)
        fields = {"memory_bytes": memory, "slice_bytes": slice_bytes, "host_bytes": host}
        found.append(make_gpu(gpu["id"], slices, gpu["model"], **fields))
    levels = [[0 if word == "X" else LinkLevel.from_word(word) for word in row] for row in raw["levels"]]
    return NodeState.build(found, Topology.build(levels, raw.get("nvlink")))


def vector_answer(state: NodeState, raw: dict[str, Any]) -> Placement | Infeasible:
    """Return the answer to a request as vectors.json writes it.

    A model is how a pod's options restrict a request, and "prefer": "link" is the policy that puts the links first.
    """
    policy = Policy.MAX_SUM if raw.get("prefer") == "link" else Policy.GAIA
    fields = {key: raw[key] for key in ("gpus", "cores") if key in raw}
    if raw.get("slices", "whole") != "whole":
        fields["slices"] = raw["slices"]
    request = replace(_units_request(state, raw), **fields)
    answer = place(state, request, policy)
    if "model" not in raw or (isinstance(answer, Infeasible) and answer.reason.value == "invalid"):
        return answer
    allowed = RequestOptions(types=(raw["model"],)).allowed_gpus(state.gpus)
    return (
        allowed if isinstance(allowed, Infeasible) else place(state, replace(request, only=allowed), policy)
    )


def _units_request(state: NodeState, raw: dict[str, Any]) -> Request:
    """A request for so many GPUs, as the papers write it; all GPUs of such a node have the same slices."""
    if "gpu_units" not in raw:
        return Request()
    units, (slices,) = Fraction(raw["gpu_units"]), {gpu.slices for gpu in state.gpus}
    if raw.get("shape", "even") == "remainder":
        return units_request(units, slices, whole_first=True)
    return units_request(units, slices)


def units_request(units: Fraction, slices: int, *, whole_first: bool = False, **fields: Any) -> Request:
    """A request for UNITS GPUs of SLICES slices each: equal parts, rounded up, or whole GPUs first."""
    if whole_first and units > 1 and units.denominator != 1:
        return Request(total=ceil(units * slices), whole_first=True, **fields)
    gpus = max(1, ceil(units))
    return Request(gpus=gpus, slices=ceil(units * slices / gpus), **fields)


def place_slices(
    state: NodeState, slices: int, request: Request | None = None, policy: Policy = Policy.GAIA
) -> Placement | Infeasible:
    """Where to place SLICES in all, which is how a container counts; otherwise as REQUEST says."""
    return place(state, replace(request or Request(), total=slices, slices=None), policy)


def placement(*shares: Sequence[int]) -> Placement:
    """Return a placement of (index, slices) pairs; a third number is the compute share."""
    return Placement(tuple(Share(uuid(share[0]), *share[1:]) for share in shares))


def as_pairs(answer: object) -> list[list[int]]:
    """Return a placement as [[index, slices], …], the way vectors.json writes it."""
    assert isinstance(answer, Placement), answer
    return [[int(share.gpu.removeprefix("GPU-")), share.slices] for share in answer.shares]
