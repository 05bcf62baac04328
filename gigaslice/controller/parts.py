"""The parts of a controller, built and connected, by the names under which they run."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from gigaslice.cluster.demand import ClusterUnits
from gigaslice.cluster.state import ClusterState
from gigaslice.controller.cluster_feed import ClusterFeed
from gigaslice.controller.config import ControllerConfig
from gigaslice.controller.metrics import ControllerCounters, Readings, exposition
from gigaslice.controller.object_passes import ObjectPasses
from gigaslice.controller.object_plan import WriteKind
from gigaslice.controller.pod_notices import Notices
from gigaslice.controller.waiting_pods import WaitingPods
from gigaslice.controller.wake_label import WAKE_LABEL, WakeUps
from gigaslice.controller.work_queue import RateLimit
from gigaslice.kube.event import Regarding
from gigaslice.kubeapi.client import ApiFailure, KubeClient, object_path
from gigaslice.kubeapi.events import EventRecorder
from gigaslice.kubeapi.lease import Leader
from gigaslice.model import Pod
from gigaslice.runtime.http_server import Server
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["ControllerParts", "Part"]

Part = Callable[[], Coroutine[Any, Any, None]]

_OBSERVE_SECONDS = 1.0
_COUNT_SECONDS = 2.0
_SHARE = 10  # of the time at most one part in so many is spent on counting and explaining
_EVENTS_PER_SECOND, _EVENT_BURST = 5.0, 100  # fewer than the recorder takes: it forgets what is too much
_SILENT_SECONDS = 420.0  # without a watch: longer than a whole one lasts and its repetition takes


class ControllerParts:
    """Everything that runs. Build it inside the event loop.

    Args:
        client: The API server.
        config: The settings.
        identity: This replica's own name for the lease.
        observe: Seconds between two passes over what waits.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        client: KubeClient,
        config: ControllerConfig,
        identity: str,
        *,
        observe: float = _OBSERVE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.counters = ControllerCounters()
        self.state = ClusterState(ClusterUnits(config.slice_bytes))
        self.waiting = WaitingPods(self.state, config.scheduler_name)
        self.leader = Leader(client, config.namespace, config.leader_lease, identity, self._lead)
        self.feed = ClusterFeed(
            client,
            self.state,
            self._node_changed,
            self._class_changed,
            self._pod_changed,
            on_write=self._written,
            gpu_objects=config.extended_resources == "on",
        )
        limit = RateLimit(config.writes_per_second, config.writes_per_second, clock=clock)
        self.passes = ObjectPasses(
            client,
            self.feed,
            limit,
            self._may_write,
            automatic=config.automatic_classes == "on",
            gpu_objects=config.extended_resources == "on",
            clock=clock,
        )
        self.events = EventRecorder(client, "controller", platform.node(), clock=clock)
        self._client = client
        self._clock = clock
        self._observe = observe
        self._event_limit = RateLimit(_EVENTS_PER_SECOND, _EVENT_BURST, clock=clock)
        self._node_notices = Notices()
        self._wake_ups = WakeUps()
        self._types: frozenset[str] = frozenset()
        self._reported = LogOnce()
        self._log = get_logger("controller")
        self.essential: Mapping[str, Part] = {"feed": self.feed.run, "leader": self.leader.run}
        self.restarted: Mapping[str, Part] = {
            "gpus": self.passes.nodes.run,
            "classes": self.passes.classes.run,
            "events": self.events.run,
            "observer": self._observer,
            "counter": self._counter,
            "metrics": Server(
                config.metrics_address, self._metrics, self.unready, config.metrics_token_file
            ).run,
        }

    def unready(self) -> str | None:
        """Why this replica cannot do its work, or None."""
        missing = [name for name, one in self.feed.informers.items() if not one.synced.is_set()]
        if missing:
            return f"waiting for {', '.join(missing)} of the API server"
        silent = {name for name, seconds in self.feed.silent_seconds().items() if seconds > _SILENT_SECONDS}
        return f"no watch of {', '.join(sorted(silent))}" if silent else None

    # --- what others report -------------------------------------------------------------------------------------

    def _may_write(self) -> bool:
        return self.leader.leading and self.feed.synced

    def _lead(self, leads: bool) -> None:
        if not leads:
            self.passes.clear()
        elif self.feed.synced:
            self.passes.everything()

    def _node_changed(self, name: str) -> None:
        if self._may_write():
            self.passes.node(name)

    def _class_changed(self, name: str) -> None:
        if self._may_write():
            self.passes.classes.add(name)

    def _pod_changed(self, pod: Pod, gone: bool) -> None:
        if gone:
            self.waiting.drop(pod.uid)
        else:
            self.waiting.put(pod, self._clock())

    def _written(self, plural: str, kind: WriteKind, done: bool) -> None:
        self.counters.writes[plural, kind.value, "done" if done else "failed"] += 1

    # --- what is done again and again ---------------------------------------------------------------------------

    async def _counter(self) -> None:
        """Counts how classes stand, and has new types of GPUs made into classes."""
        await self.feed.wait()
        self.passes.everything()
        seen = (-1, -1)
        while True:
            begun = self._clock()
            now = (self.state.revision, self.feed.hardware_changes)
            if now != seen:
                seen = now
                types = frozenset(self.passes.types())
                if types != self._types and self._may_write():
                    for name in types ^ self._types:
                        self.passes.classes.add(name)
                    self._types = types
                self.passes.count()
            await asyncio.sleep(max(_COUNT_SECONDS, _SHARE * (self._clock() - begun)))

    async def _observer(self) -> None:
        """Tells pods and nodes what is wrong with them, and wakes old schedulers."""
        await self.feed.wait()
        while True:
            begun = self._clock()
            if self.leader.leading:
                if self.config.pod_events == "on":
                    self._tell_pods(begun)
                    self._tell_nodes(begun)
                if self.config.wake_scheduler == "on":
                    await self._wake(begun)
            await asyncio.sleep(max(self._observe, _SHARE * (self._clock() - begun)))

    def _tell_pods(self, now: float) -> None:
        for notice in self.waiting.due(now):
            if not self._event_limit.ready():
                return  # what is left out is due in the next pass
            pod = notice.pod
            self.events.say(
                Regarding("Pod", pod.namespace, pod.name, pod.uid), "Warning", notice.reason, notice.text
            )
            self.counters.events[notice.reason,] += 1
            self.waiting.told(notice, now)

    def _tell_nodes(self, now: float) -> None:
        for name, node in self.feed.nodes.items():
            if not node.problem:
                self._node_notices.forget(name)
            elif self._node_notices.due(name, node.problem, now) <= 0 and self._event_limit.ready():
                # kubectl describe finds the events of a node by its name in the place of its UID.
                self.events.say(
                    Regarding("Node", "", name, name), "Warning", "InventoryUnreadable", node.problem
                )
                self.counters.events["InventoryUnreadable",] += 1
                self._node_notices.said(name, node.problem, now)

    async def _wake(self, now: float) -> None:
        node = self._wake_ups.node(self.waiting.waiting(), now)
        if not node:
            return
        labels = {WAKE_LABEL: str(int(time.time()))}
        try:
            await self._client.patch(
                object_path("api", "v1", "nodes", node), {"metadata": {"labels": labels}}
            )
        except ApiFailure as failure:
            if self._reported.new("wake", str(failure)):
                self._log.warning("label not changed", node=node, detail=str(failure))
        else:
            self._reported.over("wake")

    # --- metrics ------------------------------------------------------------------------------------------------

    def _metrics(self) -> Callable[[], bytes]:
        found = Readings()
        found.add("gigaslice_controller_leader", int(self.leader.leading))
        found.add_all("gigaslice_controller_writes_total", self.counters.writes)
        found.add_all("gigaslice_controller_events_total", self.counters.events)
        found.add_all("gigaslice_controller_reviews_total", self.counters.reviews)
        for name, queue in (("gpus", self.passes.nodes), ("classes", self.passes.classes)):
            found.add("gigaslice_controller_queue_length", len(queue), name)
            found.add("gigaslice_controller_failed_passes_total", queue.failures, name)
        for name, seconds in self.feed.silent_seconds().items():
            found.add("gigaslice_controller_watch_silent_seconds", seconds, name)
        for node in self.feed.nodes.values():
            read = "unreadable" if node.problem else "none" if node.inventory is None else "read"
            found.add("gigaslice_cluster_nodes", 1, read)
        for name, figures in self.passes.figures.items():
            found.add("gigaslice_class_gpus", figures.devices, name)
            found.add("gigaslice_class_free_gpus", figures.free, name)
        return exposition(found)
