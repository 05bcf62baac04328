# SPDX-License-Identifier: Apache-2.0
"""The picture of a cluster for programs: plain values under names in the way of the Kubernetes API. Pure."""

from __future__ import annotations

from typing import Any

from gigaslice.core.views.cluster_picture import ClusterPicture, GpuView, NodeView
from gigaslice.core.views.totals import NamespaceTotals

__all__ = ["cluster_document", "totals_document"]


def cluster_document(view: ClusterPicture) -> dict[str, Any]:
    """All nodes with their GPUs, and what that adds up to."""
    sums = view.sums()
    document: dict[str, Any] = {
        "gpus": sums.gpus,
        "wholeGpusFree": sums.whole,
        "unhealthyGpus": sums.unhealthy,
        "heldBytes": sums.held_bytes,
        "freeBytes": sums.free_bytes,
        "totalBytes": sums.total_bytes,
        "fragmentation": round(sums.fragmentation, 4),
        "nodes": [_node(node) for node in view.nodes],
    }
    return {**document, "note": view.note} if view.note else document


def totals_document(spaces: list[NamespaceTotals]) -> dict[str, Any]:
    """Who holds how much."""
    return {
        "namespaces": [
            {
                "namespace": space.namespace,
                "bytes": space.size,
                "gpus": space.gpus,
                "pods": [
                    {
                        "pod": pod.pod,
                        "node": pod.node,
                        "bytes": pod.size,
                        "gpus": pod.gpus,
                        "wholeGpus": pod.whole,
                        "models": list(pod.models),
                    }
                    for pod in space.pods
                ],
            }
            for space in spaces
        ]
    }


def _node(node: NodeView) -> dict[str, Any]:
    return {
        "name": node.name,
        "schedulable": node.schedulable,
        "ready": node.ready,
        **({"problem": node.problem} if node.problem else {}),
        "gpus": [_gpu(gpu) for gpu in node.gpus],
    }


def _gpu(gpu: GpuView) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "slices": gpu.slices,
        "sliceBytes": gpu.slice_bytes,
        "freeSlices": gpu.free,
        "condition": gpu.condition.value,
        **({"unhealthy": gpu.unhealthy} if gpu.unhealthy else {}),
        **({"numa": gpu.numa} if gpu.numa is not None else {}),
        "holders": [
            {"namespace": holder.namespace, "pod": holder.pod, "slices": holder.slices, "cores": holder.cores}
            for holder in gpu.holders
        ],
    }
