# SPDX-License-Identifier: Apache-2.0
"""Follows the API server's nodes, pods, classes and GPU objects, and keeps the cluster's state by them.

Every replica follows all of it, so that one that takes over begins with what is there. Callers are told which node,
class or pod has changed, and no more: what follows from it is decided later, from the state of that moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gigaslice.core.claims.templates import template_names
from gigaslice.core.classes.resource_class import (
    MANAGED_BY,
    MANAGER,
    ClassError,
    ResourceClass,
    parse_resource_class,
)
from gigaslice.core.cluster.demand import asks_for_gpus
from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.names import EXTENDED_RESOURCES, RESOURCE_CLASSES
from gigaslice.core.cluster.state import ClusterState, NodeFacts
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.kube.fields import object_at, text_at
from gigaslice.core.model import Gpu, Pod
from gigaslice.kubeapi.client import KubeClient
from gigaslice.kubeapi.cluster_objects import NODES_PATH, PODS_PATH, PODS_QUERY, node_facts, unread_gpu_pod
from gigaslice.kubeapi.informer import Informer
from gigaslice.roles.controller.object_plan import WriteKind
from gigaslice.roles.controller.object_table import ObjectTable, PackedObject
from gigaslice.runtime.tasks import all_of

__all__ = ["ClusterFeed", "WatchedNode"]


@dataclass(frozen=True, slots=True)
class WatchedNode:
    """A node as the API server shows it."""

    uid: str
    facts: NodeFacts

    @property
    def inventory(self) -> NodeInventory | None:
        """What its agent says; None where it says nothing, or nothing that can be read."""
        return self.facts.inventory

    @property
    def problem(self) -> str:
        """Why its inventory cannot be read, or empty."""
        return self.facts.mistake

    @property
    def hardware(self) -> tuple[str, tuple[tuple[Gpu, str, Mapping[str, str]], ...]]:
        """Its resource of whole GPUs, and its GPUs without what changes all the time."""
        if self.inventory is None:
            return "", ()
        gpus = ((replace(gpu.gpu, healthy=True), gpu.resource, gpu.properties) for gpu in self.inventory.gpus)
        return self.inventory.whole_resource, tuple(gpus)


@dataclass(frozen=True, slots=True)
class _WatchedClass:
    """A class as the API server shows it. found: None where it is invalid; mistake: why."""

    packed: PackedObject
    resource_class: ResourceClass | None
    mistake: str = ""


class ClusterFeed:
    """What the controller follows.

    Args:
        client: The API server.
        state: Is kept.
        on_node: Called with the name of a node that has changed, or on which a pod has.
        on_class: Called with the name of a class that has changed or is gone.
        on_pod: Called with a pod that asks for GPUs and has changed, and whether it is gone or has ended.
        on_claims: The same for a pod that names templates of claims of ours.
        on_classes: Called after every list of all classes, the first after their definition was installed too.
        on_write: Called for each write of an object: plural, kind of write, whether it succeeded.
        gpu_objects: Whether objects of GPUs are followed at all.
        pause: The first pause after a failure.
        absent_seconds: Until it is asked again whether a definition that was not installed is.
    """

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        on_node: Callable[[str], None],
        on_class: Callable[[str], None],
        on_pod: Callable[[Pod, bool], None],
        *,
        on_classes: Callable[[], None] = lambda: None,
        on_write: Callable[[str, WriteKind, bool], None] = lambda plural, kind, done: None,
        on_claims: Callable[[Pod, bool], None] = lambda pod, gone: None,
        gpu_objects: bool = True,
        pause: float = 0.25,
        absent_seconds: float = 15.0,
    ) -> None:
        self.state = state
        self.nodes: dict[str, WatchedNode] = {}
        self.pods: dict[str, Pod] = {}
        """Those that ask for GPUs, and that have not ended."""
        self.class_mistakes: dict[str, str] = {}
        self.changes = 0
        """Grows with everything that is seen."""
        self.hardware_changes = 0
        """Counts changes of classes and GPUs. What is free or healthy does not count."""
        self._on_node = on_node
        self._on_class = on_class
        self._on_pod = on_pod
        self._on_claims = on_claims
        self.classes = ObjectTable(
            RESOURCE_CLASSES, on_write=lambda kind, done: on_write(RESOURCE_CLASSES, kind, done)
        )
        self.gpus = ObjectTable(
            EXTENDED_RESOURCES,
            lambda gpu_object: str(gpu_object.spec.get("nodeName", "")),
            lambda kind, done: on_write(EXTENDED_RESOURCES, kind, done),
        )
        self._nodes = Informer(client, NODES_PATH, _parse_node, self._node_seen, self._node_gone, pause=pause)
        self._pods = Informer(
            client,
            PODS_PATH,
            self._parse_pod,
            self._pod_seen,
            self._pod_gone,
            query=PODS_QUERY,
            unread=unread_gpu_pod,
            pause=pause,
        )
        self._classes = Informer(
            client,
            self.classes.path,
            self._parse_class,
            self._class_seen,
            self._class_gone,
            on_list=on_classes,
            optional=True,
            absent_seconds=absent_seconds,
            pause=pause,
        )
        self._gpu_objects = Informer(
            client,
            self.gpus.path,
            self.gpus.parse,
            self._gpu_seen,
            self._gpu_gone,
            on_list=self._gpus_listed,
            query={"labelSelector": f"{MANAGED_BY}={MANAGER}"},
            optional=True,
            absent_seconds=absent_seconds,
            pause=pause,
        )
        self.informers: dict[str, Informer[Any]] = {
            "nodes": self._nodes,
            "pods": self._pods,
            RESOURCE_CLASSES: self._classes,
        }
        if gpu_objects:
            self.informers[EXTENDED_RESOURCES] = self._gpu_objects

    @property
    def synced(self) -> bool:
        """Whether everything has been seen once."""
        return all(informer.synced.is_set() for informer in self.informers.values())

    @property
    def classes_installed(self) -> bool:
        """Whether the definition of classes has ever been there."""
        return self._classes.lists > 0

    @property
    def gpus_installed(self) -> bool:
        """The same for objects of GPUs."""
        return self._gpu_objects.lists > 0

    def silent_seconds(self) -> dict[str, float]:
        """Returns for how long no watch has run, by resource."""
        now = time.monotonic()
        return {name: informer.silent_seconds(now) for name, informer in self.informers.items()}

    def refusals(self) -> list[str]:
        """Returns why the API server refuses us, where it does."""
        return [informer.refusal for informer in self.informers.values() if informer.refusal]

    async def wait(self) -> None:
        """Waits until everything has been seen once."""
        for informer in self.informers.values():
            await informer.synced.wait()

    async def run(self) -> None:
        """Works until cancelled."""
        await all_of(*(informer.run() for informer in self.informers.values()))

    # --- nodes --------------------------------------------------------------------------------------------------

    def _node_seen(self, node: WatchedNode) -> None:
        self.changes += 1
        name = node.facts.name
        previous = self.nodes.get(name)
        self.nodes[name] = node
        self.state.put_node(node.facts)
        if previous is None or previous.hardware != node.hardware:
            self.hardware_changes += 1
        self._on_node(name)

    def _node_gone(self, node: WatchedNode) -> None:
        self.changes += 1
        self.nodes.pop(node.facts.name, None)
        self.state.drop_node(node.facts.name)
        self.hardware_changes += 1
        self._on_node(node.facts.name)

    # --- pods ---------------------------------------------------------------------------------------------------

    def _parse_pod(self, document: Mapping[str, Any]) -> Pod | None:
        """Pods that ask for GPUs, or have claims of ours. The others are thousands, and of no matter here."""
        pod = parse_pod(document)
        return pod if asks_for_gpus(pod, self.state.units) or template_names(pod) else None

    def _pod_seen(self, pod: Pod) -> None:
        if template_names(pod):
            self._on_claims(pod, False)
            if not asks_for_gpus(pod, self.state.units):
                return  # the API server counts its GPUs
        self.changes += 1
        previous = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        self.state.put_pod(pod)
        self._on_pod(pod, False)
        self._touch(previous, pod)

    def _pod_gone(self, pod: Pod) -> None:
        if template_names(pod):
            self._on_claims(pod, True)
            if pod.uid not in self.pods:
                return
        self.changes += 1
        self.pods.pop(pod.uid, None)
        self.state.drop_pod(pod.uid)
        self._on_pod(pod, True)
        self._touch(pod)

    def _touch(self, *pods: Pod | None) -> None:
        for node in {pod.node for pod in pods if pod is not None and pod.node}:
            self._on_node(node)

    # --- classes ------------------------------------------------------------------------------------------------

    def _parse_class(self, document: Mapping[str, Any]) -> _WatchedClass:
        packed = self.classes.parse(document)
        try:
            return _WatchedClass(packed, parse_resource_class(document))
        except ClassError as error:
            return _WatchedClass(packed, None, str(error))

    def _class_seen(self, watched: _WatchedClass) -> None:
        self.changes += 1
        name = watched.packed.name
        self.classes.put(watched.packed)
        if watched.resource_class is None:
            self.class_mistakes[name] = watched.mistake
            self.state.drop_class(name)
        else:
            self.class_mistakes.pop(name, None)
            self.state.put_class(watched.resource_class)
        self.hardware_changes += 1
        self._on_class(name)

    def _class_gone(self, watched: _WatchedClass) -> None:
        self.changes += 1
        self.classes.drop(watched.packed)
        self.class_mistakes.pop(watched.packed.name, None)
        self.state.drop_class(watched.packed.name)
        self.hardware_changes += 1
        self._on_class(watched.packed.name)

    # --- objects of GPUs ----------------------------------------------------------------------------------------

    def _gpu_seen(self, gpu_object: PackedObject) -> None:
        self.gpus.put(gpu_object)
        self._on_node(gpu_object.group)

    def _gpu_gone(self, gpu_object: PackedObject) -> None:
        self.gpus.drop(gpu_object)
        self._on_node(gpu_object.group)

    def _gpus_listed(self) -> None:
        for name in {*self.nodes, *self.gpus.groups}:
            self._on_node(name)


def _parse_node(document: Mapping[str, Any]) -> WatchedNode:
    facts = node_facts(document)
    uid = text_at(object_at(document, "metadata"), "uid")
    if not uid:
        raise ValueError("a node has no uid")
    return WatchedNode(uid, facts)
