# SPDX-License-Identifier: Apache-2.0
"""The cluster as tables for a terminal: nodes with their GPUs, and who holds how much."""

from __future__ import annotations

from collections.abc import Sequence

from gigaslice.core.text import plain
from gigaslice.core.units import format_bytes
from gigaslice.core.views.cluster_picture import ClusterPicture
from gigaslice.core.views.svg import short_model, summary
from gigaslice.core.views.totals import NamespaceTotals
from gigaslice.runtime.table import Column, as_table

__all__ = ["namespaces_table", "nodes_table", "pods_table"]

_NODES = (
    Column("NODE", most=40),
    Column("GPU", right=True),
    Column("MODEL", most=24),
    Column("FREE", right=True),
    Column("OF", right=True),
    Column("HELD BY", most=60),
    Column("HEALTH", most=50, style=lambda cell: "" if cell in ("healthy", "-") else "bad"),
)
_WIDE = (Column("UUID"), Column("NUMA", right=True))
_NAMESPACES = (
    Column("NAMESPACE", most=40),
    Column("PODS", right=True),
    Column("MEMORY", right=True),
    Column("GPUS", right=True),
)
_PODS = (
    Column("NAMESPACE", most=40),
    Column("POD", most=50),
    Column("NODE", most=40),
    Column("MEMORY", right=True),
    Column("GPUS", right=True),
    Column("MODELS", most=30),
)


def nodes_table(view: ClusterPicture, *, wide: bool = False) -> str:
    """A row for each GPU, one for each node without any, and a line with the sums. WIDE: more columns, no cell cut."""
    rows: list[list[str]] = []
    for node in view.nodes:
        why = ", ".join(node.conditions)
        for gpu in node.gpus:
            size = gpu.slice_bytes
            held = ", ".join(f"{holder} {format_bytes(holder.slices * size)}" for holder in gpu.holders)
            health = "; ".join(filter(None, [gpu.unhealthy, why])) or "healthy"
            cells = [node.name, str(gpu.index), short_model(gpu.model), format_bytes(gpu.free * size)]
            more = [plain(gpu.uuid), "-" if gpu.numa is None else str(gpu.numa)] if wide else []
            rows.append(
                [
                    *map(plain, cells),
                    format_bytes(gpu.slices * size),
                    plain(held or "-"),
                    plain(health),
                    *more,
                ]
            )
        if not node.gpus and node.problem:
            rows.append(
                [plain(node.name), "-", "-", "-", "-", "-", plain(why), *(("-", "-") if wide else ())]
            )
    columns = (*_NODES, *_WIDE) if wide else _NODES
    return f"{as_table(columns, rows, whole=wide or None)}\n\n{summary(view.sums())}"


def namespaces_table(spaces: Sequence[NamespaceTotals], *, wide: bool = False) -> str:
    """A row for each namespace, the largest first. WIDE: no cell is cut."""
    rows = [
        [
            plain(space.namespace or "(unknown)"),
            str(len(space.pods)),
            format_bytes(space.size),
            str(space.gpus),
        ]
        for space in spaces
    ]
    return as_table(_NAMESPACES, rows, whole=wide or None)


def pods_table(spaces: Sequence[NamespaceTotals], *, wide: bool = False) -> str:
    """A row for each pod, the largest first. WIDE: no cell is cut."""
    pods = sorted(
        (pod for space in spaces for pod in space.pods), key=lambda pod: (-pod.size, pod.namespace, pod.pod)
    )
    rows = [
        [
            plain(pod.namespace or "(unknown)"),
            plain(pod.pod),
            plain(pod.node),
            format_bytes(pod.size),
            str(pod.gpus),
            plain(", ".join(map(short_model, pod.models))),
        ]
        for pod in pods
    ]
    return as_table(_PODS, rows, whole=wide or None)
