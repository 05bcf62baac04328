# SPDX-License-Identifier: Apache-2.0
"""The parts of a controller, built and connected, by the names under which they run."""

from __future__ import annotations

import asyncio
import platform
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from aiohttp import web

from gigaslice.core.cluster.moves import freeing_steps
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.kube.event import Regarding
from gigaslice.core.model import Pod
from gigaslice.core.views.collect import picture_steps
from gigaslice.core.views.move_lines import move_lines
from gigaslice.core.views.page import HEADERS, PageQuery, render
from gigaslice.kubeapi.client import KubeClient
from gigaslice.kubeapi.events import EventRecorder
from gigaslice.kubeapi.informer import Informer
from gigaslice.kubeapi.lease import Leader
from gigaslice.roles.controller.agent_usage import AgentUsage
from gigaslice.roles.controller.claim_templates import ClaimTemplates
from gigaslice.roles.controller.cluster_feed import ClusterFeed
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.controller.dataset_statuses import DatasetStatuses
from gigaslice.roles.controller.metrics import METRICS, ControllerCounters
from gigaslice.roles.controller.namespace_feed import NamespaceFeed
from gigaslice.roles.controller.object_plan import WriteKind
from gigaslice.roles.controller.object_reconciler import GATHER_SECONDS, ObjectReconciler
from gigaslice.roles.controller.page_hosts import PageHosts
from gigaslice.roles.controller.pod_notices import Notices
from gigaslice.roles.controller.waiting_pods import WaitingPods
from gigaslice.roles.controller.web_page import page_routes
from gigaslice.roles.controller.work_queue import RateLimit, WorkQueue
from gigaslice.roles.webhook.claim_admission import ClaimAdmission
from gigaslice.roles.webhook.facts import AdmissionFacts
from gigaslice.roles.webhook.namespace_rules import NamespaceRules
from gigaslice.roles.webhook.rotation import WebhookCertificates
from gigaslice.roles.webhook.server import routes as webhook_routes
from gigaslice.runtime.connection_bounds import ConnectionBounds
from gigaslice.runtime.heap import keep_small
from gigaslice.runtime.http_server import endpoints
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.metrics import Values
from gigaslice.runtime.tasks import all_of
from gigaslice.runtime.web_servers import serve
from gigaslice.runtime.yielding import in_pieces

__all__ = ["ControllerParts", "Part"]

Part = Callable[[], Coroutine[Any, Any, None]]

_OBSERVE_SECONDS = 1.0
_MOVES_SECONDS = 60.0
_SHARE = 10  # of the time at most one part in so many is spent on counting and explaining
_EVENTS_PER_SECOND, _EVENT_BURST = 5.0, 100  # fewer than the recorder takes: it forgets what is too much
_NODES_AT_ONCE = 100
_CONDITIONS = {"unhealthy": "unhealthy", "free_partly": "partly used", "free_whole": "whole"}
_PAGE = ConnectionBounds(silent=256, unasked=32, kept=64, held_bytes=1 << 20)  # its answers are large
_SILENT_SECONDS = 420.0  # without a watch: longer than a whole one lasts and its repetition takes


class ControllerParts:
    """Everything that runs. Build it inside the event loop.

    Args:
        client: The API server.
        config: The settings.
        identity: This replica's own name for the lease.
        observe: Seconds between two passes over what waits.
        gather: Seconds in which changes to one object become one write.
        pause: The first pause after a failure.
        absent_seconds: Until it is asked again whether a definition that was not installed is.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        client: KubeClient,
        config: ControllerConfig,
        identity: str,
        *,
        observe: float = _OBSERVE_SECONDS,
        gather: float = GATHER_SECONDS,
        pause: float = 0.25,
        absent_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.counters = ControllerCounters()
        self.state = ClusterState(config.units)
        self.waiting = WaitingPods(self.state, config.scheduler_name)
        self.leader = Leader(client, config.namespace, config.leader_lease, identity, self._lead)
        self.namespaces = NamespaceFeed(client, config.units, config.api, pause=pause)
        self.feed = ClusterFeed(
            client,
            self.state,
            self._node_changed,
            self._class_changed,
            self._pod_changed,
            on_classes=self._classes_listed,
            on_write=self._written,
            on_claims=self._claims_changed,
            gpu_objects=config.extended_resources == "on",
            pause=pause,
            absent_seconds=absent_seconds,
        )
        limit = RateLimit(config.writes_per_second, config.writes_per_second, clock=clock)
        self.reconciler = ObjectReconciler(
            client,
            self.feed,
            limit,
            self._may_write,
            automatic=config.automatic_classes == "on",
            gpu_objects=config.extended_resources == "on",
            gather=gather,
            clock=clock,
        )
        self.datasets = DatasetStatuses(
            client,
            self._may_write,
            limit,
            pause=pause,
            absent_seconds=absent_seconds,
            nodes=lambda: self.feed.nodes if self.feed.synced else None,
        )
        self.templates = ClaimTemplates(
            client,
            self._may_write,
            limit,
            tell=self._tell_without_template,
            on_write=self._template_written,
            on_gone=self._template_gone,
            pause=pause,
            absent_seconds=absent_seconds,
            clock=clock,
        )
        self.claims = ClaimAdmission(client, self, config.units, config.api, clock=clock)
        self.events = EventRecorder(client, "controller", platform.node(), clock=clock)
        self._client = client
        self._clock = clock
        self._observe = observe
        self._event_limit = RateLimit(_EVENTS_PER_SECOND, _EVENT_BURST, clock=clock)
        self._node_notices = Notices()
        self._types: frozenset[str] = frozenset()
        self._facts = AdmissionFacts(synced=False)
        self._facts_at = -1  # hardware_changes of which they are
        self._certified = config.webhook_address is None
        self._moves: list[str] = []
        self._gpus: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self._log = get_logger("controller")
        self.essential: Mapping[str, Part] = {"feed": self.feed.run, "leader": self.leader.run}
        self.restarted: Mapping[str, Part] = {
            "gpus": self.reconciler.nodes.run,
            "classes": self.reconciler.classes.run,
            "datasets": self.datasets.run,
            "events": self.events.run,
            "observer": self._observer,
            "counter": self._counter,
            "moves": self._find_moves,
            "metrics": endpoints(config, self.collect, self.unready).run,
        }
        self._usage = AgentUsage(client, config.namespace, config.metrics_token_file, clock=clock)
        if config.page_address is not None:
            self.restarted = {**self.restarted, "page": self._page}
            if config.page_usage == "agents":
                self.restarted = {**self.restarted, "usage": self._usage.run}
        if config.webhook_address is not None:
            self.essential = {
                **self.essential,
                "namespaces": self.namespaces.run,
                "templates": self.templates.run,
            }
            self.restarted = {**self.restarted, "webhook": self._webhook}

    def unready(self) -> str | None:
        """Why this replica cannot do its work, or None."""
        informers = self._informers()
        missing = [name for name, informer in informers.items() if not informer.synced.is_set()]
        if missing:
            refusals = "; ".join(informer.refusal for informer in informers.values() if informer.refusal)
            return refusals or f"waiting for {', '.join(missing)} of the API server"
        if not self._certified:
            return "the admission webhook has no certificate yet"
        silent = {name for name, seconds in self.feed.silent_seconds().items() if seconds > _SILENT_SECONDS}
        return f"no watch of {', '.join(sorted(silent))}" if silent else None

    def _informers(self) -> dict[str, Informer[Any]]:
        """Those that this replica needs, by what they follow."""
        if self.config.webhook_address is None:
            return self.feed.informers
        return {
            **self.feed.informers,
            **self.namespaces.informers,
            "resourceclaimtemplates": self.templates.informer,
        }

    # --- what others report -------------------------------------------------------------------------------------

    def _may_write(self) -> bool:
        return self.leader.leading and self.feed.synced

    def _lead(self, leads: bool) -> None:
        if not leads:
            self.reconciler.clear()
        elif self.feed.synced:
            self.reconciler.queue_all()
            self.templates.queue_all()

    def _node_changed(self, name: str) -> None:
        if self._may_write():
            self.reconciler.queue_node(name)

    def _class_changed(self, name: str) -> None:
        if self._may_write():
            self.reconciler.classes.add(name)

    def _classes_listed(self) -> None:
        if self._may_write():
            self.reconciler.queue_all_classes()

    def _pod_changed(self, pod: Pod, gone: bool) -> None:
        if gone:
            self.waiting.drop(pod.uid)
        else:
            self.waiting.put(pod, self._clock())

    def _claims_changed(self, pod: Pod, gone: bool) -> None:
        self.templates.pod_changed(pod, gone)

    def _template_written(self, kind: str, done: bool) -> None:
        self.counters.writes["resourceclaimtemplates", kind, "done" if done else "failed"] += 1

    def _template_gone(self, namespace: str, name: str) -> None:
        self.claims.forget(namespace, name)

    def _tell_without_template(self, pod: Pod, sentence: str) -> None:
        if self.config.pod_events == "on" and self._event_limit.ready():
            regarding = Regarding("Pod", pod.namespace, pod.name, pod.uid)
            self.events.say(regarding, "Warning", "ClaimTemplateMissing", sentence)
            self.counters.events["ClaimTemplateMissing",] += 1

    def _written(self, plural: str, kind: WriteKind, done: bool) -> None:
        self.counters.writes[plural, kind.value, "done" if done else "failed"] += 1

    # --- what is done again and again ---------------------------------------------------------------------------

    async def _counter(self) -> None:
        """Counts how classes stand, and has new types of GPUs made into classes."""
        await self.feed.wait()
        self.reconciler.queue_all()
        counted = (-1, -1)
        while True:
            begun = self._clock()
            now = (self.state.revision, self.feed.hardware_changes)
            if now != counted:
                counted = now
                types = frozenset(self.reconciler.types())
                if types != self._types and self._may_write():
                    for name in types ^ self._types:
                        self.reconciler.classes.add(name)
                    self._types = types
                self.reconciler.compute_figures()
                await self._count_gpus()
            self._waits = Counter(pod.state for pod in self.waiting.waiting())
            await asyncio.sleep(max(2 * self._observe, _SHARE * (self._clock() - begun)))

    async def _count_gpus(self) -> None:
        """Counts GPUs and memory for the metrics, a part at a time: others have their turn in between."""
        gpus, sizes = Counter[tuple[str, str]](), Counter[str]()
        for number, name in enumerate(self.state.nodes):
            for gpu_holders in self.state.holders(name):
                gpu, held = (
                    gpu_holders.gpu.gpu,
                    min(gpu_holders.gpu.gpu.slices, sum(holder.slices for holder in gpu_holders.holders)),
                )
                state = (
                    "unhealthy"
                    if gpu_holders.gpu.unhealthy
                    else "free_partly"
                    if gpu_holders.holders
                    else "free_whole"
                )
                full = state == "free_partly" and held == gpu.slices
                gpus[gpu.model, "full" if full else _CONDITIONS[state]] += 1
                sizes["held"] += held * gpu.slice_bytes
                sizes[state] += (gpu.slices - held) * gpu.slice_bytes
            if number % _NODES_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._gpus, self._bytes = gpus, sizes

    async def _find_moves(self) -> None:
        """Looks now and then for moves of pods that would free a whole GPU: told to people, never made."""
        await self.feed.wait()
        while True:
            begun = self._clock()
            plans = await in_pieces(freeing_steps(self.state, self.feed.pods))
            self._moves = move_lines(self.state, plans, self.feed.pods)
            await asyncio.sleep(max(_MOVES_SECONDS, _SHARE * (self._clock() - begun)))

    async def _observer(self) -> None:
        """Tells pods and nodes what is wrong with them."""
        await self.feed.wait()
        while True:
            begun = self._clock()
            if self.leader.leading and self.config.pod_events == "on":
                self._tell_pods(begun)
                self._tell_nodes(begun)
            await asyncio.sleep(max(self._observe, _SHARE * (self._clock() - begun)))

    def _tell_pods(self, now: float) -> None:
        for notice in self.waiting.due_notices(now):
            if not self._event_limit.ready():
                return  # what is left out is due in the next pass
            pod = notice.pod
            self.events.say(
                Regarding("Pod", pod.namespace, pod.name, pod.uid), "Warning", notice.reason, notice.text
            )
            self.counters.events[notice.reason,] += 1
            self.waiting.note_sent(notice, now)

    def _tell_nodes(self, now: float) -> None:
        for name, node in self.feed.nodes.items():
            if not node.problem:
                self._node_notices.forget(name)
            elif (
                self._node_notices.seconds_until_due(name, node.problem, now) <= 0
                and self._event_limit.ready()
            ):
                # kubectl describe finds the events of a node by its name in the place of its UID.
                self.events.say(
                    Regarding("Node", "", name, name), "Warning", "InventoryUnreadable", node.problem
                )
                self.counters.events["InventoryUnreadable",] += 1
                self._node_notices.note_sent(name, node.problem, now)

    # --- what is served -----------------------------------------------------------------------------------------

    def facts(self) -> AdmissionFacts:
        """Returns what admission decides by."""
        if not self.feed.synced:
            return AdmissionFacts(synced=False)
        if self._facts_at != self.feed.hardware_changes:
            self._facts_at = self.feed.hardware_changes
            nodes = {
                name: node.inventory for name, node in self.feed.nodes.items() if node.inventory is not None
            }
            self._facts = AdmissionFacts(
                dict(self.state.classes),
                nodes,
                resources=frozenset(self.config.resources),
                units=self.state.units,
                scheduler=self.config.scheduler_name,
                nodes_may_come=self.config.oversize == "warn",
            )
        return self._facts

    def rules(self, namespace: str) -> NamespaceRules | None:
        """Returns what holds in a namespace; None where it has not been seen."""
        return self.namespaces.rules(namespace)

    def has_template(self, namespace: str, name: str) -> bool:
        """Whether a template of ours is there, which counts as a use of it."""
        return self.templates.has(namespace, name)

    def unnamed_templates(self, namespace: str, made: Collection[tuple[str, str]]) -> int:
        """How many templates of ours no pod names in a namespace; with those of MADE that were not seen yet."""
        return self.templates.unnamed(namespace, made)

    async def _webhook(self) -> None:
        config = self.config
        if config.webhook_address is None:
            return
        certificates = WebhookCertificates(
            self._client,
            namespace=config.namespace,
            secret=config.webhook_secret,
            service=config.webhook_service,
            configuration=config.webhook_configuration,
        )
        await certificates.prepare()
        self._certified = True
        served = webhook_routes(self.facts, self._reviewed, self.claims)
        await all_of(
            certificates.run(),
            serve("webhook", config.webhook_address, served, certificates.context),
            keep_small(),  # after a flood
        )

    def _reviewed(self, path: str, allowed: bool) -> None:
        self.counters.reviews[path, "yes" if allowed else "no"] += 1

    async def _page(self) -> None:
        if self.config.page_address is not None:
            await serve("page", self.config.page_address, self.page_routes(), bounds=_PAGE)

    def page_routes(self) -> list[web.RouteDef]:
        """Returns the web page's routes."""
        hosts = PageHosts(self.config.namespace, self.config.page_hosts)
        return page_routes(self._render, self._page_revision, HEADERS, hosts)

    def _page_revision(self) -> int:
        """Grows when a page would be another one; asked for whenever somebody asks for a page."""
        self._usage.want()
        return self.feed.changes + self._usage.revision

    async def _render(self, query: Mapping[str, str]) -> Callable[[], str]:
        """Takes a picture in pieces; the page is written from it, which may be in a thread."""
        waits = [waiting_pod.pod for waiting_pod in self.waiting.waiting()]
        note = "" if self.feed.synced else "The cluster is still being read; nodes and pods are missing here."
        usage = self._usage.nodes()
        taken = await in_pieces(picture_steps(self.state, waits, self._moves, note=note, usage=usage))
        wanted, now = PageQuery.parse(query), time.time()
        return lambda: render(taken, wanted, now)

    # --- metrics ------------------------------------------------------------------------------------------------

    def collect(self) -> Values:
        """The values of now."""
        values = Values(METRICS)
        values.add("gigaslice_controller_leader", int(self.leader.leading))
        values.add_all("gigaslice_controller_writes_total", self.counters.writes)
        values.add_all("gigaslice_controller_events_total", self.counters.events)
        values.add_all("gigaslice_controller_reviews_total", self.counters.reviews)
        queues: dict[str, WorkQueue[Any]] = {
            "gpus": self.reconciler.nodes,
            "classes": self.reconciler.classes,
            "templates": self.templates.queue,
        }
        for name, queue in queues.items():
            values.add("gigaslice_controller_queue_length", len(queue), name)
            values.add("gigaslice_controller_failed_passes_total", queue.failures, name)
        for name, seconds in self.feed.silent_seconds().items():
            values.add("gigaslice_controller_watch_silent_seconds", seconds, name)
        for node in self.feed.nodes.values():
            read = "unreadable" if node.problem else "none" if node.inventory is None else "read"
            values.add("gigaslice_cluster_nodes", 1, read)
        for (model, condition), count in self._gpus.items():
            values.add("gigaslice_cluster_gpus", count, model, condition)
        for state, size in self._bytes.items():
            values.add("gigaslice_cluster_memory_bytes", size, state)
        free = self._bytes["free_whole"] + self._bytes["free_partly"]
        values.add(
            "gigaslice_cluster_fragmentation_ratio", self._bytes["free_partly"] / free if free else 0.0
        )
        values.add("gigaslice_defragmentation_moves", len(self._moves))
        for state in ("fits", "no-room", "invalid"):
            values.add("gigaslice_pods_waiting", self._waits[state], state)
        for name, figures in self.reconciler.figures.items():
            values.add("gigaslice_class_gpus", figures.devices, name)
            values.add("gigaslice_class_free_gpus", figures.free, name)
        return values
