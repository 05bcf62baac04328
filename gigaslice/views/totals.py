"""Who holds how much: GPU memory added up by pod and by namespace, the largest first."""

from __future__ import annotations

from dataclasses import dataclass, field

from gigaslice.views.cluster_picture import ClusterPicture

__all__ = ["NamespaceTotals", "PodTotals", "totals"]


@dataclass(slots=True)
class PodTotals:
    """What one pod holds. gpus: GPUs it has a part of; whole: those that it has all of."""

    namespace: str
    pod: str
    node: str
    models: tuple[str, ...] = ()
    size: int = 0
    gpus: int = 0
    whole: int = 0


@dataclass(slots=True)
class NamespaceTotals:
    """What the pods of one namespace hold, with the pods, the largest first."""

    namespace: str
    size: int = 0
    gpus: int = 0
    pods: list[PodTotals] = field(default_factory=list)


def totals(view: ClusterPicture) -> list[NamespaceTotals]:
    """Adds up the cluster. A GPU that two pods of a namespace share counts once for each of the pods."""
    pods: dict[tuple[str, str, str], PodTotals] = {}
    for node in view.nodes:
        for gpu in node.gpus:
            for holder in gpu.holders:
                key = (holder.namespace, holder.pod, node.name)
                one = pods.setdefault(key, PodTotals(holder.namespace, holder.pod, node.name))
                one.size += holder.slices * gpu.slice_bytes
                one.gpus += 1
                one.whole += holder.slices >= gpu.slices
                if gpu.model not in one.models:
                    one.models = (*one.models, gpu.model)
    spaces: dict[str, NamespaceTotals] = {}
    for one in sorted(pods.values(), key=lambda pod: (-pod.size, pod.namespace, pod.pod, pod.node)):
        space = spaces.setdefault(one.namespace, NamespaceTotals(one.namespace))
        space.size += one.size
        space.gpus += one.gpus
        space.pods.append(one)
    return sorted(spaces.values(), key=lambda space: (-space.size, space.namespace))
