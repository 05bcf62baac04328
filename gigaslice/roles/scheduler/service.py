# SPDX-License-Identifier: Apache-2.0
"""The role `gigaslice scheduler`: informers feed the state, kube-scheduler is answered from it, bindings are written.

Until all nodes, pods and classes have been seen, and whenever no watch has run for a minute, kube-scheduler gets 503
and tries its pods later: a decision from an old state could promise a GPU twice. Nothing is kept on disk.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import time
from typing import Any

from gigaslice.core.classes.resource_class import parse_resource_class
from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.dataset.objects import parse_dataset, parse_dataset_node
from gigaslice.core.errors import MissingError
from gigaslice.core.model import Pod
from gigaslice.kubeapi.access import Access, find_access
from gigaslice.kubeapi.client import ApiFailure, KubeClient
from gigaslice.kubeapi.cluster_objects import (
    CLASSES_PATH,
    NODES_PATH,
    PODS_PATH,
    PODS_QUERY,
    gpu_pod,
    node_facts,
    unread_gpu_pod,
)
from gigaslice.kubeapi.dataset_paths import DATASET_NODES_PATH, DATASETS_PATH
from gigaslice.kubeapi.informer import Informer
from gigaslice.roles.scheduler.binding import Binder
from gigaslice.roles.scheduler.datasets import DatasetIndex
from gigaslice.roles.scheduler.election import Election, ElectionTimes
from gigaslice.roles.scheduler.http_api import HttpApi
from gigaslice.roles.scheduler.metrics import METRICS, SchedulerMetrics
from gigaslice.roles.scheduler.placer import Placer
from gigaslice.roles.scheduler.pod_conditions import set_condition
from gigaslice.roles.scheduler.settings import SchedulerSettings
from gigaslice.runtime import logs
from gigaslice.runtime.bounded_listener import BoundedListener
from gigaslice.runtime.connection_bounds import ConnectionBounds
from gigaslice.runtime.http_server import endpoints
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.metrics import Values
from gigaslice.runtime.role_start import set_at_signals, start_log
from gigaslice.runtime.tasks import run_together
from gigaslice.runtime.web_servers import served

__all__ = ["SchedulerService", "run"]

_STALE_SECONDS = 60.0
_MOST_WOKEN = 20
_EXPIRE_SECONDS = 0.25
_LEAVE_SECONDS = 5.0
_MOST_BODY = 512 << 20  # five thousand whole nodes
_BOUNDS = ConnectionBounds(held_bytes=_MOST_BODY + (64 << 20))
_CONDITION = "gigaslice.io/GPUsAvailable"


class SchedulerService:
    """All parts of the service.

    Args:
        settings: What the service was told.
        client: The API server.
        election_times: How long this service's lease is held, where it has one.
        wake_seconds: Between two comparisons of waiting pods with what there is.
        wake_patience: Seconds for kube-scheduler to try a pod by itself after a change.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        client: KubeClient,
        *,
        election_times: ElectionTimes = ElectionTimes(),  # noqa: B008  (frozen)
        wake_seconds: float = 0.25,
        wake_patience: float = 0.3,
    ) -> None:
        units = settings.units
        self.placer = Placer(
            ClusterState(units, spread=settings.policy == "spread"),
            settings.reserve,
            DatasetIndex(settings.dataset_affinity),
            settings.dataset_weight,
        )
        self.binder = Binder(client, self.placer, settings.bind_timeout)
        self.metrics = SchedulerMetrics(self._collect)
        self.scraped = endpoints(settings, self.metrics.collect, self.unready)
        self.wakeups = 0
        self.port = 0
        self._settings = settings
        self._client = client
        self._wake_seconds = wake_seconds
        self._wake_patience = wake_patience
        self._log = logs.get_logger("scheduler")
        self._reported = LogOnce()
        clock, placer = time.monotonic, self.placer

        self.nodes = Informer(
            client,
            NODES_PATH,
            node_facts,
            lambda node: placer.put_node(node, clock()),
            lambda node: placer.drop_node(node, clock()),
        )
        self.pods = Informer(
            client,
            PODS_PATH,
            lambda document: gpu_pod(document, units),
            lambda pod: placer.put_pod(pod, clock()),
            lambda pod: placer.drop_pod(pod, clock()),
            query=PODS_QUERY,
            unread=unread_gpu_pod,
        )
        self.classes = Informer(
            client,
            CLASSES_PATH,
            parse_resource_class,
            lambda resource_class: placer.put_class(resource_class, clock()),
            lambda resource_class: placer.drop_class(resource_class, clock()),
            optional=True,
        )
        datasets = placer.datasets
        self.datasets = Informer(
            client, DATASETS_PATH, parse_dataset, datasets.put_object, datasets.drop_object, optional=True
        )
        self.dataset_nodes = Informer(
            client,
            DATASET_NODES_PATH,
            parse_dataset_node,
            lambda report: datasets.put_node(report, clock(), time.time()),
            datasets.drop_node,
            optional=True,
        )
        self.listener: BoundedListener | None = None
        self.election = self._election(units, election_times) if settings.leader_lease else None
        self.api = HttpApi(
            self.placer,
            self.binder,
            self.metrics,
            self.unready,
            best=settings.filter_reply == "best",
            election=self.election,
        )

    def _election(self, units: ClusterUnits, times: ElectionTimes) -> Election:
        placer, binder = self.placer, self.binder

        def put(document: dict[str, Any]) -> None:
            try:
                pod = gpu_pod(document, units)
            except ValueError:
                return  # the watch shows it, too, and has what stands for it
            if pod is not None:
                placer.put_pod(pod, time.monotonic())

        assert self._settings.leader_lease is not None
        election = Election(
            self._client,
            self._settings.leader_lease,
            self._settings.identity or platform.node(),
            busy=lambda: binder.busy,
            clean=lambda: not binder.busy and not placer.attempts.doubtful,
            refresh=self.pods.refresh,
            unbound=lambda: [pod for pod in self.pods.values if not pod.node],
            put=put,
            overtaken=lambda: placer.overtaken(time.monotonic()),
            connected=lambda: self.connected,
            times=times,
        )
        binder.lead_seconds = lambda: election.seconds_left
        return election

    @property
    def connected(self) -> bool:
        """Whether any client has a connection."""
        return self.listener is not None and bool(self.listener.table.everyone())

    def unready(self) -> str | None:
        """Returns why kube-scheduler is not answered now."""
        now = time.monotonic()
        for name, informer in (("nodes", self.nodes), ("pods", self.pods)):
            if not informer.synced.is_set():
                return informer.refusal or f"the {name} have not all been seen yet"
            if informer.silent_seconds(now) > _STALE_SECONDS:
                return f"the API server has not shown the {name} for {_STALE_SECONDS:g} s"
        return None if self.classes.synced.is_set() else "the classes have not all been seen yet"

    async def run(self, stop: asyncio.Event) -> None:
        """Works until STOP is set."""
        await run_together(
            "server",
            {
                "server": self._serve(stop),
                "metrics": self.scraped.run(),
                "nodes": self.nodes.run(),
                "pods": self.pods.run(),
                "classes": self.classes.run(),
                **(
                    {"datasets": self.datasets.run(), "dataset nodes": self.dataset_nodes.run()}
                    if self._settings.dataset_affinity != "off"
                    else {}
                ),
                "expiry": self._expire(),
                "waiting pods": self._wake(),
                "synced": self._settle(),
                **({"election": self.election.run()} if self.election else {}),
            },
        )

    async def _serve(self, stop: asyncio.Event) -> None:
        address = self._settings.listen_address
        host, port = address if address is not None else ("127.0.0.1", 0)
        async with served(self.api.routes(), bounds=_BOUNDS, most_body=_MOST_BODY) as listener:
            self.listener = listener
            ((_, self.port), *_) = await listener.start(host, port)
            self._log.info("serving", address=host or "*", port=self.port)
            await stop.wait()
            await self.binder.settle(_LEAVE_SECONDS)

    async def _settle(self) -> None:
        for informer in (self.nodes, self.pods, self.classes):
            await informer.synced.wait()
        self._log.info("ready", nodes=len(self.nodes), pods=len(self.pods), classes=len(self.classes))
        gc.collect()
        gc.freeze()  # what was loaded stays for long, and would be looked through by every collection
        await asyncio.Event().wait()

    async def _expire(self) -> None:
        while True:
            self.placer.expire(time.monotonic())
            await asyncio.sleep(_EXPIRE_SECONDS)

    async def _wake(self) -> None:
        """Hands pods that fit now back to kube-scheduler, where it has not tried them by itself."""
        compared, full = -1.0, 0.0
        while True:
            await asyncio.sleep(self._wake_seconds)
            now = time.monotonic()
            changed = self.placer.changed
            if not len(self.placer.waiting) or now - changed < self._wake_patience or self.unready():
                continue
            if changed == compared and now - full < 1.0:
                continue
            compared, full = changed, now
            for pod in self.placer.to_be_woken(now, _MOST_WOKEN):
                await self._wake_one(pod)

    async def _wake_one(self, pod: Pod) -> None:
        """Writes a condition of our own: a change of the pod, for which every kube-scheduler tries it again."""
        try:
            await set_condition(
                self._client, pod, _CONDITION, "RoomAppeared", "GPUs that fit have become free"
            )
        except ApiFailure as failure:
            if failure.status not in (404, 409) and self._reported.new("wake", str(failure)):
                self._log.warning("waiting pod not handed back", pod=str(pod), detail=str(failure))
        else:
            self._reported.over("wake")
            self.wakeups += 1

    def _collect(self) -> Values:
        values = Values(METRICS)
        objects = {"nodes": len(self.nodes), "pods": len(self.pods), "resourceclasses": len(self.classes)}
        values.add_all("gigaslice_scheduler_reservations", self.placer.attempts.counts())
        values.add_all("gigaslice_scheduler_objects", objects)
        values.add_all("gigaslice_scheduler_bindings_total", self.binder.outcomes)
        values.add("gigaslice_scheduler_waiting_pods", len(self.placer.waiting))
        values.add("gigaslice_scheduler_wakeups_total", self.wakeups)
        values.add("gigaslice_scheduler_ready", int(self.unready() is None))
        return values


def run(settings: SchedulerSettings, version: str) -> None:
    """Runs the service until SIGTERM or SIGINT. VERSION: for the User-Agent header."""
    log = start_log("scheduler", settings.log_level, settings.log_format, settings.warnings)
    access, whence = find_access(
        settings.kubeconfig, settings.kubernetes_service, variable=settings.kubeconfig_variable
    )
    if access is None:
        raise MissingError(f"no access to the API server: {whence}")
    log.info("starting", version=version, server=str(access), credentials=whence)
    asyncio.run(_run(settings, access, version))
    log.info("stopped")


async def _run(settings: SchedulerSettings, access: Access, version: str) -> None:
    stop = set_at_signals(asyncio.Event())
    async with KubeClient(access, f"gigaslice-scheduler/{version}") as client:
        await SchedulerService(settings, client).run(stop)
