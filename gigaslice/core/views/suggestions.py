# SPDX-License-Identifier: Apache-2.0
"""What would get a waiting pod its GPUs: each answer has been tried on the cluster's state. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gigaslice.core.cluster.demand import ContainerDemand, PodDemand
from gigaslice.core.cluster.ending_pods import EndingPods, ending_pods
from gigaslice.core.cluster.refusal import NodeReport, RefusalReason
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.text import plural
from gigaslice.core.units import format_bytes
from gigaslice.core.views.node_lines import matches
from gigaslice.core.views.wording import largest_part

__all__ = ["suggestions_for"]

_SAID = 3  # of one kind


def suggestions_for(
    state: ClusterState, demand: PodDemand, reports: Sequence[NodeReport], searched: Sequence[str]
) -> list[str]:
    """Returns sentences for a pod that fits no node.

    Args:
        state: The cluster.
        demand: What the pod asks for.
        reports: Of the nodes that come nearest.
        searched: The nodes that take pods and on which it would fit if there were room, as far as they are searched for
            pods whose end would make room.
    """
    suggestions = [
        *_nodes(reports),
        *_less(state, demand, reports),
        *_pods(state, demand, searched),
        *_healing(reports),
    ]
    if suggestions:
        return suggestions
    general_advice = dict.fromkeys(report.would_help for report in reports if report.would_help)
    return list(general_advice)[:_SAID]


def _nodes(reports: Sequence[NodeReport]) -> list[str]:
    """Nodes on which it would fit, but for the node."""
    cordoned = [report.node for report in reports if report.refusal is None and report.ready]
    suggestions = [f"kubectl uncordon {name}: it would fit there" for name in cordoned[:_SAID]]
    down = [report.node for report in reports if report.refusal is None and not report.ready]
    return suggestions + [f"node {name} becoming ready: it would fit there" for name in down[:_SAID]]


def _less(state: ClusterState, demand: PodDemand, reports: Sequence[NodeReport]) -> list[str]:
    """The most that one GPU has, for a pod whose one container asks for slices of one GPU."""
    if len(demand.containers) != 1 or not (asked := largest_part(demand)):
        return []
    container = demand.containers[0]
    if container.classes or container.options.parts or (container.options.gpus or 1) > 1:
        return []
    best: tuple[int, str] | None = None
    for report in reports:
        if report.refusal is None or report.refusal.reason not in (
            RefusalReason.NO_ROOM,
            RefusalReason.TOO_SMALL,
        ):
            continue
        if report.schedulable and report.ready:
            most = max((min(gpu.free, asked - 1) for gpu in report.gpus if matches(gpu)), default=0)
            if most and (best is None or most > best[0]) and _fits(state, container, most, report.node):
                best = (most, report.node)
    if best is None:
        return []
    size = format_bytes(best[0] * state.units.slice_bytes)
    return [f"asking for {size} or less: {best[1]} has that on one GPU"]


def _fits(state: ClusterState, container: ContainerDemand, slices: int, node: str) -> bool:
    return state.refusal(PodDemand((replace(container, slices=slices),)), node) is None


def _pods(state: ClusterState, demand: PodDemand, nodes: Sequence[str]) -> list[str]:
    """Pods whose end would make room, one set for each node, the fewest pods first."""
    return [_ending(state, ending) for ending in ending_pods(state, demand, nodes, most=_SAID)]


def _ending(state: ClusterState, ending: EndingPods) -> str:
    held = [
        " and ".join(
            f"{format_bytes(slices * state.units.slice_bytes)} of GPU{gpu}" for gpu, slices in pod.shares
        )
        for pod in ending.pods
    ]
    if len(ending.pods) == 1:
        return f"pod {ending.pods[0].name} ending: it has {held[0]} of {ending.node}"
    named = ", ".join(f"{pod.name} ({what})" for pod, what in zip(ending.pods, held, strict=True))
    return f"these {len(ending.pods)} pods of {ending.node} ending: {named}"


def _healing(reports: Sequence[NodeReport]) -> list[str]:
    nodes = [
        report.node
        for report in reports
        if report.refusal is not None and report.refusal.reason is RefusalReason.UNHEALTHY
    ]
    if not nodes:
        return []
    named = ", ".join(nodes[:_SAID])
    more = f" and {plural(len(nodes) - _SAID, 'more node')}" if len(nodes) > _SAID else ""
    return [f"GPUs that recover, or gigaslice uncordon for those that were cordoned, on {named}{more}"]
