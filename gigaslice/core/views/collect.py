# SPDX-License-Identifier: Apache-2.0
"""The cluster's state as a picture of it: what tables, drawings and the page show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.classes.selector import Operator, Requirement
from gigaslice.core.cluster.defragment import Steps, finished
from gigaslice.core.cluster.hardware import Hardware
from gigaslice.core.cluster.state import ClusterState, NodeFacts
from gigaslice.core.cluster.summary import GpuHolder
from gigaslice.core.model import Gpu, NodeState, Pod
from gigaslice.core.placement.tree import bits, build_tree
from gigaslice.core.units import format_bytes
from gigaslice.core.views.cluster_picture import (
    ClassView,
    ClusterPicture,
    GpuView,
    HolderView,
    LinkGroup,
    NodeView,
    WaitingPodView,
)
from gigaslice.core.views.explain import explain
from gigaslice.core.views.usage import NodeUsage

__all__ = ["picture", "picture_steps"]

_MOST_EXPLAINED = 200  # of the waiting pods
_AT_ONCE = 10  # nodes


def picture(
    state: ClusterState,
    waiting: Iterable[Pod] = (),
    moves: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> ClusterPicture:
    """Takes a picture, which no later change of the state touches.

    Args:
        state: The cluster.
        waiting: Pods without a node, the oldest first; as many as can be read are explained.
        moves: What would free whole GPUs, one sentence each.
        names: "namespace/name" of pods that the state has by their UID alone.
    """
    return finished(picture_steps(state, waiting, moves, names))


def picture_steps(
    state: ClusterState,
    waiting: Iterable[Pod],
    moves: Sequence[str],
    names: Mapping[str, str] | None = None,
    *,
    note: str = "",
    usage: Mapping[str, NodeUsage] | None = None,
) -> Steps[ClusterPicture]:
    """Takes the picture step by step: that of thousands of nodes takes a second.

    The cluster may change between two steps: each node, pod and class is as it was when its turn came. NOTE says what
    is missing in it. USAGE is what pods use, by node; of a node that is not there nothing was measured.
    """
    pod_names, measured = names or {}, usage or {}
    links = _Links()
    shown = []
    for pod, _ in zip(waiting, range(_MOST_EXPLAINED), strict=False):
        shown.append(_waiting(state, pod, moves))
        yield
    nodes = []
    for number, name in enumerate(state.nodes):
        if (facts := state.facts(name)) is not None:  # it may have gone meanwhile
            nodes.append(_node(state, facts, links, pod_names, measured.get(name)))
        if number % _AT_ONCE == 0:
            yield
    classes = []
    for _, resource_class in sorted(state.classes.items()):
        classes.append(_class(state, resource_class))
        yield
    return ClusterPicture(tuple(nodes), tuple(shown), tuple(classes), tuple(moves), note)


def _waiting(state: ClusterState, pod: Pod, moves: Sequence[str]) -> WaitingPodView:
    """One waiting pod with its explanation."""
    explanation = explain(state, pod, moves)
    return WaitingPodView(
        pod.namespace,
        pod.name,
        pod.created,
        explanation.asks,
        explanation.summary,
        tuple(map(str, explanation.lines)),
        explanation.suggestions,
    )


def _node(
    state: ClusterState,
    facts: NodeFacts,
    links: _Links,
    names: Mapping[str, str],
    usage: NodeUsage | None,
) -> NodeView:
    gpus = tuple(
        GpuView(
            gpu_holders.gpu.gpu.uuid,
            gpu_holders.gpu.gpu.index,
            gpu_holders.gpu.gpu.model,
            gpu_holders.gpu.gpu.slices,
            gpu_holders.gpu.gpu.slice_bytes,
            gpu_holders.gpu.unhealthy,
            gpu_holders.gpu.gpu.numa_node,
            tuple(_holder(holder, names, gpu_holders.gpu.gpu, usage) for holder in gpu_holders.holders),
        )
        for gpu_holders in state.holders(facts.name)
    )
    problem = "" if gpus or facts.inventory_text is None else "its inventory cannot be read, or lists no GPU"
    return NodeView(
        facts.name, gpus, links.of(state.hardware(facts.name)), facts.schedulable, facts.ready, problem
    )


def _holder(holder: GpuHolder, names: Mapping[str, str], gpu: Gpu, usage: NodeUsage | None) -> HolderView:
    pods = [pod for pod in holder.holding.consumers if pod.name]
    namespace, name = pods[0].namespace if pods else "", ", ".join(pod.name for pod in pods)
    if not name:
        # a pod that the cluster does not list
        namespace, _, name = names.get(holder.holding.id, f"/{holder.holding.id}").rpartition("/")
    used = _used(usage, gpu.uuid, namespace, [pod.name for pod in pods] or [name])
    if not used and holder.slices >= gpu.slices:
        used = None  # processes on a whole GPU are in no ledger: nothing was found is not nothing is used
    return HolderView(namespace, name, holder.slices, holder.cores, used)


def _used(usage: NodeUsage | None, gpu: str, namespace: str, pods: Sequence[str]) -> int | None:
    """What PODS use of GPU together; None where no number of any of them is known."""
    if usage is None or not namespace:
        return None
    known = [size for pod in pods if (size := usage.used.get((gpu, namespace, pod))) is not None]
    return sum(known) if known else None


class _Links:
    """The groups of near GPUs, worked out once for each kind of node."""

    def __init__(self) -> None:
        self._known: dict[Hardware, tuple[LinkGroup, ...]] = {}

    def of(self, hardware: Hardware | None) -> tuple[LinkGroup, ...]:
        if hardware is None:
            return ()
        if hardware not in self._known:
            node = NodeState(hardware.gpus, hardware.topology)
            self._known[hardware] = tuple(
                LinkGroup(inner.kind, tuple(pool.members[gpu] for gpu in bits(inner.mask)))
                for pool in node.pools()
                for inner in build_tree(node.topology, pool.members).inner
            )
        return self._known[hardware]


def _class(state: ClusterState, resource_class: ResourceClass) -> ClassView:
    status = state.class_status(resource_class.name)
    problem = "" if status.devices else "no GPU of the cluster matches"
    return ClassView(
        resource_class.name, status.devices, status.free, len(status.nodes), _selects(resource_class), problem
    )


def _selects(resource_class: ResourceClass) -> str:
    """The selector in words, as people would write it."""
    terms = [" and ".join(map(_condition, term.conditions)) for term in resource_class.selector.terms]
    share = ""
    if resource_class.share is not None:
        cores = f" and {resource_class.share.cores}% of the compute" if resource_class.share.cores else ""
        share = f"; a unit is {format_bytes(resource_class.share.memory_bytes)}{cores} of a GPU"
    return (" or ".join(terms) or "every GPU") + share


def _condition(requirement: Requirement) -> str:
    return f"{requirement.key} {_WORDS[requirement.operator]} {', '.join(requirement.values)}".strip()


_WORDS = {
    Operator.IN: "is",
    Operator.NOT_IN: "is not",
    Operator.EXISTS: "exists",
    Operator.DOES_NOT_EXIST: "does not exist",
    Operator.GT: ">",
    Operator.LT: "<",
}
