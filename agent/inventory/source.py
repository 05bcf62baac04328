# SPDX-License-Identifier: Apache-2.0
"""The inventory of GPUs, the interface of what it is read from, and how two scans in a row are joined.

A GPU that disappears (fallen off the bus, lost to the driver) must not vanish from the node: containers hold slices
of it, and the kubelet would forget them. It stays as an unhealthy GPU until it is back. `nvml` and
`static` read hardware and files; this module has values, a Protocol and one pure function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gigaslice.core.model import Gpu, Topology

__all__ = ["GpuEvent", "Inventory", "Source", "Vitals", "merge"]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of the node; row i of `topology` belongs to the i-th GPU. warnings: sentences for the log.

    unhealthy: the reason for each GPU that is not healthy, where it is known. cordoned: GPUs that are unhealthy only
    because of a cordon: what runs on them goes on. properties: what else is known of each GPU, for selectors: see
    `gigaslice.core.cluster.inventory`.
    """

    gpus: tuple[Gpu, ...]
    topology: Topology
    warnings: tuple[str, ...] = ()
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    cordoned: frozenset[str] = frozenset()
    properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def uuids(self) -> tuple[str, ...]:
        """Names of the GPUs, in order."""
        return tuple(gpu.uuid for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """An error of a GPU. gpu: its UUID, empty where the driver does not name it. xid: None for a memory error."""

    gpu: str
    xid: int | None


@dataclass(frozen=True, slots=True)
class Vitals:
    """The vital signs of a GPU. uncorrectable: memory errors since its last reset, None where it does not count.

    recovery: the action that the driver asks for, in words; empty: none. silent: why the driver does not answer for
    this GPU, which need not be lost; the other fields then have no meaning.
    """

    lost: bool = False
    uncorrectable: int | None = None
    remap_failed: bool = False
    recovery: str = ""
    silent: str = ""


class Source(Protocol):
    """Where GPUs come from. Methods may block for as long as a driver takes and are called outside the event loop."""

    def scan(self) -> Inventory:
        """Reads the hardware. Raises MissingError or InventoryError where there is none."""
        ...

    def process_memory(self) -> Mapping[str, Mapping[int, int]] | None:
        """Bytes each process holds on each GPU (UUID -> host PID -> bytes), or None where it is not measured."""
        ...

    def process_busy(self, gpu: str) -> Mapping[int, float] | None:
        """Part of a GPU's time that each process had in the last second or so, by host PID; None where unknown."""
        ...

    def events(self, seconds: float) -> tuple[GpuEvent, ...] | None:
        """Waits up to SECONDS for errors of the GPUs, in a thread of its own; None where none are reported."""
        ...

    def vitals(self) -> Mapping[str, Vitals] | None:
        """The vital signs of every GPU that was ever found, by UUID; None where there are none.

        Raises MissingError when this process can never have an answer again.
        """
        ...

    def close(self) -> None:
        """Releases what the source holds. It is not used afterwards."""
        ...


def merge(before: Inventory, now: Inventory) -> Inventory:
    """The inventory after BEFORE when a new scan has found NOW.

    GPUs that are gone stay, unhealthy, with their old place in the topology. GPUs that are new are added only when
    none is gone: with both at once no common topology is known.
    """
    present = {gpu.uuid: gpu for gpu in now.gpus}
    gone = [uuid for uuid in before.uuids if uuid not in present]
    properties = {  # a driver that does not answer for a moment takes none away
        uuid: {**before.properties.get(uuid, {}), **now.properties.get(uuid, {})}
        for uuid in (*before.properties, *now.properties)
    }
    if not gone:
        return now if properties == now.properties else replace(now, properties=properties)
    gpus = tuple(
        replace(present[gpu.uuid], index=gpu.index) if gpu.uuid in present else replace(gpu, healthy=False)
        for gpu in before.gpus
    )
    lost = tuple(f"{uuid} is no longer there; its slices are unhealthy until it is back" for uuid in gone)
    new = tuple(
        f"{uuid} is new and is used as soon as the missing GPUs are back, or after a restart of the agent"
        for uuid in now.uuids
        if uuid not in before.uuids
    )
    return Inventory(gpus, before.topology, now.warnings + lost + new, properties=properties)
