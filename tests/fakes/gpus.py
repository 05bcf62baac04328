# SPDX-License-Identifier: Apache-2.0
"""GPUs and what lies between them: a test names what matters to it, and the rest is a GPU as it should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gigaslice.core.model import Gpu, LinkLevel, NodeState, Occupant, Share, Topology

GIB = 1 << 30


def uuid(number: int) -> str:
    return f"GPU-6e1b5c1e-0000-4000-8000-{number:012d}"


def make_gpu(
    index: int = 0,
    slices: int = 24,
    model: str = "NVIDIA L4",
    *,
    uuid: str = "",
    slice_bytes: int = GIB,
    host_bytes: int = 0,
    **fields: Any,
) -> Gpu:
    """A GPU of so many slices, which fill its own memory and the host memory that is lent to it."""
    memory_bytes = fields.pop("memory_bytes", slices * slice_bytes - host_bytes)
    name = uuid or _default_uuid(index)
    return Gpu(name, index, model, memory_bytes, slices, slice_bytes, host_bytes, **fields)


_default_uuid = uuid


def pairs_topology(size: int, *, sockets: int = 2, nvlinks: Callable[[int, int], int] | int = 0) -> Topology:
    """GPUs 0 and 1, 2 and 3 and so on are pairs on a PCIe switch, and equally many of them on each socket.

    nvlinks: how many join any two GPUs, or a function of the indices of both.
    """

    def level(one: int, other: int) -> LinkLevel:
        if one // 2 == other // 2:
            return LinkLevel.SINGLE
        return LinkLevel.NODE if one * sockets // size == other * sockets // size else LinkLevel.SYSTEM

    def links(one: int, other: int) -> int:
        return nvlinks(one, other) if callable(nvlinks) else nvlinks * (one != other)

    return Topology.build(
        [[level(i, j) for j in range(size)] for i in range(size)],
        [[links(i, j) for j in range(size)] for i in range(size)],
    )


def node_state(gpus: Sequence[Gpu], topology: Topology | None = None, used: Sequence[int] = ()) -> NodeState:
    """A node whose GPUs are equally far apart. USED: the slices of each GPU that a container of its own holds."""
    held = [
        Occupant(f"job{gpu.index}", (Share(gpu.uuid, count),))
        for gpu, count in zip(gpus, used, strict=False)
        if count
    ]
    return NodeState.build(gpus, topology or Topology.flat(len(gpus)), held)
