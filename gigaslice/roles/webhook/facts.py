# SPDX-License-Identifier: Apache-2.0
"""What admission decides by: the classes, what the nodes have, and the names that are in use. Pure.

Made anew by the controller when classes or inventories change, and handed out unchanged until then: what is derived
from it is derived once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.cluster.inventory import InventoryGpu, NodeInventory
from gigaslice.core.cluster.names import SCHEDULER_NAME

__all__ = ["AdmissionFacts"]

_RDMA = "gigaslice.io/rdma"
"""Adapters, by the name that the agents' documentation gives them; inventories do not have them."""


@dataclass(frozen=True)
class AdmissionFacts:
    """What is known of the cluster.

    Attributes:
        classes: By name.
        nodes: The inventories by the nodes' names, whatever state the nodes are in: a drained node comes back.
        resources: Names of ours that nodes offer beside those of the inventories.
        units: What pods count in.
        scheduler: schedulerName of the pods that ask for classes.
        nodes_may_come: Whether a larger node may be added at any time: what no node has is then only warned about.
        synced: False until classes and nodes have been read once; nothing may be decided before.
    """

    classes: Mapping[str, ResourceClass] = field(default_factory=dict)
    nodes: Mapping[str, NodeInventory] = field(default_factory=dict)
    resources: frozenset[str] = frozenset()
    units: ClusterUnits = field(default_factory=ClusterUnits)
    scheduler: str = SCHEDULER_NAME
    nodes_may_come: bool = False
    synced: bool = True

    def slices(self, size: int) -> int:
        """Returns how many slices hold so many bytes."""
        return -(-size // self.units.slice_bytes)

    @cached_property
    def gpu_names(self) -> frozenset[str]:
        """The resources by which GPUs are counted."""
        offered = {gpu.resource for node in self.nodes.values() for gpu in node.gpus}
        whole = {node.whole_resource for node in self.nodes.values() if node.whole_resource}
        return frozenset({*offered, *whole, self.units.memory_resource, self.units.gpu_resource})

    @cached_property
    def names(self) -> frozenset[str]:
        """The resources of ours that a container may ask for, without the classes."""
        return self.gpu_names | self.resources | {_RDMA}

    def counts_gpus(self, resource: str) -> bool:
        """Whether GPUs are counted by a resource."""
        return resource in self.gpu_names or self.units.is_memory(resource)

    def most_of_class(self, name: str, slices: int) -> int:
        """Returns how many GPUs of a class one node has at most, of those with so many slices or more."""
        most = self._most_of_class.get((name, slices))
        if most is None:
            matches = self.classes[name].matches
            most = self._most(
                lambda node, gpu: int(gpu.gpu.slices >= slices and matches(gpu.all_properties(node)))
            )
            self._most_of_class[name, slices] = most
        return most

    def most_slices(self, resource: str) -> int:
        """Returns how many slices of a resource one node has at most."""
        most = self._most_slices.get(resource)
        if most is None and resource in self.names:
            most = self._most(lambda _, gpu: gpu.gpu.slices if gpu.resource == resource else 0)
            self._most_slices[resource] = most
        return most or 0

    @cached_property
    def most_gpus(self) -> int:
        """How many GPUs one node has at most."""
        return self._most(lambda *_: 1)

    @cached_property
    def largest_gpu(self) -> int:
        """Slices of the largest GPU."""
        return max((gpu.gpu.slices for _, gpu in self._gpus()), default=0)

    @cached_property
    def _most_slices(self) -> dict[str, int]:
        return {}

    @cached_property
    def _most_of_class(self) -> dict[tuple[str, int], int]:
        return {}

    def _gpus(self) -> Iterator[tuple[str, InventoryGpu]]:
        return ((name, gpu) for name, node in self.nodes.items() for gpu in node.gpus)

    def _most(self, count: Callable[[str, InventoryGpu], int]) -> int:
        return max(
            (sum(count(name, gpu) for gpu in node.gpus) for name, node in self.nodes.items()), default=0
        )
