# SPDX-License-Identifier: Apache-2.0
"""The whole cluster in memory, and what follows from it: which node and GPUs a pod gets, or why none. Pure.

Every answer depends on the present content alone, never on the way there, so another process that has seen the same
objects gives the same answers. Answers are kept per shape of request until a node changes (see `demand_cache`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.choose import choose_gpus
from gigaslice.core.cluster.class_masks import ClassMasks
from gigaslice.core.cluster.contents import ClusterContents
from gigaslice.core.cluster.demand import ClusterUnits, PodDemand, demand_of, names_class
from gigaslice.core.cluster.demand_cache import DemandCache
from gigaslice.core.cluster.hardware import NodeRoom
from gigaslice.core.cluster.holding import HeldShare
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.node_record import NodeFacts, NodeRecord
from gigaslice.core.cluster.pod_holdings import pod_holding, shares_of
from gigaslice.core.cluster.problem import NodeProblem
from gigaslice.core.cluster.refusal import NodeReport, Refusal, RefusalReason
from gigaslice.core.cluster.report import node_report
from gigaslice.core.cluster.search import Assigned
from gigaslice.core.cluster.summary import ClassOnNode, ClassStatus, GpuHolder, GpuHolders
from gigaslice.core.model import Pod, Share
from gigaslice.core.placement import Policy
from gigaslice.core.placement.tree import bits

__all__ = [
    "ClassOnNode",
    "ClassStatus",
    "ClusterState",
    "ClusterView",
    "GpuHolder",
    "GpuHolders",
    "NodeFacts",
]

_MOST_DEMANDS = 64


class ClusterView:
    """The cluster as if some pods were gone. It is of the moment in which it is used."""

    def __init__(self, state: ClusterState, uids: Collection[str]) -> None:
        self._state, self._uids = state, frozenset(uids)

    def choose(self, demand: PodDemand, node: str) -> Assignment | Refusal:
        """Returns which GPUs each container would get on a node, or why none."""
        return self._state.choose(demand, node, without=self._uids)

    def refusal(self, demand: PodDemand, node: str) -> Refusal | None:
        """Returns why a pod would not fit on a node; None where it would."""
        return self._state.refusal(demand, node, without=self._uids)


class ClusterState(ClusterContents):
    """The cluster. revision: grows with every change that can matter to a decision."""

    def __init__(
        self, units: ClusterUnits | None = None, policy: Policy = Policy.GAIA, *, spread: bool = False
    ) -> None:
        """Starts empty.

        Args:
            units: What pods count in.
            policy: How GPUs are chosen on a node; the agents' own.
            spread: Whether the emptiest node comes first rather than the fullest.
        """
        super().__init__(units or ClusterUnits())
        self.policy = policy
        self.spread = spread
        self._class_masks = ClassMasks(self._classes)
        self._caches: OrderedDict[PodDemand, DemandCache] = OrderedDict()

    # --- decisions ----------------------------------------------------------------------------------------------

    def demand_of(self, pod: Pod) -> PodDemand | Refusal:
        """Returns what a pod asks for with the classes that there are."""
        return demand_of(pod, self._classes, self.units)

    def filter(self, demand: PodDemand, names: Sequence[str]) -> tuple[list[str], dict[str, Refusal]]:
        """Returns which of the nodes a pod fits on, in their order, and why not on the others."""
        return self._cache(demand).split(names)

    def best(self, demand: PodDemand, names: Sequence[str], most: int) -> list[str]:
        """Returns the best MOST of the nodes that a pod fits on, the best first."""
        return self._cache(demand).best(names, most)

    def preferred(
        self, demand: PodDemand, names: Sequence[str], most: int, favour: Mapping[str, float]
    ) -> list[str]:
        """Returns the best MOST of the nodes that a pod fits on where some nodes are favoured for another reason.

        Args:
            demand: What the pod asks for.
            names: The nodes in question.
            most: Of those to be returned.
            favour: By node, what is added to its standing, which is 1 for the best nodes and near 0 for the worst.
        """
        return self._cache(demand).preferred(names, most, favour)

    def refusal(self, demand: PodDemand, node: str, *, without: Collection[str] = ()) -> Refusal | None:
        """Returns why a pod does not fit on a node; None where it does. without: pods to be left out of account."""
        return self._cache(demand).refusal(node, without)

    def choose(self, demand: PodDemand, node: str, *, without: Collection[str] = ()) -> Assignment | Refusal:
        """Returns which GPUs each container of a pod gets on a node, or why none.

        If there is any way to serve all containers, one is found.

        Args:
            demand: What the pod asks for.
            node: Where.
            without: UIDs of pods to be left out of account, such as the pod's own while it is only reserved.
        """
        if not demand.any:
            return Assignment()
        refused = self.refusal(demand, node, without=without)
        if refused is not None:
            return refused
        record = self._nodes[node]
        room = record.room_without(without) if without else record.current_room()
        assigned = choose_gpus(self._problem(demand, record), room, self.policy)
        if assigned is None:
            return RefusalReason.TOGETHER.refusal
        return _named(record, demand, assigned)

    def choose_in(self, room: NodeRoom, demand: PodDemand, node: str) -> Assignment | None:
        """Returns which GPUs each container would get if so much were left on a node; None where that is too little."""
        record = self._nodes.get(node)
        if record is None or record.problem is not None:
            return None
        assigned = choose_gpus(self._problem(demand, record), room, self.policy)
        return None if assigned is None else _named(record, demand, assigned)

    def refusal_in(self, room: NodeRoom, demand: PodDemand, node: str) -> Refusal | None:
        """Returns why a pod would not fit if so much were left on a node whose GPUs are known; None where it would."""
        return self._cache(demand).refusal_in(room, node)

    def problem_on(self, demand: PodDemand, node: str) -> NodeProblem | None:
        """Returns a pod's demand on a node; None where its GPUs are not known."""
        record = self._nodes.get(node)
        return None if record is None or record.problem is not None else self._problem(demand, record)

    def without(self, uids: Iterable[str]) -> ClusterView:
        """Returns the cluster as if some pods were gone."""
        return ClusterView(self, frozenset(uids))

    def class_status(self, name: str) -> ClassStatus:
        """Returns how many GPUs serve a class; none for a class that there is not."""
        resource_class = self._classes.get(name)
        if resource_class is None:
            return ClassStatus()
        on_nodes = []
        for node in self.nodes:
            record = self._nodes[node]
            gpus = bits(self._class_masks.mask(record, name))
            if gpus:
                slices = (
                    -(-resource_class.share.memory_bytes // self.units.slice_bytes)
                    if resource_class.share
                    else 0
                )
                cores = resource_class.share.cores if resource_class.share else 0
                room = record.current_room()
                free = sum(
                    room[gpu].free >= slices and room[gpu].cores >= cores
                    if slices
                    else room[gpu].free > 0 and not room[gpu].foreign
                    for gpu in gpus
                )
                on_nodes.append(ClassOnNode(node, len(gpus), free))
        return ClassStatus(
            sum(on_node.devices for on_node in on_nodes),
            sum(on_node.free for on_node in on_nodes),
            tuple(on_nodes),
        )

    def report(self, demand: PodDemand, names: Iterable[str] | None = None) -> list[NodeReport]:
        """Returns how each node looks to a pod, GPU by GPU. names: of the nodes; None for all."""
        return [
            node_report(
                self._nodes[name],
                demand,
                self.refusal(demand, name),
                self._problem(demand, self._nodes[name]) if self._nodes[name].problem is None else None,
            )
            for name in (self.nodes if names is None else names)
            if name in self._nodes
        ]

    # --- parts --------------------------------------------------------------------------------------------------

    def _changed(self, record: NodeRecord) -> None:
        self.revision += 1
        self._place_pending(record)
        record.room = None
        for cache in self._caches.values():
            cache.changed(record.facts.name)

    def _class_changed(self, name: str) -> None:
        self.revision += 1
        for record in self._nodes.values():
            record.masks.pop(name, None)
        self._kinds.forget_class(name)
        for demand in [cached for cached in self._caches if name in cached.classes]:
            del self._caches[demand]
        for record in self._nodes.values():
            if record.pending:
                self._changed(record)

    def _place_pending(self, record: NodeRecord) -> None:
        """Counts pods that came without an assignment: as listed, and until then as the agent would place them."""
        record.unplaced.clear()
        if not record.pending:
            return
        listed = {holding.id: holding for holding in record.listed}
        for pod in sorted(record.pending.values(), key=lambda pod: (pod.created, pod.uid)):
            if pod.uid in listed:
                shares = listed[pod.uid].shares
            else:
                record.room = None
                shares = self._as_the_agent(record, pod)
            record.unplaced[pod.uid] = pod_holding(pod, shares)

    def _as_the_agent(self, record: NodeRecord, pod: Pod) -> tuple[HeldShare, ...]:
        if names_class(pod) and ASSIGNMENT not in pod.annotations:
            return ()  # no agent gives it a GPU without an assignment: it fails, or was never asked
        demand = self.demand_of(pod)
        if record.problem is None and isinstance(demand, PodDemand):
            assigned = choose_gpus(self._problem(demand, record), record.current_room(), self.policy)
            if assigned is not None:
                return shares_of(_named(record, demand, assigned), self.traits_of(pod))
        names = {name for container in pod.containers for name in container.requests}
        slices = sum(pod.most_at_once(name) for name in names if self.units.is_memory(name))
        return record.wherever_there_is_room(slices)

    def _problem(self, demand: PodDemand, record: NodeRecord) -> NodeProblem:
        return self._cache(demand).problem(record)

    def _cache(self, demand: PodDemand) -> DemandCache:
        cache = self._caches.get(demand)
        if cache is None:
            cache = self._caches[demand] = DemandCache(
                demand, self._nodes, self._class_masks, self.policy, spread=self.spread
            )
            while len(self._caches) > _MOST_DEMANDS:
                self._caches.popitem(last=False)
        else:
            self._caches.move_to_end(demand)
        return cache


def _named(record: NodeRecord, demand: PodDemand, assigned: Assigned) -> Assignment:
    return Assignment(
        {
            container.name: tuple(
                Share(record.gpus[share.gpu].gpu.uuid, share.slices, share.cores)
                for share in sorted(taken, key=lambda share: share.gpu)
            )
            for container, taken in zip(demand.containers, assigned, strict=True)
        }
    )
