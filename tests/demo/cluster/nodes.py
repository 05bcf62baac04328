"""One node of the cluster: simulated GPUs, the kubelet stand-in, the real node agent, and the dataset service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gigaslice.core.cluster.names import GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.roles.dataset_node.service import _cluster as cluster_connections
from tests.cluster.control_plane import free_port
from tests.demo.cluster.waiting import wait
from tests.fakedriver.env import driver_env
from tests.fakes.dataset_node import NodeWorld
from tests.fakes.dataset_storage import Bucket
from tests.fakes.kubeapi import ApiServer, node_document
from tests.fakes.kubelet import FakeKubelet, Runtime
from tests.integration.agent.conftest import AgentProcess

NAMESPACE = "gigaslice"
DATASET_BUCKET = "photos"
_FILE_BYTES = 256 << 10


class SimulatedNode:
    """A node, whose files are in DIRECTORY; MACHINE is one of tests/fakedriver/machines."""

    def __init__(self, directory: Path, name: str, machine: str, kubeconfig: Path) -> None:
        directory.mkdir()
        self.name = name
        driver = driver_env(machine, directory / "machine.state")
        self.kubelet = FakeKubelet(directory / "k", runtime=Runtime("plain", env=driver, select_gpus=True))
        self.agent = AgentProcess(directory, self.kubelet.plugin_directory, self.kubelet.pod_resources_socket)
        self.metrics_port = free_port()
        self.world = NodeWorld(
            directory / "d", node_name=name, kube_api="auto", kubeconfig=str(kubeconfig), allow="s3"
        )
        files = {f"{number:03}.jpg": bytes([number]) * _FILE_BYTES for number in range(40)}
        self.world.storage.buckets[DATASET_BUCKET] = Bucket(files)
        self.agent.driver = driver
        self.agent.flags |= {
            "--inventory": "nvml",
            "--whole-gpus": GPU_RESOURCE,
            "--node-name": name,
            "--kubeconfig": kubeconfig,
            "--metrics-address": f"127.0.0.1:{self.metrics_port}",
            "--dataset-gate": self.world.settings.run_dir / "gate" / "gate.sock",
            "--scan-interval": "2s",
            "--measure-interval": "1s",
            "--log-level": "info",
        }

    @contextlib.asynccontextmanager
    async def running(self, api: ApiServer) -> AsyncIterator[SimulatedNode]:
        """The node from its start, when API lists it, to its end."""
        api.put("nodes", node_document(self.name))
        async with cluster_connections(self.world.settings, "demo") as connections:
            self.world.connections = connections
            async with self.world.served():
                await self.world.kubelet.start()
                self.kubelet.start()
                self.agent.start()
                try:
                    yield self
                finally:
                    if self.agent.process is not None:
                        self.agent.terminate()
                    self.kubelet.close()
                    await self.world.kubelet.stop()

    async def join(self, api: ApiServer) -> None:
        """Waits until the node offers its GPUs, and lists them and the agent's pod as a real cluster would."""
        resources = (MEMORY_RESOURCE, GPU_RESOURCE)
        await wait(
            lambda: all(self.kubelet.allocatable().get(name) for name in resources),
            f"{self.name} offers its GPUs",
        )
        offered = {name: str(self.kubelet.allocatable()[name]) for name in resources}
        api.change("nodes", self.name, {"status": {"allocatable": offered}})
        api.put("pods", self._agent_pod())

    def _agent_pod(self) -> dict[str, Any]:
        ports = [{"name": "metrics", "containerPort": self.metrics_port}]
        return {
            "metadata": {
                "name": f"gigaslice-{self.name}",
                "namespace": NAMESPACE,
                "labels": {"app.kubernetes.io/component": "node"},
            },
            "spec": {"nodeName": self.name, "containers": [{"name": "node", "image": "x", "ports": ports}]},
            "status": {"phase": "Running", "podIP": "127.0.0.1"},
        }
