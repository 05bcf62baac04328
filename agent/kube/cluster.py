"""What the rest of the agent knows of the cluster: a Protocol, the real thing, and its absence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from agent.kube.events import EventSender
from agent.kube.watch import PodWatch
from agent.kube.wire import Api, ApiError
from agent.model import Pod

__all__ = ["Cluster", "KubeCluster", "NoCluster"]


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
    def pods(self) -> Mapping[tuple[str, str], Pod]:
        """By namespace and name."""
        ...

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of that name, or None when there is none or none is known."""
        ...

    def event(self, pod: Pod, kind: str, reason: str, text: str, container: str = "") -> None:
        """Says TEXT on POD as an event; KIND is "Normal" or "Warning". Returns at once; repetitions are counted."""
        ...

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> str | None:
        """Has POD evicted, or asks whether that could be. None when that is on its way or it is gone, else a
        sentence that says why not."""
        ...

    async def news(self, timeout: float) -> bool:
        """Returns True at the next change of the pods, False when there is none in TIMEOUT seconds."""
        ...


class NoCluster:
    """No API server: no pod is known, and nobody is told anything."""

    expected = False
    synced = False

    @property
    def pods(self) -> Mapping[tuple[str, str], Pod]:
        """None."""
        return MappingProxyType({})

    def pod(self, namespace: str, name: str) -> Pod | None:
        """None."""
        del namespace, name
        return None

    def event(self, pod: Pod, kind: str, reason: str, text: str, container: str = "") -> None:
        """Does nothing."""

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> str | None:
        """Says that it cannot."""
        del dry_run
        return f"pod {pod} cannot be evicted without access to the API server"

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
        self, api: Api, node: str, watch: PodWatch | None = None, events: EventSender | None = None
    ) -> None:
        self._api = api
        self._watch = watch or PodWatch(api, node)
        self._events = events or EventSender(api, node)

    @property
    def expected(self) -> bool:
        """Whether the API server has not refused us."""
        return not self._watch.refused

    @property
    def synced(self) -> bool:
        """Whether the watch is running."""
        return self._watch.synced

    @property
    def pods(self) -> Mapping[tuple[str, str], Pod]:
        """By namespace and name, as last seen."""
        return self._watch.pods

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of that name as last seen."""
        return self._watch.pods.get((namespace, name))

    def event(self, pod: Pod, kind: str, reason: str, text: str, container: str = "") -> None:
        """Hands an event over to be sent."""
        self._events.say(pod, kind, reason, text, container)

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> str | None:
        """Asks for the eviction of exactly this pod, not of a later one of its name.

        A dry run is the API server's: permissions and disruption budgets are looked at as for a real one.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}, **({"dryRun": ["All"]} if dry_run else {})},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        try:
            reply = await self._api.request("POST", path, None, body)
        except ApiError as error:
            return f"pod {pod} not evicted: {error}"
        if reply.status < 300 or reply.status in (404, 409):
            return None
        if reply.status == 429:
            return f"pod {pod} not evicted: a PodDisruptionBudget does not allow it now"
        return f"pod {pod} not evicted: {reply.status} {reply.reason()}"

    async def news(self, timeout: float) -> bool:
        """Returns True at the next change of the pods, False when there is none in TIMEOUT seconds."""
        return await self._watch.news(timeout)

    async def run(self) -> None:
        """Works until cancelled."""
        tasks = [asyncio.create_task(self._watch.run()), asyncio.create_task(self._events.run())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
