# SPDX-License-Identifier: Apache-2.0
"""Reconciles the API's objects with the cluster, in the leader: a pass over a node's GPU objects, a pass over a class.

A pass reads what is known now, plans, and sends its writes one after another. It may be cut off between any two: the
next pass, of this replica or another one, plans from what is there then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gigaslice.core.classes.automatic import automatic_classes
from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.cluster.names import CLASS_PREFIX, EXTENDED_RESOURCES, RESOURCE_CLASSES
from gigaslice.core.kube.fields import objects_at
from gigaslice.kubeapi.client import KubeClient
from gigaslice.roles.controller.class_objects import (
    ClassFigures,
    plan_class,
    plan_class_status,
    quota_classes,
)
from gigaslice.roles.controller.cluster_feed import ClusterFeed
from gigaslice.roles.controller.gpu_objects import PodOnGpu, ReportingNode, plan_node
from gigaslice.roles.controller.object_plan import WriteKind
from gigaslice.roles.controller.work_queue import RateLimit, WorkQueue
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["GATHER_SECONDS", "ObjectReconciler", "class_spec"]

_UNNEEDED_SECONDS = 300.0
"""A type of GPU must be gone for so long before its class goes: a node that is installed anew comes back."""
_WORKERS = 4
GATHER_SECONDS = 1.0
_QUOTAS = "/api/v1/resourcequotas"


class ObjectReconciler:
    """Two queues of what is to be reconciled: nodes and classes.

    Args:
        client: The API server.
        feed: What is known.
        limit: How fast may be written.
        leading: Whether this replica may write.
        automatic: Whether classes are made for the types of GPUs that there are.
        gpu_objects: Whether objects are kept for GPUs.
        gather: Seconds in which changes to one object become one write.
        unneeded: Seconds after which an automatic class without GPUs goes.
        now: The time of day, as the API writes it.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        client: KubeClient,
        feed: ClusterFeed,
        limit: RateLimit,
        leading: Callable[[], bool],
        *,
        automatic: bool = True,
        gpu_objects: bool = True,
        gather: float = GATHER_SECONDS,
        unneeded: float = _UNNEEDED_SECONDS,
        now: Callable[[], str] = lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.figures: dict[str, ClassFigures] = {}
        """How each class stands, as last computed."""
        self.nodes = WorkQueue[str]("gpus", self._node, workers=_WORKERS, gather=gather)
        self.classes = WorkQueue[str]("classes", self._class, gather=gather)
        self._client = client
        self._feed = feed
        self._limit = limit
        self._leading = leading
        self._automatic = automatic
        self._gpu_objects = gpu_objects
        self.unneeded = unneeded
        self._now = now
        self._clock = clock
        self._types: dict[str, ResourceClass] = {}
        self._types_at = -1  # hardware_changes of which these are
        self._gone: dict[str, float] = {}  # since when no GPU is of an automatic class
        self._reported = LogOnce()
        self._log = get_logger("controller")

    def queue_all(self) -> None:
        """Queues every node and every class. For a replica that begins to lead."""
        for node in {*self._feed.nodes, *self._feed.gpus.groups}:
            self.queue_node(node)
        self.queue_all_classes()

    def queue_node(self, name: str) -> None:
        """Queues a node."""
        if self._gpu_objects:
            self.nodes.add(name)

    def queue_all_classes(self) -> None:
        """Queues every class, those that do not exist yet included."""
        for name in {*self.types(), *(present.name for present in self._feed.classes)}:
            self.classes.add(name)

    def clear(self) -> None:
        """Empties the queues. For a replica that does not lead any more."""
        self.nodes.clear()
        self.classes.clear()

    def types(self) -> Mapping[str, ResourceClass]:
        """Returns the automatic classes of the GPUs that there are."""
        if self._automatic and self._types_at != self._feed.hardware_changes:
            self._types_at = self._feed.hardware_changes
            kinds = {
                (kind["vendor"], kind["model"], kind["memory"])
                for name, node in self._feed.nodes.items()
                if node.inventory is not None
                for kind in (gpu.all_properties(name) for gpu in node.inventory.gpus)
            }
            keys = ("vendor", "model", "memory")
            classes = automatic_classes(dict(zip(keys, kind, strict=True)) for kind in sorted(kinds))
            self._types = {gpu.name: gpu for gpu in classes}
        return self._types

    def compute_figures(self) -> None:
        """Computes how every class stands; the queue gets those whose status is another one now."""
        figures = {}
        for present in self._feed.classes:
            figures[present.name] = self._figures(present.name)
            if self._leading() and plan_class_status(present, figures[present.name], self._now()):
                self.classes.add(present.name)
        self.figures = figures

    # --- the objects of a node ----------------------------------------------------------------------------------

    async def _node(self, name: str) -> None:
        if not self._may_write(EXTENDED_RESOURCES, self._feed.gpus_installed):
            return
        writes = plan_node(self._reporting(name), self._feed.gpus.of_group(name))
        for write in writes:
            if not self._leading():
                return
            await self._feed.gpus.write(self._client, self._limit, write)
        if any(write.kind in (WriteKind.CREATE, WriteKind.UPDATE) for write in writes):
            self.nodes.add(name, 0.0)  # for the status

    def _reporting(self, name: str) -> ReportingNode | None:
        node = self._feed.nodes.get(name)
        if node is None:
            return None
        holders = {
            gpu_holders.gpu.gpu.uuid: [
                PodOnGpu(
                    pod.uid,
                    pod.namespace,
                    pod.name,
                    holder.slices,
                    holder.cores,
                    self._runs(pod.uid),
                    holder.holding.id,
                )
                for holder in gpu_holders.holders
                for pod in holder.holding.consumers
                if not holder.holding.reserved
            ]
            for gpu_holders in self._feed.state.holders(name)
            if gpu_holders.holders
        }
        return ReportingNode(name, node.uid, node.inventory, not node.problem, node.facts.ready, holders)

    def _runs(self, uid: str) -> bool:
        """Whether a holder runs; one that only the agent names does, as far as can be known."""
        pod = self._feed.pods.get(uid)
        return pod is None or pod.phase == "Running"

    # --- a class ------------------------------------------------------------------------------------------------

    async def _class(self, name: str) -> None:
        if not self._may_write(RESOURCE_CLASSES, self._feed.classes_installed):
            return
        table = self._feed.classes
        if self._automatic:
            wanted = self.types().get(name)
            present = table.get(name)
            going = wanted is None and present is not None and present.managed
            if not going:
                self._gone.pop(name, None)
            if not going or await self._may_go(name):
                spec = None if wanted is None else class_spec(wanted)
                for write in plan_class(name, spec, present):
                    await table.write(self._client, self._limit, write)
        present = table.get(name)
        if present is not None:
            for write in plan_class_status(present, self._figures(name), self._now()):
                await table.write(self._client, self._limit, write)

    async def _may_go(self, name: str) -> bool:
        """Whether the automatic class of a type that has no GPU any more may be deleted."""
        since = self._gone.setdefault(name, self._clock())
        left = since + self.unneeded - self._clock()
        if left <= 0 and not await self._needed(name):
            return True
        self.classes.add(name, left + 0.1 if left > 0 else max(1.0, self.unneeded))
        return False

    async def _needed(self, name: str) -> bool:
        """Whether a pod or a quota refers to a class, or a node that cannot be read may have GPUs of it."""
        if any(node.problem for node in self._feed.nodes.values()):
            return True
        resource = CLASS_PREFIX + name
        if any(
            resource in container.requests
            for pod in self._feed.pods.values()
            if not pod.terminal
            for container in pod.containers
        ):
            return True
        return name in quota_classes(objects_at(await self._client.get(_QUOTAS), "items"))

    def _figures(self, name: str) -> ClassFigures:
        mistake = self._feed.class_mistakes.get(name, "")
        if mistake:
            return ClassFigures(mistake=mistake)
        status = self._feed.state.class_status(name)
        return ClassFigures(status.devices, status.free, tuple(on_node.node for on_node in status.nodes))

    def _may_write(self, kind: str, installed: bool) -> bool:
        if not installed and self._leading() and self._reported.new(kind):
            self._log.warning(
                "definition not installed; waiting for it",
                kind=kind,
                detail="apply the chart's definitions (files/crds); nothing else is needed then",
            )
        return installed and self._leading()


def class_spec(resource_class: ResourceClass) -> dict[str, Any]:
    """Returns the spec of an automatic class as the API takes it."""
    terms = resource_class.selector.document()
    return {"selector": terms[0] if len(terms) == 1 else {"terms": terms}}
