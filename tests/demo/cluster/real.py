# SPDX-License-Identifier: Apache-2.0
"""A real control plane on loopback: etcd, kube-apiserver, kube-scheduler, where it is there kube-controller-manager.

All of the chart but its workloads is in it: definitions, accounts with their rights, policies and the webhook's
configuration. The API server calls the webhook itself. There is no Service network, so the webhook's Service is one of
type ExternalName for localhost: the API server keeps to the Service's name, for which the webhook's certificate is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from gigaslice.kubeapi.client import ApiFailure, KubeClient
from tests.cluster import control_plane as cluster
from tests.cluster import roles
from tests.demo.cluster.control_plane import (
    WEBHOOK,
    ControlPlane,
    Document,
    Ports,
    Refused,
    container_of,
    pods_path,
)

_WORKLOADS = ("Deployment", "DaemonSet", "PodDisruptionBudget")
_REFUSALS = (400, 403, 422)
"""Statuses with which admission and policies refuse."""


class RealControlPlane(ControlPlane):
    """BINARIES: paths by name, as `find_binaries` of tests/cluster gives them. OTHERWISE: what makes it stand-ins."""

    def __init__(self, directory: Path, ports: Ports, binaries: dict[str, str], otherwise: str) -> None:
        super().__init__(directory, ports)
        folders = sorted({str(Path(path).parent) for path in binaries.values()})
        self.description = f"{', '.join(binaries)} from {' and '.join(folders)} ({otherwise})"
        folder = directory / "control-plane"
        folder.mkdir()
        self._plane = cluster.ControlPlane(folder, binaries)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """See ControlPlane."""
        await asyncio.to_thread(self._plane.__enter__)
        try:
            self.kubeconfig = self._plane.kubeconfig()
            if cluster.MANAGER in self._plane.binaries:
                self._plane.start(
                    cluster.MANAGER, f"--kubeconfig={self.kubeconfig}", "--leader-elect=false",
                    "--bind-address=127.0.0.1", f"--secure-port={cluster.free_port()}",
                    f"--service-account-private-key-file={self._plane.folder / 'sa.key'}",
                )  # fmt: skip
            yield
        finally:
            await asyncio.to_thread(self._plane.__exit__)

    async def install(self) -> None:
        """See ControlPlane."""
        await asyncio.to_thread(self._install)

    def _install(self) -> None:
        version = str(self._plane.admin.get("/version")["gitVersion"]).removeprefix("v")
        self.chart = roles.chart("dataset.enabled=true", version=version)
        for document in self.chart:
            if document["kind"] == "Service" and document["metadata"]["name"] == WEBHOOK:
                document["spec"] = {"type": "ExternalName", "externalName": "localhost"}
            for hook in document.get("webhooks", ()):
                hook["clientConfig"]["service"]["port"] = self._ports.webhook
        roles.apply(self._plane, self.chart, without=_WORKLOADS)

    async def credentials(self, account: str, node: str = "") -> Path:
        """See ControlPlane."""
        return await asyncio.to_thread(roles.kubeconfig, self._plane, account, node)

    @contextlib.asynccontextmanager
    async def scheduling(self) -> AsyncIterator[None]:
        """See ControlPlane."""
        file = self._plane.folder / "scheduler.yaml"
        configuration = await asyncio.to_thread(
            roles.scheduler_configuration, self.chart, self._plane, self._ports.scheduler
        )
        file.write_text(configuration)
        flags = [flag for flag in container_of(self.chart, "kube-scheduler")["command"][1:]
                 if not flag.startswith("--config=")]  # fmt: skip
        self._plane.start(
            "kube-scheduler", *flags, f"--config={file}", "--bind-address=127.0.0.1",
            f"--secure-port={cluster.free_port()}", f"--cert-dir={self._plane.folder}",
        )  # fmt: skip
        yield

    async def create_pod(self, client: KubeClient, document: Document, *, dry_run: bool = False) -> Document:
        """See ControlPlane."""
        path = pods_path(document["metadata"]["namespace"])
        try:
            query = {"dryRun": "All"} if dry_run else None
            return (await client.request("POST", path, query, document)).document()
        except ApiFailure as failure:
            if failure.status not in _REFUSALS:
                raise
            raise Refused(str(failure).partition(f" {failure.status} ")[2]) from None
