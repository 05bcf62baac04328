# SPDX-License-Identifier: Apache-2.0
"""What the nodes of a cluster count in, by their inventories: for those who read a cluster and were not told. Pure.

Agents may give their resources other names, and slices another size. A cluster has one set of both; where nodes differ,
that of the most GPUs is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.cluster.hardware import Hardware
from gigaslice.core.cluster.names import GPU_RESOURCE, MEMORY_RESOURCE

__all__ = ["offered_units"]


def offered_units(nodes: Iterable[Hardware]) -> ClusterUnits:
    """Returns what NODES count in; the usual where none says it."""
    sizes, names, whole = Counter[int](), Counter[str](), Counter[str]()
    for node, count in Counter(nodes).items():  # thousands of nodes are of a few kinds
        for gpu, resource in zip(node.gpus, node.resources, strict=True):
            sizes[gpu.slice_bytes] += count
            for name in _bases(resource):
                names[name] += count
        if node.whole_resource:
            whole[node.whole_resource] += count * len(node.gpus)
    return ClusterUnits(
        max(sizes, key=lambda size: (sizes[size], size), default=ClusterUnits().slice_bytes),
        max(
            names, key=lambda size: (names[size], size == MEMORY_RESOURCE, len(size)), default=MEMORY_RESOURCE
        ),
        max(whole, key=lambda size: (whole[size], size == GPU_RESOURCE, size), default=GPU_RESOURCE),
    )


def _bases(resource: str) -> Iterator[str]:
    """The names of which a resource may be that of a type: "a.com/x.y" itself, and "a.com/x"."""
    domain, _, name = resource.partition("/")
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield f"{domain}/{'.'.join(parts[:end])}"
