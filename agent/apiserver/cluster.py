# SPDX-License-Identifier: Apache-2.0
"""What the rest of the agent knows of the cluster: a Protocol, the real thing, and its absence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from agent.apiserver.node_pods import is_refused, is_synced, node_pods
from agent.apiserver.own_node import NodeAnnotation, Publishing
from agent.apiserver.pod_reader import PodReader
from agent.apiserver.pod_waker import PodWaker
from gigaslice.core.cluster.names import INVENTORY
from gigaslice.core.kube.event import Regarding
from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import KubeClient
from gigaslice.kubeapi.events import NODE_RATES, EventRecorder
from gigaslice.kubeapi.failures import ApiFailure, object_path
from gigaslice.runtime.tasks import all_of
from gigaslice.runtime.time_limit import set_within

__all__ = ["Cluster", "Eviction", "KubeCluster", "NoCluster"]

_REMEDIES = {
    403: "the agent has no right to evict pods; deploy/eviction.yaml or the chart's rbac.evict gives it: ",
    429: "a PodDisruptionBudget does not allow it now: ",
}


@dataclass(frozen=True, slots=True)
class Eviction:
    """What came of asking for one. problem: a sentence that says why not. gone: there was no such pod any more."""

    problem: str = ""
    gone: bool = False

    @property
    def done(self) -> bool:
        """Whether it is on its way because we asked, or would be after a dry run."""
        return not self.problem and not self.gone


class Cluster(Protocol):
    """This node's part of the cluster. Questions are answered from memory, at once, with what was last seen."""

    @property
    def expected(self) -> bool:
        """Whether pods are or will be known: there is access, and the API server does not refuse us."""
        ...

    @property
    def synced(self) -> bool:
        """Whether the pods are those of now, as far as a watch can tell."""
        ...

    @property
    def answering(self) -> bool:
        """Whether the API server has given a sign of life since it last failed to answer `read`."""
        ...

    @property
    def pods(self) -> Mapping[tuple[str, str], Pod]:
        """By namespace and name."""
        ...

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of that name, or None when there is none or none is known."""
        ...

    async def read(self, timeout: float) -> Mapping[tuple[str, str], Pod] | None:
        """Returns the pods as the API server has them at this moment; None where it does not say so in TIMEOUT seconds.

        For the one pod that the watch has not shown in time: it costs a request. A server that is not answering is
        asked again after a pause only, and hardly waited for.
        """
        ...

    def event(self, pod: Pod, kind: str, reason: str, text: str, container: str = "") -> None:
        """Says TEXT on POD as an event; KIND is "Normal" or "Warning". Returns at once; repetitions are counted."""
        ...

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> Eviction:
        """Has POD evicted, or asks whether that could be."""
        ...

    async def wake(self, pod: Pod) -> str:
        """Has the kubelet look at POD at once. Returns why that is not possible; an empty text where it was done."""
        ...

    def publish(self, inventory: str) -> None:
        """Has the annotation that says what this node has say INVENTORY. Returns at once."""
        ...

    @property
    def publishing(self) -> Publishing | None:
        """How that went; None where there is no API server to publish at."""
        ...

    async def news(self, timeout: float) -> bool:
        """Returns True at the next change of the pods, False when there is none in TIMEOUT seconds."""
        ...


class NoCluster:
    """No API server: no pod is known, and no event is sent."""

    expected = False
    synced = False
    answering = False
    publishing = None

    @property
    def pods(self) -> Mapping[tuple[str, str], Pod]:
        """None."""
        return MappingProxyType({})

    def pod(self, namespace: str, name: str) -> Pod | None:
        """None."""
        del namespace, name
        return None

    async def read(self, timeout: float) -> None:
        """None."""
        del timeout

    def event(self, pod: Pod, kind: str, reason: str, text: str, container: str = "") -> None:
        """Does nothing."""

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> Eviction:
        """Says that it cannot."""
        del dry_run
        return Eviction(f"pod {pod} cannot be evicted without access to the API server")

    async def wake(self, pod: Pod) -> str:
        """Says that it cannot."""
        return f"pod {pod} cannot be woken without access to the API server"

    def publish(self, inventory: str) -> None:
        """Does nothing."""

    async def news(self, timeout: float) -> bool:
        """Waits in vain."""
        await asyncio.sleep(timeout)
        return False

    async def run(self) -> None:
        """Works until cancelled; there is nothing to do."""
        await asyncio.Event().wait()


class KubeCluster:
    """The cluster behind API, as seen from NODE."""

    def __init__(
        self, client: KubeClient, node: str, events: EventRecorder | None = None, **times: Any
    ) -> None:
        """Initializes the cluster.

        Args:
            client: The API server.
            node: The name of this node.
            events: Sends the events; None: one of this node.
            times: Those of the informer of the pods.
        """
        self._client = client
        self._news = asyncio.Event()
        self._watch = node_pods(client, node, self._changed, **times)
        self._reader = PodReader(self._watch)
        self._events = events or EventRecorder(client, "node", node, NODE_RATES)
        self._inventory = NodeAnnotation(client, node, INVENTORY)
        self._waker = PodWaker(client)

    @property
    def expected(self) -> bool:
        """Whether the API server has not refused us."""
        return not is_refused(self._watch)

    @property
    def synced(self) -> bool:
        """Whether the watch is running."""
        return is_synced(self._watch)

    @property
    def answering(self) -> bool:
        """Whether the API server has given a sign of life since it last failed to answer `read`."""
        return self._reader.answering

    @property
    def pods(self) -> Mapping[tuple[str, str], Pod]:
        """By namespace and name, as last seen."""
        return self._watch.objects

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of that name as last seen."""
        return self._watch.get(namespace, name)

    async def read(self, timeout: float) -> Mapping[tuple[str, str], Pod] | None:
        """Lists them anew; the watch and what it has shown stay as they are."""
        return await self._reader.read(timeout)

    def event(self, pod: Pod, kind: str, reason: str, text: str, container: str = "") -> None:
        """Hands an event over to be sent."""
        field = "spec.containers{" + container + "}" if container else ""
        self._events.say(Regarding("Pod", pod.namespace, pod.name, pod.uid, field=field), kind, reason, text)

    async def wake(self, pod: Pod) -> str:
        """Changes an annotation of exactly this pod, not of a later one of its name."""
        return await self._waker.wake(pod)

    def publish(self, inventory: str) -> None:
        """Hands the inventory over to be written."""
        self._inventory.set(inventory)

    @property
    def publishing(self) -> Publishing:
        """How the writes of the inventory went."""
        return self._inventory.publishing

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> Eviction:
        """Asks for the eviction of exactly this pod, not of a later one of its name.

        A dry run is the API server's: permissions and disruption budgets are looked at as for a real one.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}, **({"dryRun": ["All"]} if dry_run else {})},
        }
        try:
            path = object_path("api", "v1", "namespaces", pod.namespace, "pods", pod.name, "eviction")
            await self._client.request("POST", path, body=body, patient=False)
        except ApiFailure as failure:
            if failure.status in (404, 409):  # no pod of that name, or another one: its UID is a precondition
                return Eviction(gone=True)
            return Eviction(f"pod {pod} not evicted: {_REMEDIES.get(failure.status, '')}{failure}")
        return Eviction()

    async def news(self, timeout: float) -> bool:
        """Returns True at the next change of the pods, False when there is none in TIMEOUT seconds."""
        return await set_within(self._news, timeout)

    async def run(self) -> None:
        """Works until cancelled."""
        async with self._client:
            await all_of(self._watch.run(), self._events.run(), self._inventory.run())

    def _changed(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
