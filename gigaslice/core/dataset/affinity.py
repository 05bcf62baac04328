# SPDX-License-Identifier: Apache-2.0
"""How well a node suits a pod for the datasets that it has. Pure; a preference, never a filter.

Two rules. `paper_score` is the published one (Inspur, Computer Systems & Applications 31(9), section 3.3): as many
points as the pod asks for datasets where the node has all of them, else none. `bytes_share`, the default, counts bytes:
half of a large dataset saves half of its fetch. What a node is fetching counts as present, or the pods of one job would
scatter over the cluster while the first fetch runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gigaslice.core.dataset.eviction import room_for

__all__ = [
    "HeldDataset",
    "NodeDatasets",
    "RequestedDataset",
    "bytes_share",
    "normalised",
    "paper_score",
    "weighed",
]

_EVICTED_WEIGHT = 0.25
"""What deleting a byte of another dataset costs against fetching one: the next pod that asks for it fetches it again,
if there is one."""


_UNUSED_WEIGHT = 0.5
"""What a share counts on a node that nothing uses, see `weighed`."""


@dataclass(frozen=True, slots=True)
class RequestedDataset:
    """A dataset that a pod asks for.

    name: its source, canonical. digest: of its listing; empty where the newest is meant and no node has told it. bytes:
    of its image; 0 where that is not known. update: the pod brings a new version.
    """

    name: str
    digest: str = ""
    bytes: int = 0
    update: bool = False


@dataclass(frozen=True, slots=True)
class HeldDataset:
    """A dataset that a node has, or is fetching."""

    name: str
    digest: str
    bytes: int = 0
    in_use: bool = False
    fetching: bool = False


@dataclass(frozen=True, slots=True)
class NodeDatasets:
    """The cache of a node. free: bytes that a new dataset finds without deleting another."""

    held: tuple[HeldDataset, ...] = ()
    free: int = 0

    def find(self, requested: RequestedDataset) -> HeldDataset | None:
        """The dataset that answers a request: of its name, and of its digest where one is given."""
        for dataset in self.held:
            if dataset.name == requested.name and requested.digest in ("", dataset.digest):
                return dataset
        return None


def paper_score(requested: Sequence[RequestedDataset] | None, node: NodeDatasets | None) -> int:
    """The published score before normalisation.

    Args:
        requested: None where the pod's datasets cannot be parsed.
        node: None where the node's cannot.

    Returns:
        The number of datasets that the pod asks for, where the node has all of them complete and none that the pod is
        about to renew is in use; else 0.
    """
    if not requested or node is None:
        return 0
    for dataset in requested:
        if dataset.update:
            old = next((held for held in node.held if held.name == dataset.name and not held.fetching), None)
            if old is None or old.in_use:
                return 0
        else:
            present = node.find(dataset)
            if present is None or present.fetching:
                return 0
    return len(requested)


def normalised(raw: Mapping[str, int]) -> dict[str, int]:
    """Scores from 0 to 100 by node, the best at 100; all 0 where none has any (DefaultNormalizeScore)."""
    best = max(raw.values(), default=0)
    return {node: 100 * score // best if best > 0 else 0 for node, score in raw.items()}


def bytes_share(requested: Sequence[RequestedDataset], node: NodeDatasets) -> float:
    """The share of a pod's dataset bytes that a node need not fetch, less what it would have to delete for the rest.

    A dataset of unknown size counts as the mean of the others.

    Returns:
        From 0 to 1.
    """
    if not requested:
        return 0.0
    present = [node.find(dataset) for dataset in requested]
    sizes = [
        float(held.bytes if held is not None and held.bytes else dataset.bytes)
        for dataset, held in zip(requested, present, strict=True)
    ]
    known_sizes = [size for size in sizes if size > 0]
    mean = sum(known_sizes) / len(known_sizes) if known_sizes else 1.0
    sizes = [size or mean for size in sizes]
    asked = sum(sizes)
    missing = sum(size for size, held in zip(sizes, present, strict=True) if held is None)
    share = (asked - missing) / asked
    evicted = max(0, room_for(int(missing)) - max(0, node.free)) if missing and known_sizes else 0
    return max(0.0, share - _EVICTED_WEIGHT * min(1.0, evicted / asked))


def weighed(share: float, *, unused: bool) -> float:
    """What a share of `bytes_share` counts for the choice of a node: a half on one that nothing uses.

    A pod that opens such a node for its data takes it from the pods that need all of its GPUs, and they hold back
    others. In the simulation (docs/simulation.md) that was more than a half of what affinity cost in waiting, and hits
    are about the same, since a node that is in use has the data often enough.
    """
    return share * _UNUSED_WEIGHT if unused else share
