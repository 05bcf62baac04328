# SPDX-License-Identifier: Apache-2.0
"""The controller with its webhook beside a real API server, to which no Service leads."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from gigaslice.kubeapi.access import find_access
from gigaslice.kubeapi.client import KubeClient
from gigaslice.role_settings import load
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.controller.parts import ControllerParts
from gigaslice.roles.webhook.rotation import WebhookCertificates
from gigaslice.roles.webhook.server import routes
from gigaslice.runtime.web_servers import served as served_by
from tests.cluster import roles
from tests.cluster.control_plane import ControlPlane
from tests.fakes.ports import free_port


class RunningController:
    """A replica of the controller in a thread of its own, with a token of its own account; its webhook is on loopback.

    unnamed_seconds: how long a template stays that no pod names; None: as in a cluster.
    """

    def __init__(self, plane: ControlPlane, *, unnamed_seconds: float | None = None) -> None:
        self.port = free_port()
        self.reviews: list[tuple[str, bool]] = []
        self.failure: BaseException | None = None
        self.parts: ControllerParts
        self._plane, self._unnamed_seconds = plane, unnamed_seconds
        self._loop = asyncio.new_event_loop()
        self._ready, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._body)

    def __enter__(self) -> RunningController:
        self._thread.start()
        assert self._ready.wait(60) and self.failure is None, self.failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(30)
        self._loop.close()

    def _body(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        except BaseException as error:  # noqa: BLE001  (shown by the test that waits)
            self.failure = error
            self._ready.set()

    async def _run(self) -> None:
        access, _ = find_access(roles.kubeconfig(self._plane, roles.CONTROLLER), "")
        assert access is not None
        settings = {
            "namespace": roles.NAMESPACE, "webhook-address": f"127.0.0.1:{self.port}", "metrics-address": "off",
            "webhook-secret": "gigaslice-webhook", "webhook-service": "gigaslice-webhook",
            "webhook-configuration": "gigaslice-webhook",
        }  # fmt: skip
        async with KubeClient(access, "test") as client:
            parts = self.parts = ControllerParts(
                client, load(ControllerConfig, settings, {}), f"r{self.port}"
            )
            if self._unnamed_seconds is not None:
                parts.templates._unnamed_seconds = self._unnamed_seconds
            tasks = [asyncio.create_task(part()) for part in (*parts.essential.values(), parts.events.run)]
            certificates = WebhookCertificates(
                client, namespace=roles.NAMESPACE, secret="gigaslice-webhook", service="gigaslice-webhook",
                configuration="gigaslice-webhook",
            )  # fmt: skip
            certificates._host = "localhost"  # no address of a Service leads to this process
            await certificates.prepare()
            while not parts._may_write():
                await asyncio.sleep(0.1)
            answers = routes(parts.facts, lambda path, ok: self.reviews.append((path, ok)), parts.claims)
            async with served_by(answers, certificates.context) as listener:
                await listener.start("localhost", self.port)
                self._ready.set()
                await self._ended.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def apply_webhooks(self, documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Applies the webhook configurations of the chart's documents, with the address of this replica's webhook."""
        applied = []
        for document in documents:
            if "WebhookConfiguration" in document["kind"]:
                configuration = copy.deepcopy(dict(document))
                for hook in configuration["webhooks"]:
                    path = hook["clientConfig"]["service"]["path"]
                    hook["clientConfig"] = {"url": f"https://localhost:{self.port}{path}"}
                self._plane.admin.apply(configuration)
                applied.append(configuration)
        return applied
