"""The cluster's side: what a chart leaves in the API server, admission as the server does it, and the processes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonpatch
from aiohttp import ClientConnectionError, ClientSession

from tests.cluster.control_plane import free_port
from tests.demo.clients import DemoError
from tests.demo.cluster.nodes import NAMESPACE
from tests.demo.machine import ROOT
from tests.fakes.kubeapi import ApiServer

SPACES = ("research", "team-a", "serving", NAMESPACE)
_CONFIGURATION = "mutatingwebhookconfigurations"
_HOST = f"gigaslice-webhook.{NAMESPACE}.svc"


class Refused(Exception):  # noqa: N818  (an answer that the story is after)
    """Admission refuses the pod; the text is its sentence."""


class ControlPlane:
    """The scheduler's service and the controller as processes, with their addresses."""

    def __init__(self, directory: Path, api: ApiServer, kubeconfig: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self.scheduler_port, self.page_port, self.webhook_port = free_port(), free_port(), free_port()
        self._metrics = {"scheduler": free_port(), "controller": free_port()}
        self._directory = directory

    @property
    def page(self) -> str:
        """The address of the web page."""
        return f"http://127.0.0.1:{self.page_port}/"

    @contextlib.contextmanager
    def running(self) -> Iterator[ControlPlane]:
        """The processes, which end at the end."""
        for name in SPACES:
            self.api.put("namespaces", {"metadata": {"name": name}})
        self.api.put("secrets", {"metadata": {"name": "gigaslice-webhook", "namespace": NAMESPACE}})
        hook = {"name": "pods.gigaslice.io", "clientConfig": {}}
        self.api.put(_CONFIGURATION, {"metadata": {"name": "gigaslice"}, "webhooks": [hook]})
        with contextlib.ExitStack() as processes:
            local = "127.0.0.1"
            processes.enter_context(
                self._role("scheduler", f"--listen-address={local}:{self.scheduler_port}")
            )
            processes.enter_context(
                self._role(
                    "controller",
                    f"--page-address={local}:{self.page_port}",
                    "--page-usage=agents",
                    f"--webhook-address={local}:{self.webhook_port}",
                )
            )
            yield self

    @contextlib.contextmanager
    def _role(self, name: str, *flags: str) -> Iterator[None]:
        command = [sys.executable, "-m", "gigaslice_cli", name, f"--kubeconfig={self.kubeconfig}", *flags]
        command.append(f"--metrics-address=127.0.0.1:{self._metrics[name]}")
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)

    async def ready(self, session: ClientSession, seconds: float = 60.0) -> None:
        """Waits until both say that they are. Raises DemoError."""
        end = asyncio.get_running_loop().time() + seconds
        for name, port in self._metrics.items():
            answer = ""
            while answer != "ok":
                if asyncio.get_running_loop().time() > end:
                    raise DemoError(f"the {name} is not ready after {seconds:.0f} s: {answer}")
                with contextlib.suppress(ClientConnectionError):
                    async with session.get(f"http://127.0.0.1:{port}/readyz") as reply:
                        answer = (await reply.text()).strip()
                await asyncio.sleep(0.1)

    async def admitted(self, session: ClientSession, document: dict[str, Any]) -> dict[str, Any]:
        """The pod as the webhook completes it, asked as an API server asks. Raises Refused."""
        (hook,) = self.api.named(_CONFIGURATION)["gigaslice"]["webhooks"]
        authority = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": document["metadata"]["name"],
                "operation": "CREATE",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "namespace": document["metadata"]["namespace"],
                "object": document,
            },
        }
        for path in ("mutate", "validate"):
            url = f"https://127.0.0.1:{self.webhook_port}/{path}"
            context = ssl.create_default_context(cadata=authority)
            async with session.post(url, json=review, ssl=context, server_hostname=_HOST) as reply:
                answer = (await reply.json())["response"]
            if not answer["allowed"]:
                raise Refused(answer["status"]["message"])
            if patch := answer.get("patch"):
                document = jsonpatch.apply_patch(document, json.loads(base64.b64decode(patch)))
                review["request"]["object"] = document  # type: ignore[index]
        return document


async def command(words: Sequence[object], env: dict[str, str] | None = None) -> str:
    """What `gigaslice WORDS` prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gigaslice_cli", *map(str, words),
        cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    if process.returncode:
        raise DemoError(f"gigaslice {words[0]}: {errors.decode().strip()[-300:]}")
    return out.decode()
