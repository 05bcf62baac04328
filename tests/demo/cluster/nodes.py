# SPDX-License-Identifier: Apache-2.0
"""One node of the cluster: simulated GPUs, the kubelet stand-in, the real node agent, and the dataset service."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from gigaslice.core.cluster.names import GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.roles.dataset_node.service import _cluster as cluster_connections
from tests.cluster import roles
from tests.demo.cluster.control_plane import NAMESPACE, ControlPlane, pods_path
from tests.demo.cluster.objects import Document, Objects, status_of
from tests.demo.cluster.waiting import wait
from tests.fakedriver.env import driver_env
from tests.fakes.dataset_node import NodeWorld
from tests.fakes.dataset_storage import Bucket
from tests.fakes.kubeapi import node_document
from tests.fakes.kubelet import FakeKubelet, Runtime
from tests.fakes.ports import free_port
from tests.integration.agent.conftest import AgentProcess

DATASET_BUCKET = "photos"
_FILE_BYTES = 256 << 10
_RESOURCES = (MEMORY_RESOURCE, GPU_RESOURCE)
_OF_THE_MACHINE = {"cpu": "32", "memory": str(256 << 30), "pods": "110"}
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_STATUS_SECONDS = 0.5  # until the API server is told of other counts
_LEASE_SECONDS = 10.0


class SimulatedNode:
    """A node, whose files are in DIRECTORY; MACHINE is one of tests/fakedriver/machines."""

    def __init__(self, directory: Path, name: str, machine: str, objects: Objects) -> None:
        directory.mkdir()
        self.name = name
        self._objects = objects
        self._path = f"/api/v1/nodes/{name}"
        self._directory = directory
        self._driver = driver_env(machine, directory / "machine.state")
        runtime = Runtime("plain", env=self._driver, select_gpus=True)
        self.kubelet = FakeKubelet(directory / "k", runtime=runtime)
        self.metrics_port = free_port()
        self.agent: AgentProcess
        self.world: NodeWorld

    @contextlib.asynccontextmanager
    async def running(self, plane: ControlPlane) -> AsyncIterator[SimulatedNode]:
        """The node from its start, when the API server lists it, to its end."""
        await self._register()
        self.world = self._data_world(await plane.credentials(roles.DATASET, self.name))
        self.agent = self._agent(await plane.credentials(roles.AGENT, self.name))
        async with cluster_connections(self.world.settings, "demo") as connections:
            self.world.connections = connections
            async with self.world.served():
                await self.world.kubelet.start()
                self.kubelet.start()
                self.agent.start()
                status = asyncio.create_task(self._keep_status())
                try:
                    yield self
                finally:
                    status.cancel()
                    await asyncio.gather(status, return_exceptions=True)
                    if self.agent.process is not None:
                        self.agent.terminate()
                    self.kubelet.close()
                    await self.world.kubelet.stop()

    def _data_world(self, kubeconfig: Path) -> NodeWorld:
        world = NodeWorld(
            self._directory / "d",
            node_name=self.name,
            kube_api="auto",
            kubeconfig=str(kubeconfig),
            allow="s3",
        )
        files = {f"{number:03}.jpg": bytes([number]) * _FILE_BYTES for number in range(40)}
        world.storage.buckets[DATASET_BUCKET] = Bucket(files)
        return world

    def _agent(self, kubeconfig: Path) -> AgentProcess:
        kubelet = self.kubelet
        agent = AgentProcess(self._directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        agent.driver = self._driver
        agent.flags |= {
            "--inventory": "nvml",
            "--whole-gpus": GPU_RESOURCE,
            "--node-name": self.name,
            "--kubeconfig": kubeconfig,
            "--metrics-address": f"127.0.0.1:{self.metrics_port}",
            "--dataset-gate": self.world.settings.run_dir / "gate" / "gate.sock",
            "--scan-interval": "2s",
            "--measure-interval": "1s",
            "--log-level": "info",
        }
        return agent

    async def join(self) -> None:
        """Waits until the node offers its GPUs; then its agent's pod is listed, as in a real cluster."""

        def offered() -> bool:
            status = self._objects.node(self.name).get("status", {})
            return all(int(status.get("allocatable", {}).get(name, 0)) for name in _RESOURCES)

        await wait(offered, f"{self.name} offers its GPUs")
        pod = self._agent_pod()
        address = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        status = {**status_of("Running", "node"), **address}
        await self._objects.create(pods_path(NAMESPACE), pod)
        await self._objects.change(
            f"{pods_path(NAMESPACE, pod['metadata']['name'])}/status", {"status": status}
        )

    # --- what a kubelet tells the API server --------------------------------------------------------------------

    async def _register(self) -> None:
        document = node_document(
            self.name, allocatable=_OF_THE_MACHINE, labels={"kubernetes.io/hostname": self.name}
        )
        await self._objects.create("/api/v1/nodes", document)
        # A new node is kept from pods by a taint until something has seen that it is ready.
        await self._objects.change(self._path, {"spec": {"taints": None}})

    async def _keep_status(self) -> None:
        """Tells what the node offers when that changes, and renews its lease."""
        told: dict[str, str] = {}
        renewed = float("-inf")
        while True:
            counts = await asyncio.to_thread(self.kubelet.allocatable)
            offered = {name: str(counts[name]) for name in _RESOURCES if name in counts}
            if offered != told:
                numbers = {**_OF_THE_MACHINE, **offered}
                await self._objects.change(
                    f"{self._path}/status", {"status": {"capacity": numbers, "allocatable": numbers}}
                )
                told = offered
            if time.monotonic() - renewed > _LEASE_SECONDS:
                await self._renew_lease()
                renewed = time.monotonic()
            await asyncio.sleep(_STATUS_SECONDS)

    async def _renew_lease(self) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": "kube-node-lease"},
        }
        await self._objects.create(_LEASES, {**lease, "spec": spec})
        await self._objects.change(f"{_LEASES}/{self.name}", {"spec": spec})

    def _agent_pod(self) -> Document:
        ports = [{"name": "metrics", "containerPort": self.metrics_port}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"gigaslice-{self.name}",
                "namespace": NAMESPACE,
                "labels": {"app.kubernetes.io/component": "node"},
            },
            "spec": {"nodeName": self.name, "containers": [{"name": "node", "image": "x", "ports": ports}]},
            "status": {"phase": "Pending"},
        }
