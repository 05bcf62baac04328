# SPDX-License-Identifier: Apache-2.0
"""What there is in a cluster: nodes, pods, classes and reservations, and what of it counts on which GPU. Pure.

Fed by those who watch the API server, in any order: a pod may come before its node. What the API server shows is the
truth; a reservation only bridges the time between a decision and the pod that shows it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.cluster.asked_part import asked_part
from gigaslice.core.cluster.assignment import Assignment, AssignmentError
from gigaslice.core.cluster.demand import ClusterUnits, PodDemand, asks_for_gpus
from gigaslice.core.cluster.hardware import Hardware, HardwareKinds, NodeRoom
from gigaslice.core.cluster.holding import Holding, PodConsumer
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.node_record import NodeFacts, NodeRecord
from gigaslice.core.cluster.pod_holdings import (
    ContainerTraits,
    pod_holding,
    shares_of,
    traits_of_demand,
    traits_of_pod,
)
from gigaslice.core.cluster.summary import GpuHolder, GpuHolders
from gigaslice.core.model import AnnotationRights, Pod

__all__ = ["ClusterContents"]


class ClusterContents(ABC):
    """The content of the cluster's state. revision: grows with every change that can matter to a decision.

    What follows from the content is derived from it elsewhere: a subclass is told of every change.
    """

    def __init__(self, units: ClusterUnits) -> None:
        self.units = units
        self.revision = 0
        self._nodes: dict[str, NodeRecord] = {}
        self._classes: dict[str, ResourceClass] = {}
        self._node_of: dict[str, str] = {}
        self._traits: dict[str, tuple[ContainerTraits, ...]] = {}
        self._reserved_on: dict[str, str] = {}
        self._kinds = HardwareKinds()
        self._sorted: tuple[str, ...] | None = None

    # --- what there is ------------------------------------------------------------------------------------------

    @property
    def classes(self) -> Mapping[str, ResourceClass]:
        """The classes, by name."""
        return self._classes

    @property
    def nodes(self) -> Sequence[str]:
        """The names of all nodes of the cluster, in order."""
        if self._sorted is None:
            self._sorted = tuple(sorted(name for name, record in self._nodes.items() if record.registered))
        return self._sorted

    def facts(self, node: str) -> NodeFacts | None:
        """Returns what the API server says about a node; None for one that it does not know."""
        record = self._nodes.get(node)
        return record.facts if record is not None and record.registered else None

    def agents_rights(self) -> AnnotationRights:
        """Returns which annotations of pods the agents of most GPUs take: for those who were not told."""
        checked = total = 0
        for record in self._nodes.values():
            total += len(record.gpus)
            checked += len(record.gpus) if record.rights is AnnotationRights.CHECKED else 0
        return AnnotationRights.CHECKED if 2 * checked > total else AnnotationRights.REFUSE

    def holders(self, node: str) -> tuple[GpuHolders, ...]:
        """Returns the GPUs of a node by index with what is held of them; empty where they are not known."""
        record = self._nodes.get(node)
        if record is None:
            return ()
        on: list[list[GpuHolder]] = [[] for _ in record.gpus]
        for holding in sorted(record.holdings(), key=lambda holding: holding.id):
            for share in holding.shares:
                gpu = record.positions.get(share.gpu)
                if gpu is not None:
                    on[gpu].append(GpuHolder(holding, share.slices, share.cores))
        return tuple(
            GpuHolders(
                gpu,
                max(0, gpu.gpu.slices - sum(gpu_holders.slices for gpu_holders in holders)),
                tuple(holders),
            )
            for gpu, holders in zip(record.gpus, on, strict=True)
        )

    def pods_with_gpus(self, node: str) -> frozenset[str]:
        """Returns the UIDs of the pods that have GPUs of a node, or will."""
        record = self._nodes.get(node)
        return frozenset(
            uid
            for holding in (() if record is None else record.holdings())
            if record is not None and any(share.gpu in record.positions for share in holding.shares)
            for uid in holding.uids
        )

    def record(self, node: str) -> NodeRecord | None:
        """Returns all that is known of a node, to be read; None for one of which nothing is."""
        return self._nodes.get(node)

    def hardware(self, node: str) -> Hardware | None:
        """Returns what kind of node it is; None where its GPUs are not known."""
        record = self._nodes.get(node)
        return record.hardware if record is not None and record.problem is None else None

    def room(self, node: str) -> NodeRoom:
        """Returns what is left on the GPUs of a node, by index; empty where they are not known."""
        record = self._nodes.get(node)
        return record.current_room() if record is not None and record.problem is None else ()

    def unused(self, node: str) -> bool:
        """Whether nothing holds a GPU of a node, nor will."""
        record = self._nodes.get(node)
        return record is not None and not record.holdings()

    # --- what the watches bring ---------------------------------------------------------------------------------

    def put_node(self, facts: NodeFacts) -> None:
        """Takes a node as it is now."""
        record = self._record(facts.name)
        same = record.registered and record.facts.inventory_text == facts.inventory_text
        if not record.registered:
            self._sorted = None
        record.facts, record.registered = facts, True
        if same:
            return
        record.read_inventory(self._kinds)
        record.masks.clear()
        self._changed(record)

    def drop_node(self, name: str) -> None:
        """Takes a node away. Pods on it count again when it comes back."""
        record = self._nodes.get(name)
        if record is None or not record.registered:
            return
        record.facts, record.registered, self._sorted = NodeFacts(name), False, None
        record.read_inventory(self._kinds)
        self._changed(record)
        self._forget_if_empty(record)

    def put_pod(self, pod: Pod) -> None:
        """Takes a pod as it is now. One that is bound counts from here on until it has ended."""
        if pod.terminal:
            self.drop_pod(pod.uid)
            return
        if not pod.node:
            return
        counts = not pod.readable or asks_for_gpus(pod, self.units)
        before = self._node_of.get(pod.uid)
        if before is not None and (before != pod.node or not counts):
            self._take_off(pod.uid, before)
        if pod.readable:
            self._drop_reservation(pod.uid, bound=True)
        if not counts:
            self._traits.pop(pod.uid, None)
            return
        record = self._record(pod.node)
        self._node_of[pod.uid] = pod.node
        if not pod.readable:
            self._put_unread(record, pod.uid)
            return
        record.unread.discard(pod.uid)
        assignment = self._assignment(pod)
        if assignment is not None:
            record.pending.pop(pod.uid, None)
            self.put_holding(pod.node, pod_holding(pod, shares_of(assignment, self.traits_of(pod))))
        elif record.pending.get(pod.uid) != pod and pod.uid not in record.bound:
            # One that has lost its assignment keeps what its agent gave it by that.
            record.pending[pod.uid] = pod
            self._changed(record)

    def put_holding(self, node: str, holding: Holding) -> None:
        """Counts what is held on a node, as it is now, until it is taken away."""
        before = self._node_of.get(holding.id, node)
        if before != node:
            self._take_off(holding.id, before)
        record = self._record(node)
        self._node_of[holding.id] = node
        if record.bound.get(holding.id) != holding:
            record.bound[holding.id] = holding
            self._changed(record)

    def _put_unread(self, record: NodeRecord, uid: str) -> None:
        """Counts a bound pod that cannot be read: as it was, and where that is not known the node gets nothing new."""
        if uid not in record.bound and uid not in record.pending and uid not in record.unread:
            record.unread.add(uid)
            self._changed(record)

    def drop_pod(self, uid: str) -> None:
        """Takes a pod away."""
        self._drop_reservation(uid)
        self.drop_holding(uid)

    def drop_holding(self, name: str) -> None:
        """Takes away what was counted by this id."""
        node = self._node_of.get(name)
        if node is not None:
            self._take_off(name, node)

    def put_class(self, resource_class: ResourceClass) -> None:
        """Takes a class as it is now. Pods that are bound stay where they are."""
        if self._classes.get(resource_class.name) != resource_class:
            self._classes[resource_class.name] = resource_class
            self._class_changed(resource_class.name)

    def drop_class(self, name: str) -> None:
        """Takes a class away."""
        if self._classes.pop(name, None) is not None:
            self._class_changed(name)

    # --- reservations -------------------------------------------------------------------------------------------

    def reserve(self, uid: str, node: str, assignment: Assignment, demand: PodDemand | None = None) -> None:
        """Counts what was chosen for a pod that is not bound yet, in place of what was reserved for it before.

        Args:
            uid: The pod.
            node: Where it will be.
            assignment: Its GPUs.
            demand: What the pod asks for: which containers lend, and which have GPUs for themselves.
        """
        if uid in self._node_of:
            return  # bound: the pod itself counts
        self._drop_reservation(uid)
        record = self._record(node)
        traits = traits_of_demand(demand) if demand is not None else ()
        if demand is not None:
            self._traits[uid] = traits
        shares = shares_of(assignment, traits)
        record.reserved[uid] = Holding(uid, shares, (PodConsumer(uid),), reserved=True)
        self._reserved_on[uid] = node
        self._changed(record)

    def reserved_on(self, uid: str) -> str:
        """Returns the node on which GPUs are reserved for a pod; empty where there is none."""
        return self._reserved_on.get(uid, "")

    def release(self, uid: str) -> None:
        """Gives up what is reserved for a pod."""
        self._drop_reservation(uid)

    # --- parts --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _changed(self, record: NodeRecord) -> None:
        """Called when something on a node has changed."""

    @abstractmethod
    def _class_changed(self, name: str) -> None:
        """Called when a class has changed, has come or has gone."""

    def _record(self, name: str) -> NodeRecord:
        record = self._nodes.get(name)
        if record is None:
            record = self._nodes[name] = NodeRecord(NodeFacts(name))
        return record

    def _forget_if_empty(self, record: NodeRecord) -> None:
        counted = record.bound or record.pending or record.unread or record.reserved
        if not record.registered and not counted:
            self._nodes.pop(record.facts.name, None)

    def _take_off(self, uid: str, node: str) -> None:
        self._node_of.pop(uid, None)
        self._traits.pop(uid, None)
        record = self._nodes[node]
        held = record.bound.pop(uid, None) or record.pending.pop(uid, None)
        if held is not None or uid in record.unread:
            record.unread.discard(uid)
            self._changed(record)
        self._forget_if_empty(record)

    def _drop_reservation(self, uid: str, *, bound: bool = False) -> None:
        node = self._reserved_on.pop(uid, None)
        if node is not None:
            if not bound:
                self._traits.pop(uid, None)
            record = self._nodes[node]
            record.reserved.pop(uid, None)
            self._changed(record)
            self._forget_if_empty(record)

    def traits_of(self, pod: Pod) -> tuple[ContainerTraits, ...]:
        """Returns the containers of a bound pod as they were decided: by what it was chosen for or, where that is not
        known here, by how it was seen first. What its annotations say later has no effect on the GPUs that it has.
        """
        traits = self._traits.get(pod.uid)
        if traits is None:
            traits = self._traits[pod.uid] = traits_of_pod(pod, self.units.rights)
        return traits

    def _assignment(self, pod: Pod) -> Assignment | None:
        """Returns what a pod was assigned, as far as it asks for that; None where it was not, or asks for nothing."""
        text = pod.annotations.get(ASSIGNMENT)
        if text is None:
            return None
        try:
            return asked_part(Assignment.decode(text), pod, self._classes, self.units)
        except AssignmentError:
            return None
