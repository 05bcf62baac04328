# SPDX-License-Identifier: Apache-2.0
"""What one line says of nodes that are alike to a pod: "node-a: 6 + 6 GiB free, 8 wanted on one GPU". Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gigaslice.core.cluster.demand import ClusterUnits, PodDemand
from gigaslice.core.cluster.refusal import GpuReport, NodeReport, RefusalReason
from gigaslice.core.text import plain, plural
from gigaslice.core.units import format_bytes
from gigaslice.core.views.svg import models, short_model
from gigaslice.core.views.wording import largest_part

__all__ = ["NodeLine", "lines_of"]

_NAMES = 4  # of nodes, in one line
_MISMATCHES = ("not of class", "not allowed", "offered as", "has ")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class NodeLine:
    """What holds for some nodes alike. nodes: some of them by name. gpus: GPU by GPU, where it is one node."""

    text: str
    count: int
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        if len(self.nodes) == self.count:
            return f"{', '.join(self.nodes)}: {self.text}"
        named = f" ({', '.join(self.nodes)}, …)" if self.nodes else ""
        return f"{plural(self.count, 'node')}{named}: {self.text}"


def lines_of(reports: Sequence[NodeReport], demand: PodDemand, units: ClusterUnits) -> list[NodeLine]:
    """One line for each text, in the order in which they come first; a single node has its GPUs below it."""
    groups: dict[str, list[NodeReport]] = {}
    for report in reports:
        groups.setdefault(_text(report, demand, units), []).append(report)
    return [
        NodeLine(
            text,
            len(group),
            tuple(plain(report.node) for report in group[:_NAMES]),
            _gpus(group[0], units) if len(group) == 1 else (),
        )
        for text, group in groups.items()
    ]


def matches(gpu: GpuReport) -> bool:
    """Whether a GPU could ever serve the pod."""
    return not gpu.refusal_reason.startswith(_MISMATCHES)


def _text(report: NodeReport, demand: PodDemand, units: ClusterUnits) -> str:
    away = [] if report.schedulable else ["cordoned"]
    away += [] if report.ready else ["not ready"]
    if report.refusal is None:
        return f"would fit, but is {' and '.join(away)}" if away else "fits"
    return plain(", ".join([_why(report, demand, units), *away]))


def _why(report: NodeReport, demand: PodDemand, units: ClusterUnits) -> str:
    refusal = report.refusal
    if refusal is None:
        return ""
    gpus = [gpu for gpu in report.gpus if matches(gpu)]
    if refusal.reason is RefusalReason.NO_ROOM and gpus:
        part = largest_part(demand)  # one GPU must have it: of several it would be another reason
        free = _sizes([gpu.free for gpu in gpus if not _is_unhealthy(gpu)], units)
        return f"{free} free, {_wanted(report.wanted or ((1, part),), units)}" if part else f"{free} free"
    if refusal.reason is RefusalReason.NO_GPU and gpus:
        good = sum(not gpu.refusal_reason for gpu in gpus)
        return (
            f"{good} of {plural(len(gpus), 'GPU')} would do now, more wanted"
            if good
            else "all GPUs are in use"
        )
    if refusal.reason is RefusalReason.UNHEALTHY:
        unhealthy = [f"GPU{gpu.index} {gpu.refusal_reason}" for gpu in gpus if _is_unhealthy(gpu)]
        return f"unhealthy: {'; '.join(unhealthy)}" if unhealthy else refusal.text
    if refusal.reason in (RefusalReason.NO_CLASS, RefusalReason.NO_MATCH) and report.gpus:
        return f"{refusal.text}; it has {models(gpu.model for gpu in report.gpus)}"
    return refusal.text


def _wanted(ways: Sequence[tuple[int, int]], units: ClusterUnits) -> str:
    """The numbers of GPUs, and slices of each, of which one would do: "30 wanted on one GPU, or 15 on each of 2"."""
    sizes = [format_bytes(slices * units.slice_bytes).removesuffix(" GiB") for _, slices in ways]
    texts = [
        f"{size} on each of {gpus}" if gpus > 1 else f"{size} wanted on one GPU"
        for (gpus, _), size in zip(ways, sizes, strict=True)
    ]
    return ", or ".join(texts)


def _is_unhealthy(gpu: GpuReport) -> bool:
    """Whether it says why no pod gets it, rather than why this one does not."""
    return (
        bool(gpu.refusal_reason)
        and " asked for" not in gpu.refusal_reason
        and not gpu.refusal_reason.startswith("in use")
    )


def _sizes(slices: Sequence[int], units: ClusterUnits) -> str:
    """Free slices as sizes: "6 + 6 GiB", of many GPUs the largest ones."""
    largest_first = sorted(slices, reverse=True)
    if not largest_first:
        return "nothing"
    shown = [free for free in largest_first if free][:8] or largest_first[:1]
    if units.slice_bytes % _GIB:
        text = " + ".join(format_bytes(free * units.slice_bytes) for free in shown)
    else:
        text = " + ".join(str(free * units.slice_bytes // _GIB) for free in shown) + " GiB"
    return text + (" + less" if len([free for free in largest_first if free]) > len(shown) else "")


def _gpus(report: NodeReport, units: ClusterUnits) -> tuple[str, ...]:
    return tuple(
        plain(
            f"GPU{gpu.index} {short_model(gpu.model)}, {format_bytes(gpu.free * units.slice_bytes)} of "
            f"{format_bytes(gpu.slices * units.slice_bytes)} free: {gpu.refusal_reason or 'would do'}"
        )
        for gpu in report.gpus
    )
