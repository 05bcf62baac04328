# SPDX-License-Identifier: Apache-2.0
"""The cluster as it is shown: nodes with their GPUs, what pods hold, which pods wait, what classes there are.

Values between whatever follows the cluster and what is printed, drawn or served. Everything that needs the placement
code has been computed before; a view holds plain numbers and texts, and its methods only add up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "ClassView",
    "ClusterPicture",
    "GpuView",
    "HolderView",
    "LinkGroup",
    "NodeView",
    "Sums",
    "WaitingPodView",
]


class GpuCondition(Enum):
    """What a GPU is good for at the moment."""

    WHOLE = "whole"
    """Healthy, and no pod holds any of it."""
    PARTLY_USED = "partly used"
    FULL = "full"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class HolderView:
    """What one pod holds of one GPU. A pod that the cluster does not list has no namespace, and its UID for a name.

    used_bytes: what it uses of that by its node's agent; None where that was not measured.
    """

    namespace: str
    pod: str
    slices: int
    cores: int = 0
    used_bytes: int | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}" if self.namespace else self.pod


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU. unhealthy: why it gets no containers, or empty. numa: None where the machine has none."""

    uuid: str
    index: int
    model: str
    slices: int
    slice_bytes: int
    unhealthy: str = ""
    numa: int | None = None
    holders: tuple[HolderView, ...] = ()

    @property
    def used(self) -> int:
        """Slices that pods hold."""
        return sum(holder.slices for holder in self.holders)

    @property
    def free(self) -> int:
        """Slices that a pod could get: none while it is unhealthy."""
        return 0 if self.unhealthy else max(0, self.slices - self.used)

    @property
    def condition(self) -> GpuCondition:
        """In which of four states it is."""
        if self.unhealthy:
            return GpuCondition.UNHEALTHY
        if not self.holders:
            return GpuCondition.WHOLE
        return GpuCondition.PARTLY_USED if self.free else GpuCondition.FULL


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """GPUs that are nearer to each other than to the others. kind: "PIX", "NVL+NODE". gpus: positions in the node."""

    kind: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. problem: why nothing is known of its GPUs, or empty."""

    name: str
    gpus: tuple[GpuView, ...] = ()
    links: tuple[LinkGroup, ...] = ()
    schedulable: bool = True
    ready: bool = True
    problem: str = ""

    @property
    def takes_pods(self) -> bool:
        """Whether the scheduler may put pods there now."""
        return self.schedulable and self.ready

    @property
    def conditions(self) -> tuple[str, ...]:
        """What keeps pods away from the node, in words; nothing where nothing does."""
        conditions = [] if self.schedulable else ["cordoned"]
        conditions += [] if self.ready else ["not ready"]
        return tuple(conditions + ([self.problem] if self.problem else []))


@dataclass(frozen=True, slots=True)
class WaitingPodView:
    """A pod without GPUs. since: as the API server writes times. asks: what it asks for, in words. why: one line;
    details: one line for each kind of node, the nearest first.
    """

    namespace: str
    pod: str
    since: str
    asks: str
    why: str
    details: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class ClassView:
    """A class of GPUs. devices: GPUs that match; free: those of them that could be given out; nodes: where they are."""

    name: str
    devices: int
    free: int
    nodes: int
    selects: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Sums:
    """GPUs by their condition, and bytes: held by pods, free on whole GPUs, free on partly used ones, unhealthy.

    largest_partly_bytes: the most that is free on any one GPU that is partly used. used_bytes: what pods use of
    measured_bytes, the part of what they hold that was measured.
    """

    gpus: int = 0
    whole: int = 0
    partly_used: int = 0
    unhealthy: int = 0
    held_bytes: int = 0
    free_whole_bytes: int = 0
    free_partly_bytes: int = 0
    unhealthy_bytes: int = 0
    largest_partly_bytes: int = 0
    used_bytes: int = 0
    measured_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """What pods could get, on whole GPUs or beside others."""
        return self.free_whole_bytes + self.free_partly_bytes

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.held_bytes + self.free_bytes + self.unhealthy_bytes

    @property
    def fragmentation(self) -> float:
        """The part of what is free that lies on partly used GPUs, where no whole GPU can come from: 0 to 1."""
        return self.free_partly_bytes / self.free_bytes if self.free_bytes else 0.0


@dataclass(frozen=True, slots=True)
class ClusterPicture:
    """All of it. nodes: by name. moves: what would free a whole GPU, one sentence each. note: what is missing here."""

    nodes: tuple[NodeView, ...] = ()
    waiting: tuple[WaitingPodView, ...] = ()
    classes: tuple[ClassView, ...] = ()
    moves: tuple[str, ...] = ()
    note: str = ""

    def sums(self) -> Sums:
        """Of all GPUs of all nodes."""
        return sum_up(gpu for node in self.nodes for gpu in node.gpus)


def sum_up(gpus: Iterable[GpuView]) -> Sums:
    """Adds up what is held and free on GPUS."""
    count = dict.fromkeys(GpuCondition, 0)
    held = whole = partly = unhealthy = largest = used_bytes = measured = 0
    for gpu in gpus:
        condition = gpu.condition
        count[condition] += 1
        used = min(gpu.used, gpu.slices) * gpu.slice_bytes
        rest = gpu.slices * gpu.slice_bytes - used
        held += used
        if condition is GpuCondition.UNHEALTHY:
            unhealthy += rest
        elif condition is GpuCondition.WHOLE:
            whole += rest
        else:
            partly += rest
            largest = max(largest, rest)
        for holder in gpu.holders:
            if holder.used_bytes is not None:
                used_bytes += holder.used_bytes
                measured += holder.slices * gpu.slice_bytes
    return Sums(
        gpus=sum(count.values()),
        whole=count[GpuCondition.WHOLE],
        partly_used=count[GpuCondition.PARTLY_USED],
        unhealthy=count[GpuCondition.UNHEALTHY],
        held_bytes=held,
        free_whole_bytes=whole,
        free_partly_bytes=partly,
        unhealthy_bytes=unhealthy,
        largest_partly_bytes=largest,
        used_bytes=used_bytes,
        measured_bytes=measured,
    )
