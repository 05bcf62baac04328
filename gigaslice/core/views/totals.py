# SPDX-License-Identifier: Apache-2.0
"""Who holds how much: GPU memory added up by pod and by namespace, the largest first."""

from __future__ import annotations

from dataclasses import dataclass, field

from gigaslice.core.views.cluster_picture import ClusterPicture

__all__ = ["NamespaceTotals", "PodTotals", "totals"]


@dataclass(slots=True)
class PodTotals:
    """What one pod holds. gpus: GPUs it has a part of; whole: those that it has all of. used: bytes of it that are in
    use; None where that was not measured.
    """

    namespace: str
    pod: str
    node: str
    models: tuple[str, ...] = ()
    size: int = 0
    gpus: int = 0
    whole: int = 0
    used: int | None = None


@dataclass(slots=True)
class NamespaceTotals:
    """What the pods of one namespace hold, with the pods, the largest first. used: of those that were measured."""

    namespace: str
    size: int = 0
    gpus: int = 0
    used: int | None = None
    pods: list[PodTotals] = field(default_factory=list)


def totals(view: ClusterPicture) -> list[NamespaceTotals]:
    """Adds up the cluster. A GPU that two pods of a namespace share counts once for each of the pods."""
    pods: dict[tuple[str, str, str], PodTotals] = {}
    for node in view.nodes:
        for gpu in node.gpus:
            for holder in gpu.holders:
                key = (holder.namespace, holder.pod, node.name)
                pod_totals = pods.setdefault(key, PodTotals(holder.namespace, holder.pod, node.name))
                pod_totals.size += holder.slices * gpu.slice_bytes
                pod_totals.gpus += 1
                pod_totals.whole += holder.slices >= gpu.slices
                pod_totals.used = _plus(pod_totals.used, holder.used_bytes)
                if gpu.model not in pod_totals.models:
                    pod_totals.models = (*pod_totals.models, gpu.model)
    spaces: dict[str, NamespaceTotals] = {}
    for pod_totals in sorted(pods.values(), key=lambda pod: (-pod.size, pod.namespace, pod.pod, pod.node)):
        space = spaces.setdefault(pod_totals.namespace, NamespaceTotals(pod_totals.namespace))
        space.size += pod_totals.size
        space.gpus += pod_totals.gpus
        space.used = _plus(space.used, pod_totals.used)
        space.pods.append(pod_totals)
    return sorted(spaces.values(), key=lambda space: (-space.size, space.namespace))


def _plus(sum_before: int | None, size: int | None) -> int | None:
    """The sum of what was measured; None where nothing was."""
    if size is None:
        return sum_before
    return size + (sum_before or 0)
