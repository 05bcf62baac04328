# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node without their names, and what is left on them: what a decision depends on. Pure.

A cluster has thousands of nodes and a handful of kinds of them. GPUs are numbers here, by index, so that what has been
found out for one node holds for every other one with the same hardware and the same room. A set of GPUs is a bit mask.

A GPU with lent host memory is two sizes at once: containers that may use host memory see all slices, the others those
of its own memory (see `gigaslice.core.allocation.host_memory`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple
from weakref import WeakValueDictionary

from gigaslice.core.allocation.host_memory import least_physical, own_view, physical_share
from gigaslice.core.model import CORES_PER_GPU, Gpu, NodeState, Occupant, Share, Topology

__all__ = ["NOTHING", "GpuRoom", "Hardware", "HardwareKinds", "NodeKind", "NodeRoom", "Taken"]


class GpuRoom(NamedTuple):
    """What one GPU has left, for one pod.

    Attributes:
        free: Slices, with lent host memory. None on a GPU that is unhealthy or another pod's alone.
        own_free: Slices of its own memory.
        cores: Compute share in per cent.
        foreign: Other pods hold some of it.
        own: Containers of this pod hold some of it.
    """

    free: int
    own_free: int
    cores: int
    foreign: bool = False
    own: bool = False


NodeRoom = tuple[GpuRoom, ...]
"""One GpuRoom per GPU."""

NOTHING = GpuRoom(0, 0, 0, foreign=True)


class Taken(NamedTuple):
    """What a container takes of one GPU, given by its number."""

    gpu: int
    slices: int
    cores: int


@dataclass(frozen=True, eq=False)
class Hardware:
    """One kind of node. Equal kinds are one object (see `HardwareKinds`), so it is compared by identity.

    Attributes:
        gpus: By index, with their number as UUID.
        own: The same with the slices of their own memory alone.
        topology: One row per GPU.
        resources: The resource that each GPU's slices are requested by.
        whole_resource: The resource that whole GPUs are requested by; empty where there is none.
    """

    gpus: tuple[Gpu, ...]
    own: tuple[Gpu, ...]
    topology: Topology
    resources: tuple[str, ...]
    whole_resource: str

    @classmethod
    def of(
        cls, gpus: Sequence[Gpu], topology: Topology, resources: Sequence[str], whole_resource: str
    ) -> Hardware:
        """Returns the hardware of GPUs given by index."""
        plain = tuple(
            replace(gpu, uuid=str(number), index=number, pci_bus_id="", numa_node=None, healthy=True)
            for number, gpu in enumerate(gpus)
        )
        return cls(plain, own_view(plain), topology, tuple(resources), whole_resource)

    @property
    def all_gpus(self) -> int:
        """The set of all GPUs."""
        return (1 << len(self.gpus)) - 1

    @cached_property
    def one_pool(self) -> int:
        """The size of its GPUs where all of them are of one pool; 0 where they are not."""
        pools = NodeState(self.gpus, self.topology).pools()
        return pools[0].slices if len(pools) == 1 else 0

    @cached_property
    def lends(self) -> bool:
        """Whether any GPU has host memory lent to it."""
        return any(gpu.host_bytes for gpu in self.gpus)

    def view(self, host: bool) -> tuple[Gpu, ...]:
        """Returns the GPUs as a container sees them that may use host memory, or not."""
        return self.gpus if host else self.own

    def idle(self) -> NodeRoom:
        """Returns the room of a node without holders."""
        return tuple(
            GpuRoom(gpu.slices, own.slices, CORES_PER_GPU)
            for gpu, own in zip(self.gpus, self.own, strict=True)
        )

    def free(self, room: GpuRoom, gpu: int, host: bool, memory_bytes: int = 0) -> int:
        """Returns the slices that a container can have of a GPU. memory_bytes: what it asks for in all."""
        if not self.gpus[gpu].host_bytes:
            return room.free
        if not host:
            return max(0, min(room.free, room.own_free))
        slice_bytes = self.gpus[gpu].slice_bytes
        return room.free if room.own_free * slice_bytes >= least_physical(memory_bytes) else 0

    def real_slices(self, gpu: int, slices: int, host: bool) -> int:
        """Returns how many of so many slices of a GPU are its own memory, rounded up."""
        device = self.gpus[gpu]
        if not device.host_bytes or not host:
            return slices
        own, size = device.own_slices * device.slice_bytes, device.slice_bytes
        real = physical_share(slices * size, own, device.slices * size - own)
        return min(slices, -(-real // size))

    def state(self, room: NodeRoom, host: bool, memory_bytes: int = 0) -> NodeState:
        """Returns the node for placement, as a container sees it."""
        occupants = []
        for gpu, left in enumerate(room):
            size = (self.gpus if host else self.own)[gpu].slices
            used = size - self.free(left, gpu, host, memory_bytes)
            if used or left.foreign or left.own:
                occupants.append(Occupant(str(gpu), (Share(str(gpu), used, CORES_PER_GPU - left.cores),)))
        return NodeState(self.view(host), self.topology, tuple(occupants))


@dataclass(frozen=True, eq=False)
class NodeKind:
    """Nodes that no request tells apart unless it names a node or a GPU. Equal kinds are one object.

    Attributes:
        hardware: Their GPUs.
        of_class: The set of their GPUs in each class that has been looked at.
    """

    hardware: Hardware
    of_class: dict[str, int] = field(default_factory=dict)


class HardwareKinds:
    """The kinds of nodes that there are, each once."""

    def __init__(self) -> None:
        self._kinds: WeakValueDictionary[object, Hardware] = WeakValueDictionary()
        self._alike: WeakValueDictionary[object, NodeKind] = WeakValueDictionary()

    def alike(
        self, hardware: Hardware, properties: Sequence[Mapping[str, str]], numa: Sequence[int | None]
    ) -> NodeKind:
        """Returns the kind of node with this hardware, and per GPU these properties and this NUMA node."""
        key = (hardware, tuple(tuple(sorted(row.items())) for row in properties), tuple(numa))
        kind = self._alike.get(key)
        if kind is None:
            kind = self._alike[key] = NodeKind(hardware)
        return kind

    def forget_class(self, name: str) -> None:
        """Forgets which GPUs are of a class, on all kinds of nodes that anything still refers to."""
        for kind in list(self._alike.values()):
            kind.of_class.pop(name, None)

    def kind(
        self, gpus: Sequence[Gpu], topology: Topology, resources: Sequence[str], whole_resource: str
    ) -> Hardware:
        """Returns the hardware of GPUs given by index: the same object for the same kind."""
        sizes = tuple(
            (gpu.model, gpu.memory_bytes, gpu.slices, gpu.slice_bytes, gpu.host_bytes) for gpu in gpus
        )
        key = (sizes, topology, tuple(resources), whole_resource)
        hardware = self._kinds.get(key)
        if hardware is None:
            hardware = self._kinds[key] = Hardware.of(gpus, topology, resources, whole_resource)
        return hardware
