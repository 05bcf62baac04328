# SPDX-License-Identifier: Apache-2.0
"""The role `gigaslice dataset`: the store, tasks, the CSI driver, the start gate and the commands of one node.

Nothing is decided here. The event loop carries calls and answers only; what blocks (disk, mounts, sources) is done in
threads. Everything that a later start needs is on the disk, in the mount table, or in memory outside of this process.
So the process may be killed at any time: readers go on reading, and the next start finds what is mounted and fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.core.errors import GigasliceError
from gigaslice.kubeapi.access import Access, find_access
from gigaslice.roles.dataset_node.control import WAIT_PREFIX, CommandServer
from gigaslice.roles.dataset_node.csi.driver import IdentityServicer, NodeServicer
from gigaslice.roles.dataset_node.csi.registration import CsiServer
from gigaslice.roles.dataset_node.fetching.single_flight import SingleFlight
from gigaslice.roles.dataset_node.metrics import METRICS
from gigaslice.roles.dataset_node.node_io import NodeIo, node_io
from gigaslice.roles.dataset_node.settings import DatasetSettings, admits
from gigaslice.roles.dataset_node.start_gate import GATE_DIRECTORY, StartGate
from gigaslice.roles.dataset_node.store import Budget, DatasetMetadata, DatasetStore, Volume
from gigaslice.roles.dataset_node.tasks.dataset_uses import DatasetUses
from gigaslice.roles.dataset_node.tasks.early_requests import EarlyRequests, in_memory
from gigaslice.roles.dataset_node.tasks.local_mounts import LocalMounts
from gigaslice.roles.dataset_node.tasks.protocols import (
    DatasetObjects,
    NoDatasetObjects,
    NoPods,
    NoReporter,
    Pods,
    Reporter,
)
from gigaslice.roles.dataset_node.tasks.provisioner import DatasetCounters, DatasetProvisioner
from gigaslice.roles.dataset_node.tasks.threads import Threads
from gigaslice.roles.dataset_node.tasks.volume_task import TaskDependencies
from gigaslice.roles.dataset_node.tasks.volume_tasks import EarlyPublishing, VolumeTasks
from gigaslice.runtime import logs
from gigaslice.runtime.heap import keep_small, limit_arenas
from gigaslice.runtime.http_server import endpoints
from gigaslice.runtime.metrics import Values
from gigaslice.runtime.role_start import set_at_signals, start_log, until
from gigaslice.runtime.tasks import lasting, run_together
from gigaslice.runtime.time_limit import within

__all__ = ["ClusterConnections", "DatasetService", "node_access", "run", "without_links"]

_LEAVE_SECONDS = 5.0
_ROOM_THREADS = 4  # fetches that wait for room at the same time
_STORAGE_THREADS = 16  # volumes of local mode that are mounted at the same time
_WAIT_SWEEP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ClusterConnections:
    """What the service has of the cluster: nothing, without access."""

    pods: Pods = field(default_factory=NoPods)
    reporter: Reporter = field(default_factory=NoReporter)
    objects: DatasetObjects = field(default_factory=NoDatasetObjects)
    parts: Callable[[DatasetService], dict[str, Coroutine[Any, Any, None]]] = lambda service: {}


class DatasetService:
    """All parts of the service.

    Args:
        settings: What the service was told.
        io: Mounts and sources.
        version: Of this program.
        cluster: What it has of the cluster.
    """

    def __init__(
        self, settings: DatasetSettings, io: NodeIo, version: str, cluster: ClusterConnections
    ) -> None:
        self.settings = settings
        self.counters = DatasetCounters()
        self.threads = Threads()
        self.room_threads = Threads(_ROOM_THREADS, "dataset-room")
        self.storage_threads = Threads(_STORAGE_THREADS, "dataset-storage")
        self._pod_directories = settings.kubelet_root / "pods"
        self.store = DatasetStore(
            settings.state_dir,
            io.mounts,
            budget=Budget(settings.capacity, settings.keep_free),
            quotas=settings.quotas,
            default_quota=settings.quota,
            unpack=io.unpack,
            pod_is_there=self._pod_is_there,
        )
        self.flights: SingleFlight[DatasetMetadata] = SingleFlight()
        self.uses = DatasetUses()
        provisioner = DatasetProvisioner(
            self.store,
            self.flights,
            io.open_source,
            io.fetch,
            threads=self.threads,
            counters=self.counters,
            uses=self.uses,
            room_threads=self.room_threads,
        )
        local = LocalMounts(
            settings.state_dir / "local", io.mounts, io.mount_source, threads=self.storage_threads
        )
        dependencies = TaskDependencies(
            store=self.store,
            provisioner=provisioner,
            objects=cluster.objects,
            reporter=cluster.reporter,
            threads=self.threads,
            storage=self.storage_threads,
            counters=self.counters,
            attach=local.attach,
            release=local.release,
            admit=functools.partial(_admit, settings.allow),
        )
        self.gate = StartGate(settings.run_dir / GATE_DIRECTORY)
        early = EarlyPublishing(
            resources=lambda: self.gate.resources if settings.early == "auto" else (),
            kept=EarlyRequests(settings.run_dir / "early"),
            keeps_secrets=in_memory(settings.run_dir, io.mounts.table()),
            mark=self.gate.mark_early,
        )
        self.tasks = VolumeTasks(dependencies, cluster.pods, early=early, detach=local.detach)
        self.gate.tasks = self.tasks
        self.csi = CsiServer(
            IdentityServicer(version),
            NodeServicer(self.tasks, settings.node, self._pod_directories),
            settings.kubelet_root,
        )
        self.control = CommandServer(
            self.tasks, self.store, settings.state_dir, settings.run_dir / "wait", threads=self.threads
        )
        self.http = endpoints(settings, self.collect, self.unready)
        self._log = logs.get_logger("dataset")

    def fetched_bytes(self) -> dict[str, int]:
        """What has arrived of each dataset that is being fetched now, by key."""
        sizes = {}
        for key in self.flights.keys():  # noqa: SIM118  (a method, not a mapping)
            flight = self.flights[key]
            progress = flight.progress if flight is not None else None
            sizes[key] = progress.bytes if progress is not None else 0
        return sizes

    def unready(self) -> str | None:
        """Why the kubelet's calls are not answered; None when they are."""
        return None if self.csi.registered else "the kubelet has not accepted the driver yet; see the log"

    async def run(
        self, stop: asyncio.Event, extra: Mapping[str, Coroutine[Any, Any, None]] | None = None
    ) -> None:
        """Works until STOP is set. EXTRA: parts of the API server's side, by name."""
        await self.threads.run(self.store.open)
        try:
            await self.tasks.restore()
            await run_together(
                "stop",
                {
                    "stop": until(stop),
                    "csi": lasting("csi", self.csi.run),
                    "gate": lasting("gate", self.gate.run),
                    "control": lasting("control", self.control.run),
                    "http": lasting("http", self.http.run),
                    "sweep": lasting("sweep", self._sweep),
                    "memory": keep_small(),
                    **(extra or {}),
                },
            )
        finally:
            self.store.interrupt()
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._close(), _LEAVE_SECONDS)
            await asyncio.to_thread(self.store.close)
            self.threads.close()
            self.room_threads.close()
            self.storage_threads.close()

    async def _close(self) -> None:
        await self.tasks.close()
        await self.flights.close()

    async def _sweep(self) -> None:
        await asyncio.gather(self.tasks.run(), self._sweep_waits())

    async def _sweep_waits(self) -> None:
        """Unmounts what init containers have asked for, when their pods are gone: no call says so."""
        while True:
            for record in self.store.records().values():
                volume = record.volume
                if volume.id.startswith(WAIT_PREFIX) and not self._pod_is_there(volume):
                    try:
                        await self.tasks.unpublish(volume.id, volume.target)
                        await self.threads.run(_remove_empty, Path(volume.target).parent)
                    except GigasliceError as error:
                        self._log.warning("volume not removed", volume=volume.id, detail=str(error))
            await asyncio.sleep(_WAIT_SWEEP_SECONDS)

    def _pod_is_there(self, volume: Volume) -> bool:
        if volume.id.startswith(WAIT_PREFIX):
            return (self._pod_directories / volume.pod_uid).exists()
        return Path(volume.target).parent.exists()

    def collect(self) -> Values:
        """The metrics of now."""
        stored, counters = self.store.stored(), self.counters
        used = {dataset.metadata.key for dataset in stored if dataset.holders or dataset.waiting}
        sizes, counts = {"ready": 0, "partial": 0}, {"ready": 0, "partial": 0}
        for dataset in stored:
            state = "ready" if dataset.complete else "partial"
            sizes[state] += dataset.metadata.size
            counts[state] += 1
        published = sum(1 for record in self.store.records().values() if record.volume_sources)
        values = Values(METRICS)
        for name, value in (
            ("hits_total", counters.hits),
            ("misses_total", counters.misses),
            ("joins_total", counters.joins),
            ("fetch_bytes_total", counters.fetched_bytes),
            ("fetch_files_total", counters.fetched_files),
            ("fetch_seconds_total", counters.fetch_seconds),
            ("evictions_total", self.store.evictions),
            ("trash_failures_total", self.store.trash_failures),
            ("local_fallbacks_total", counters.fallbacks),
            ("gate_waits_total", counters.gate_waits),
            ("gate_wait_seconds_total", counters.gate_wait_seconds),
            (
                "in_use_bytes",
                sum(dataset.metadata.size for dataset in stored if dataset.metadata.key in used),
            ),
            ("free_bytes", max(0, self.store.room())),
            ("trash_bytes", self.store.trash_bytes),
            ("registered", int(self.csi.registered)),
            ("agents", int(len(self.gate.resources) > 0)),
        ):
            values.add(f"gigaslice_dataset_{name}", value)
        for name, by_label in (
            ("fetches_total", {"complete": counters.fetches, "failed": counters.failures}),
            ("cache_bytes", sizes),
            ("datasets", counts),
            ("volumes", {"published": published, "pending": len(self.tasks.tasks)}),
        ):
            values.add_all(f"gigaslice_dataset_{name}", by_label)
        return values


def _admit(allowed: tuple[str, ...], spec: SourceSpec) -> None:
    if not admits(allowed, spec.canonical):
        what = f"{spec.kind}://{spec.server}" if spec.kind != "file" else spec.path
        raise RequestError(
            f"source {spec.canonical} is not allowed on this node; an administrator can allow {what} with --allow"
        )


def _remove_empty(directory: Path) -> None:
    for path in (directory, directory.parent):
        with contextlib.suppress(OSError):
            path.rmdir()


def without_links(settings: DatasetSettings) -> DatasetSettings:
    """SETTINGS with the state directory as the mount table calls it; no mount follows a link."""
    return replace(settings, state_dir=settings.state_dir.resolve())


def run(settings: DatasetSettings, version: str) -> None:
    """Runs the service until SIGTERM or SIGINT. VERSION: of this program."""
    limit_arenas()
    log = start_log("dataset", settings.log_level, settings.log_format, settings.warnings)
    settings = without_links(settings)
    log.info("starting", version=version, state_dir=str(settings.state_dir))
    asyncio.run(_run(settings, version))
    log.info("stopped")


async def _run(settings: DatasetSettings, version: str) -> None:
    stop = set_at_signals(asyncio.Event())
    io = node_io(settings)
    async with _cluster(settings, version) as cluster:
        node_service = DatasetService(settings, io, version, cluster)
        await node_service.run(stop, cluster.parts(node_service))


def node_access(settings: DatasetSettings) -> tuple[Access | None, str]:
    """How to reach the API server, and a sentence: where that is from, or why there is none.

    $KUBECONFIG may be that of whoever has typed the command: it makes no node of a machine that has not been named.
    """
    if settings.kube_api != "auto":
        return None, "off"
    access, whence = find_access(
        settings.kubeconfig, settings.kubernetes_service, variable=settings.kubeconfig_variable
    )
    persons = settings.kubeconfig is None and settings.kubeconfig_variable
    if access is not None and persons and not settings.node_name:
        return None, "$KUBECONFIG counts with --node-name only; --kubeconfig counts without it, too"
    return access, whence


@contextlib.asynccontextmanager
async def _cluster(settings: DatasetSettings, version: str) -> AsyncIterator[ClusterConnections]:
    """The API server's side; its absence where there is no access."""
    access, whence = node_access(settings)
    if access is None:
        logs.get_logger("dataset").warning("no access to the API server", detail=whence)
        yield ClusterConnections()
        return
    from gigaslice.kubeapi.client import KubeClient  # noqa: PLC0415
    from gigaslice.kubeapi.events import EventRecorder  # noqa: PLC0415
    from gigaslice.roles.dataset_node.cluster import ClusterPods, ClusterReporter  # noqa: PLC0415  (a third of the memory)
    from gigaslice.roles.dataset_node.dataset_objects import ClusterDatasets  # noqa: PLC0415
    from gigaslice.roles.dataset_node.publishing import NodePublisher  # noqa: PLC0415

    async with KubeClient(access, f"gigaslice-dataset/{version}") as client:
        events = EventRecorder(client, "dataset", settings.node)

        def parts(node_service: DatasetService) -> dict[str, Coroutine[Any, Any, None]]:
            publisher = NodePublisher(
                client,
                settings.node,
                node_service.store,
                node_service.fetched_bytes,
                uses=node_service.uses,
                threads=node_service.threads,
            )
            return {
                "events": lasting("events", events.run),
                "publisher": lasting("publisher", publisher.run),
            }

        yield ClusterConnections(
            ClusterPods(client),
            ClusterReporter(events),
            ClusterDatasets(client, settings.trusted_namespaces),
            parts,
        )
