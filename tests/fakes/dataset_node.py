# SPDX-License-Identifier: Apache-2.0
"""The dataset service in this process: real sockets, store, tasks and fetches over mounts and sources in memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from gigaslice.core.kube.reasons import EventReason
from gigaslice.core.model import DATASET_DRIVER, CsiVolume, Pod, PodContainer
from gigaslice.roles.dataset_node.dataset_objects import ClusterDatasets
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.node_io import NodeIo
from gigaslice.roles.dataset_node.service import ClusterConnections, DatasetService
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.dataset_node.store import Volume
from gigaslice.runtime.settings import load
from tests.fakes.dataset_objects import DatasetApi
from tests.fakes.dataset_storage import MemoryStorage
from tests.fakes.kubelet.csi import CsiKubelet, CsiPod, volume_handle
from tests.fakes.mounts import MemoryMounts

__all__ = ["NodeWorld"]

GPU = "gigaslice.io/vgpu-memory"


class NodeWorld:
    """One node: a kubelet, a dataset service, storage. To be used inside one event loop.

    Attributes:
        asking: Pods whose containers ask for GPUs, by UID.
        said: The events on pods: (pod, kind, reason, text).
        fetch_patience: Seconds that a fetch that is given up waits for its threads.
        api: Has the cluster's Dataset objects; none until a test makes one: a service without access reads none.
        connections: What the service has of a cluster, in place of this world's pods and events.
    """

    def __init__(self, root: Path, *, scale: float = 0.05, **settings: str) -> None:
        self.root = root
        self.mounts = MemoryMounts()
        self.storage = MemoryStorage()
        self.kubelet = CsiKubelet(root / "k", scale=scale)
        self.asking: set[str] = set()
        self.said: list[tuple[str, str, str, str]] = []
        self.disk: Callable[[], object] | None = None
        self.memory = True
        self.fetch_patience = 5.0
        self.api: DatasetApi | None = None
        self.connections: ClusterConnections | None = None
        self.agents: list[asyncio.StreamWriter] = []
        flags = {
            "state-dir": str(root / "s"),
            "run-dir": str(root / "r"),
            "kubelet-root": str(root / "k"),
            "node-name": "lab-node",
            "metrics-address": "off",
            "keep-free": "0%",
            "kube-api": "off",
            **{key.replace("_", "-"): value for key, value in settings.items()},
        }
        self.settings = load(DatasetSettings, flags, {})
        self.service: DatasetService

    def make(self) -> DatasetService:
        """A service over the world's mounts and sources, not running yet."""
        bounds = FetchLimits()

        async def fetched(plan, listing, source, part, *, task, started):
            return await fetch(
                plan, listing, source, part,
                bounds=bounds, task=task, started=started, patience=self.fetch_patience,
            )  # fmt: skip

        async def mount_source(spec, credentials, below):
            where = below / "mounted"
            where.mkdir(parents=True)
            self.mounts.network(spec.kind, f"{spec.server}:{spec.path}", where, ())
            return str(where)

        io = NodeIo(self.mounts, self.storage, fetched, mount_source)
        cluster = self.connections or ClusterConnections(pods=self, reporter=self)
        if self.api is not None:
            objects = ClusterDatasets(self.api, self.settings.trusted_namespaces)  # type: ignore[arg-type]
            cluster = dataclasses.replace(cluster, objects=objects)
        service = DatasetService(self.settings, io, "test", cluster)
        early = dataclasses.replace(service.tasks._early, keeps_secrets=self.memory)
        service.tasks._early = early
        if self.disk is not None:
            service.store._room.disk = self.disk
        self.service = service
        return service

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[DatasetService]:
        """The parts of the service without its sockets: what is asked of `tasks` is all that happens."""
        service = self.make()
        service.store.open()
        try:
            yield service
        finally:
            for bucket in self.storage.buckets.values():
                bucket.hold.set()
            await service.tasks.close()
            await service.flights.close()
            service.store.close()
            service.threads.close()
            service.storage_threads.close()

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[DatasetService]:
        """One life of the service; its end is one by SIGTERM."""
        service, stop = self.make(), asyncio.Event()
        parts = self.connections.parts(service) if self.connections else {}
        running = asyncio.create_task(service.run(stop, parts))
        try:
            for _ in range(2000):
                if service.csi.endpoint.exists() or running.done():
                    break
                await asyncio.sleep(0.005)
            yield service
        finally:
            stop.set()
            await asyncio.wait_for(running, 30)

    def volume(self, name: str, namespace: str = "team") -> Volume:
        """A volume of a pod that this node has, without a kubelet that asks for it."""
        pod = CsiPod(name, [], namespace, uid=f"uid-{namespace}-{name}")
        target = self.kubelet.target(pod, "data")
        target.parent.mkdir(parents=True, exist_ok=True)
        return Volume(volume_handle(pod.uid, "data"), str(target), pod.uid, namespace, name)

    def metric(self, name: str, *labels: str) -> float:
        """The value of a metric now."""
        value = self.service.collect().series[name][labels]
        assert isinstance(value, int | float)
        return value

    async def pod(self, volume: Volume) -> Pod | None:
        found = self.kubelet.pods.get(volume.pod_uid)
        return None if found is None else self.specification(found)

    def specification(self, pod: CsiPod) -> Pod:
        requests = {GPU: 8} if pod.uid in self.asking else {}
        return Pod(
            pod.namespace,
            pod.name,
            pod.uid,
            containers=(PodContainer("main", requests=requests),),
            volumes=tuple(
                CsiVolume(one.name, DATASET_DRIVER, one.attributes, mounted_by=("main",))
                for one in pod.volumes
            ),
        )

    def say(self, volume: Volume, reason: EventReason, text: str) -> None:
        self.said.append((volume.pod, reason.kind, reason.name, text))

    def reasons(self, pod: CsiPod) -> list[str]:
        return [reason for name, _, reason, _ in self.said if name == pod.name]

    def shown(self, pod: CsiPod, volume: str = "data", directory: str = "") -> list[str]:
        """The sources of what is mounted at a volume, the top one last, without directories."""
        where = self.kubelet.target(pod, volume) / directory
        return [Path(one).name for one in self.mounts.at(where)]

    def shown_at(self, volume: Volume) -> list[str]:
        """The same for a volume without a kubelet."""
        return [Path(one).name for one in self.mounts.at(Path(volume.target))]
