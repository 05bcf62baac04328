# SPDX-License-Identifier: Apache-2.0
"""The control plane of stand-ins: an API server and a kube-scheduler in this process, and admission by the demo.

The API server stand-in has no admission and no policies. So the chart is installed as for clusters without policies,
where the webhook does all of it, and the demo asks the webhook as an API server would.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout

from gigaslice.kubeapi.client import KubeClient
from tests.cluster import roles
from tests.demo.cluster.control_plane import (
    NAMESPACE,
    WEBHOOK,
    ControlPlane,
    Document,
    Ports,
    pods_path,
)
from tests.demo.cluster.reviews import reviewed
from tests.fakes.kubeapi import ApiServer
from tests.fakes.kubeapi.resources import RESOURCES
from tests.fakes.scheduler import SchedulerStandIn

_CONFIGURATIONS = {"mutate": "mutatingwebhookconfigurations", "validate": "validatingwebhookconfigurations"}


class StandIns(ControlPlane):
    """The tests' stand-ins. WHY: why it is not a real control plane, and what makes it one."""

    def __init__(self, directory: Path, ports: Ports, why: str) -> None:
        super().__init__(directory, ports)
        self.description = f"stand-ins for API server and kube-scheduler ({why})"
        self._api = ApiServer()
        self._session: ClientSession

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """See ControlPlane."""
        timeout = ClientTimeout(total=10)
        async with self._api, ClientSession(timeout=timeout) as self._session:
            self.kubeconfig = self._api.kubeconfig(self._directory)
            yield

    async def install(self) -> None:
        """See ControlPlane. Only what the stand-in serves is there: no rights, and no definitions."""
        self.chart = roles.chart("dataset.enabled=true", "admission.mode=webhook")
        plurals = {one.kind: one.plural for one in RESOURCES.values()}
        self._api.put("namespaces", {"metadata": {"name": NAMESPACE}})
        for document in self.chart:
            if document["kind"] in plurals:
                self._api.put(plurals[document["kind"]], document)

    async def credentials(self, account: str, node: str = "") -> Path:
        """See ControlPlane. The stand-in knows one account only."""
        return self.kubeconfig

    def scheduling(self) -> AbstractAsyncContextManager[Any]:
        """See ControlPlane."""
        return SchedulerStandIn(self._api, f"http://127.0.0.1:{self._ports.scheduler}")

    async def create_pod(self, client: KubeClient, document: Document, *, dry_run: bool = False) -> Document:
        """See ControlPlane."""
        path = pods_path(document["metadata"]["namespace"])
        query = {"dryRun": "All"} if dry_run else None
        admitted = await self._admitted(document)
        return (await client.request("POST", path, query, admitted)).document()

    async def _admitted(self, document: Document) -> Document:
        """The pod as the webhook completes it, asked as an API server asks. Raises Refused."""
        for path, plural in _CONFIGURATIONS.items():
            for hook in self._api.named(plural)[WEBHOOK]["webhooks"]:
                document = await reviewed(self._session, self._ports.webhook, path, hook, document)
        return document
