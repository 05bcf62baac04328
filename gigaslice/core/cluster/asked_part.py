# SPDX-License-Identifier: Apache-2.0
"""How much of an assignment counts: what its pod asks for, and no more. Pure.

A ResourceQuota has counted what a pod requests, and an assignment is an annotation. The scheduler's own gives each
container exactly what it asks for; an annotation of somebody else's takes no more of the cluster than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.cluster.names import CLASS_PREFIX
from gigaslice.core.model import Pod, PodContainer, Share

__all__ = ["asked_part"]


def asked_part(
    assignment: Assignment, pod: Pod, classes: Mapping[str, ResourceClass], units: ClusterUnits
) -> Assignment | None:
    """Returns what counts of a pod's assignment; None where nothing does.

    Containers that the pod does not have are left out, and each of the others has its slices, or its whole GPUs: so
    many of the GPUs that its assignment names, the largest shares first.
    """
    kept = {
        container.name: _asked(shares, *_amounts(container, classes, units))
        for container in pod.containers
        if (shares := assignment.containers.get(container.name))
    }
    counted = {name: shares for name, shares in kept.items() if shares}
    return Assignment(counted) if counted else None


def _amounts(
    container: PodContainer, classes: Mapping[str, ResourceClass], units: ClusterUnits
) -> tuple[int, int]:
    """Returns the slices and the whole GPUs that a container asks for: by raw units, else by what its classes are."""
    slices = sum(count for name, count in container.requests.items() if units.is_memory(name))
    whole = container.requests.get(units.gpu_resource, 0)
    if slices or whole:
        return slices, whole
    for name, count in container.requests.items():
        if not name.startswith(CLASS_PREFIX):
            continue
        resource_class = classes.get(name.removeprefix(CLASS_PREFIX))
        share = resource_class.share if resource_class is not None else None
        if share is None or not share.memory_bytes:
            whole += count
        else:
            slices += count * -(-share.memory_bytes // units.slice_bytes)
    return slices, whole


def _asked(shares: Sequence[Share], slices: int, whole: int) -> tuple[Share, ...]:
    if not whole and sum(share.slices for share in shares) <= slices:
        return tuple(shares)  # as a scheduler writes it
    kept = {share.gpu: share for share in sorted(shares, key=lambda share: -share.slices)[:whole]}
    for share in shares:
        if share.gpu in kept:
            continue
        count = min(share.slices, slices)
        slices -= count
        if count:
            kept[share.gpu] = replace(share, slices=count)
    return tuple(kept[share.gpu] for share in shares if share.gpu in kept)
