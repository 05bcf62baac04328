# SPDX-License-Identifier: Apache-2.0
"""Why a pod has no GPUs, or which it has: for people, node by node and GPU by GPU, with what would help. Pure.

Hundreds of nodes give the same reason, so equal ones are one line; and of thousands of nodes only those that come
nearest are looked at GPU by GPU. What else a pod needs (processors, volumes, tolerations) is not looked at.

`Explanation.event` is for an event on the pod. It is made of the fixed sentences of the reasons, so that it stays the
same while other pods come and go, and the API server is not flooded with news that are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from heapq import nsmallest
from operator import attrgetter
from typing import Any

from gigaslice.core.cluster.asked_part import asked_part
from gigaslice.core.cluster.assignment import Assignment, AssignmentError
from gigaslice.core.cluster.demand import PodDemand, asks_for_gpus
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.refusal import Refusal, RefusalReason
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Pod
from gigaslice.core.text import plain, plural
from gigaslice.core.units import format_bytes
from gigaslice.core.views.node_lines import NodeLine, lines_of
from gigaslice.core.views.suggestions import suggestions_for
from gigaslice.core.views.wording import asks_for

__all__ = ["Explanation", "PodSituation", "explain"]

_CLOSELY = 40
"""Nodes of which every GPU is looked at."""
_SEARCHED = 200
"""Nodes that are searched for pods whose end would make room: 0.2 ms for each, and a tenth of a second for all."""
_EVENT_BYTES = 1024
_FITS_BUT = "would fit, but the node takes no pods: it is cordoned or not ready"


class PodSituation(Enum):
    """How things stand with a pod; the value is for programs."""

    NOT_OURS = "not-ours"
    INVALID = "invalid"
    WAITING = "waiting"
    ROOM = "room"
    BOUND = "bound"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of a pod.

    Attributes:
        pod: Namespace and name.
        situation: How things stand.
        summary: One sentence.
        asks: What it asks for, in words.
        lines: Why not, by node, those first that come nearest; or where its GPUs are.
        suggestions: What would help, the least first.
        reasons: How many nodes refuse it, by sentence.
    """

    pod: str
    situation: PodSituation
    summary: str
    asks: str = ""
    lines: tuple[NodeLine, ...] = ()
    suggestions: tuple[str, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """All of it, for a terminal."""
        out = [f"{self.pod}: {self.summary}"]
        out += [f"asks for: {self.asks}"] if self.asks else []
        for line in self.lines:
            out += [f"  {line}", *(f"      {gpu}" for gpu in line.gpus)]
        if self.suggestions:
            out += ["what would help:", *(f"  {suggestion}" for suggestion in self.suggestions)]
        return "\n".join(out)

    def event(self) -> str:
        """One line of at most 1024 bytes, without anything that changes from one moment to the next."""
        if not self.reasons:
            text = self.summary
        else:
            rows = sorted(self.reasons.items(), key=lambda row: (-row[1], row[0]))
            reasons = "; ".join(f"{sentence} ({plural(count, 'node')})" for sentence, count in rows)
            text = f"no node has {self.asks}: {reasons}"
        if len(text.encode()) > _EVENT_BYTES:
            text = text.encode()[: _EVENT_BYTES - 3].decode("utf-8", "ignore") + "…"
        return text

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "pod": self.pod,
            "situation": self.situation.value,
            "summary": self.summary,
            "asks": self.asks,
            "lines": [asdict(line) for line in self.lines],
            "helps": list(self.suggestions),
            "reasons": dict(self.reasons),
        }


def explain(state: ClusterState, pod: Pod, moves: Sequence[str] = ()) -> Explanation:
    """Explains a pod.

    Args:
        state: The cluster.
        pod: The pod.
        moves: What would free whole GPUs, as sentences; told where whole GPUs are what is missing.
    """
    name = plain(str(pod))
    if pod.terminal:
        return Explanation(name, PodSituation.ENDED, "has ended, and holds no GPU")
    if not asks_for_gpus(pod, state.units):
        return Explanation(name, PodSituation.NOT_OURS, "asks for no GPU of gigaslice")
    demand = state.demand_of(pod)
    asks = "" if isinstance(demand, Refusal) else asks_for(demand, state.units)
    if pod.node:
        return _bound(state, pod, asks, demand.text if isinstance(demand, Refusal) else "")
    if isinstance(demand, Refusal):
        return Explanation(name, PodSituation.INVALID, plain(f"no node can serve it: {demand.text}"))
    return _unbound(state, pod, demand, asks, moves)


def _bound(state: ClusterState, pod: Pod, asks: str, mistake: str) -> Explanation:
    """MISTAKE: why no node would take it as it is written now; one that runs was taken before that."""
    running = pod.phase == "Running"
    look = f"kubectl describe pod -n {pod.namespace} {pod.name}: what its node waits for"
    suggestions = (plain(mistake), look) if mistake else (look,)
    summary = (
        f"runs on {pod.node}" if running else f"is bound to {pod.node}, and its containers do not run yet"
    )
    return Explanation(
        plain(str(pod)),
        PodSituation.RUNNING if running else PodSituation.BOUND,
        plain(summary),
        asks,
        tuple(NodeLine(plain(text), 1, (plain(pod.node),)) for text in _held(state, pod)),
        () if running else suggestions,
    )


def _held(state: ClusterState, pod: Pod) -> list[str]:
    """What a bound pod has: by its assignment, or as its agent says."""
    on_node = {gpu_holders.gpu.gpu.uuid: gpu_holders for gpu_holders in state.holders(pod.node)}
    lines = []
    for container, shares in _assignment(state, pod).containers.items():
        for share in shares:
            gpu_holders = on_node.get(share.gpu)
            where = (
                f"GPU{gpu_holders.gpu.gpu.index} {gpu_holders.gpu.gpu.model}"
                if gpu_holders
                else "a GPU that the node does not report"
            )
            size = format_bytes(
                share.slices * (gpu_holders.gpu.gpu.slice_bytes if gpu_holders else state.units.slice_bytes)
            )
            lines.append(f"{size} of {where} ({share.gpu}) for container {container}")
    if lines:
        return lines
    for uuid, gpu_holders in on_node.items():
        gpu = gpu_holders.gpu.gpu
        slices = sum(holder.slices for holder in gpu_holders.holders if pod.uid in holder.holding.uids)
        if slices:
            lines.append(f"{format_bytes(slices * gpu.slice_bytes)} of GPU{gpu.index} {gpu.model} ({uuid})")
    return lines


def _assignment(state: ClusterState, pod: Pod) -> Assignment:
    try:
        written = Assignment.decode(pod.annotations.get(ASSIGNMENT, "{}"))
        return asked_part(written, pod, state.classes, state.units) or Assignment()
    except AssignmentError:
        return Assignment()


def _unbound(
    state: ClusterState, pod: Pod, demand: PodDemand, asks: str, moves: Sequence[str]
) -> Explanation:
    title = plain(str(pod))
    reserved = state.reserved_on(pod.uid)
    if reserved:
        return Explanation(title, PodSituation.ROOM, f"is about to be bound to {plain(reserved)}", asks)
    fitting, refused = state.filter(demand, state.nodes)
    usable = [name for name in fitting if _takes_pods(state, name)]
    if usable:
        return Explanation(
            title,
            PodSituation.ROOM,
            f"fits on {plural(len(usable), 'node')} now, such as {plain(usable[0])}",
            asks,
            suggestions=(
                "kubectl describe pod: what else it needs, such as processors, volumes or tolerations",
            ),
        )
    nearest = _nearest(state, refused)
    shown = [*fitting[:_CLOSELY], *nearest][:_CLOSELY]
    reports = state.report(demand, shown)
    reports.sort(key=lambda report: shown.index(report.node))
    lines = lines_of(reports, demand, state.units)
    rest = Counter(refused[name].text for name in refused.keys() - set(shown))
    rest[_FITS_BUT] += len(fitting[_CLOSELY:])
    lines += [
        NodeLine(f"{sentence} (more of them)", count) for sentence, count in sorted(rest.items()) if count
    ]
    searched = [name for name in nearest if not refused[name].permanent and _takes_pods(state, name)]
    suggestions = suggestions_for(state, demand, reports, searched)
    if any(refusal.reason in (RefusalReason.NO_GPU, RefusalReason.NO_ROOM) for refusal in refused.values()):
        suggestions += [f"moving pods: {move}" for move in moves[:1]]
    reasons = Counter(refusal.text for refusal in refused.values())
    reasons[_FITS_BUT] += len(fitting)
    counts = {sentence: count for sentence, count in reasons.items() if count}
    summary = "waits: no node has what it asks for" if counts else "waits: the cluster has no nodes"
    return Explanation(
        title, PodSituation.WAITING, summary, asks, tuple(lines), tuple(map(plain, suggestions)), counts
    )


def _takes_pods(state: ClusterState, name: str) -> bool:
    facts = state.facts(name)
    return facts is not None and facts.schedulable and facts.ready


def _nearest(state: ClusterState, refused: Mapping[str, Refusal]) -> list[str]:
    """The nodes in the order in which they come near: those where waiting helps, with the most free on one GPU."""

    def key(name: str) -> tuple[bool, int, int, str]:
        refusal = refused[name]
        free = 0 if refusal.permanent else max(map(_free, state.room(name)), default=0)
        return refusal.permanent, -free, -_ORDER[refusal.reason], name

    return nsmallest(_SEARCHED, refused, key)


_free = attrgetter("free")


_ORDER = {reason: number for number, reason in enumerate(RefusalReason)}
