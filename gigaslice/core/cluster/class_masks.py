# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a node are of a class. Pure.

Nodes of a kind have the same answer, so it is kept per kind, unless the class names a node or a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.cluster.node_record import NodeRecord

__all__ = ["ClassMasks"]


class ClassMasks:
    """The GPUs of the classes that there are."""

    def __init__(self, classes: Mapping[str, ResourceClass]) -> None:
        self._classes = classes

    def same_on_kind(self, name: str) -> bool:
        """Whether a class has the same GPUs on all nodes of a kind."""
        resource_class = self._classes.get(name)
        return resource_class is None or not resource_class.selector.keys & {"uuid", "node"}

    def mask(self, record: NodeRecord, name: str) -> int:
        """Returns the set of a node's GPUs that are of a class."""
        if record.kind is None:
            return 0
        masks = record.kind.of_class if self.same_on_kind(name) else record.masks
        mask = masks.get(name)
        if mask is None:
            resource_class = self._classes.get(name)
            mask = masks[name] = sum(
                1 << number
                for number, gpu in enumerate(record.gpus)
                if resource_class is not None
                and resource_class.matches(gpu.all_properties(record.facts.name))
            )
        return mask
