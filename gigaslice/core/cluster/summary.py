# SPDX-License-Identifier: Apache-2.0
"""What the cluster's state tells about itself: who is on which GPU, and how much of a class there is. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from gigaslice.core.cluster.holding import Holding
from gigaslice.core.cluster.inventory import InventoryGpu

__all__ = ["ClassOnNode", "ClassStatus", "GpuHolder", "GpuHolders"]


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """What one holding has of a GPU."""

    holding: Holding
    slices: int
    cores: int


@dataclass(frozen=True, slots=True)
class GpuHolders:
    """One GPU and what is held of it. free: slices without a holder, also while it is unhealthy."""

    gpu: InventoryGpu
    free: int
    holders: tuple[GpuHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassOnNode:
    """How many GPUs of a class a node has, and how many could serve one more unit."""

    node: str
    devices: int
    free: int


@dataclass(frozen=True, slots=True)
class ClassStatus:
    """How many GPUs serve a class, how many of them could serve one more unit, and where."""

    devices: int = 0
    free: int = 0
    nodes: tuple[ClassOnNode, ...] = ()
