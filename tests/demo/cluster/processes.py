# SPDX-License-Identifier: Apache-2.0
"""The scheduler's service, the controller with the webhook, and commands, each a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from aiohttp import ClientConnectionError, ClientSession

from tests.cluster import roles
from tests.demo.clients import DemoError
from tests.demo.cluster.control_plane import ControlPlane, Ports, container_of
from tests.demo.machine import ROOT

_LOCAL = "127.0.0.1"


class ClusterProcesses:
    """The roles of the cluster, with the arguments that the chart gives them, and addresses of their own."""

    def __init__(self, directory: Path, plane: ControlPlane, ports: Ports) -> None:
        self._directory = directory
        self._plane = plane
        self._ports = ports
        self._metrics = {"scheduler": ports.scheduler_metrics, "controller": ports.controller_metrics}

    @property
    def page(self) -> str:
        """The address of the web page."""
        return f"http://{_LOCAL}:{self._ports.page}/"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From their start to their end."""
        accounts = {"scheduler": roles.SCHEDULER, "controller": roles.CONTROLLER}
        files = {name: await self._plane.credentials(account) for name, account in accounts.items()}
        addresses = {
            "scheduler": (f"--listen-address={_LOCAL}:{self._ports.scheduler}",),
            "controller": (
                f"--page-address={_LOCAL}:{self._ports.page}",
                "--page-usage=agents",
                f"--webhook-address={_LOCAL}:{self._ports.webhook}",
            ),
        }
        with contextlib.ExitStack() as processes:
            for name, flags in addresses.items():
                processes.enter_context(self._role(name, f"--kubeconfig={files[name]}", *flags))
            yield

    @contextlib.contextmanager
    def _role(self, name: str, *flags: str) -> Iterator[None]:
        given = container_of(self._plane.chart, name)["args"]
        metrics = f"--metrics-address={_LOCAL}:{self._metrics[name]}"
        command = [sys.executable, "-m", "gigaslice_cli", *given, *flags, metrics]
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
                    async with session.get(f"http://{_LOCAL}:{port}/readyz") as reply:
                        answer = (await reply.text()).strip()
                await asyncio.sleep(0.1)


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
