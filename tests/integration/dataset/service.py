# SPDX-License-Identifier: Apache-2.0
"""The dataset service as a process of its own, with the kernel's mounts, beside a stand-in kubelet in the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gigaslice.roles.dataset_node.mounts.linux import LinuxMounts
from tests.fakes.kubelet.csi import CsiKubelet, CsiPod, CsiVolumeOfPod

__all__ = ["ServiceNode", "can_mount"]

ROOT = Path(__file__).resolve().parents[3]


def can_mount(directory: Path) -> bool:
    """Whether this process may mount, and the kernel has EROFS."""
    mounts = LinuxMounts()
    where = directory / "probe"
    where.mkdir()
    try:
        mounts.empty(where)
        mounts.unmount(where)
    except Exception:  # noqa: BLE001  (any reason is one to skip)
        return False
    return mounts.has_erofs


class ServiceNode:
    """One node below ROOT, with a directory of data at `data` that pods may name."""

    def __init__(self, root: Path, *, scale: float = 0.1, **settings: str) -> None:
        self.root = root
        self.data = root / "data"
        self.data.mkdir(exist_ok=True)
        self.kubelet = CsiKubelet(root / "k", scale=scale)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = root / "service.log"
        self.settings = settings
        self.program = ["gigaslice_cli"]
        """The module that is run, and what it takes before the service's own arguments."""

    def command(self) -> list[str]:
        """The service's command line."""
        flags = {
            "state-dir": str(self.root / "s"),
            "run-dir": str(self.root / "r"),
            "kubelet-root": str(self.root / "k"),
            "node-name": "lab-node",
            "metrics-address": "off",
            "kube-api": "off",
            "keep-free": "0%",
            "allow": str(self.data),
            **{key.replace("_", "-"): value for key, value in self.settings.items()},
        }
        return [
            sys.executable,
            "-m",
            *self.program,
            "dataset",
            *(f"--{key}={value}" for key, value in flags.items()),
        ]

    def begin(self) -> None:
        """Starts the service."""
        self.kubelet.registered.clear()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(), cwd=ROOT, stdout=log, stderr=log)

    async def start(self) -> None:
        """Starts the service, and waits until the kubelet has accepted it."""
        self.begin()
        try:
            await asyncio.wait_for(self.kubelet.registered.wait(), 60)
        except asyncio.TimeoutError:
            raise AssertionError(f"not registered:\n{self.log.read_text()[-3000:]}") from None

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Ends it and returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 30)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ServiceNode]:
        """The service and the kubelet, and nothing left of either."""
        try:
            await self.kubelet.start()
            await self.start()
            yield self
        finally:
            await self.kubelet.stop()
            if self.process is not None and self.process.poll() is None:
                await self.end(signal.SIGKILL)
            self.clear()

    def clear(self) -> None:
        """Unmounts whatever is below the root."""
        mounts = LinuxMounts()
        for _ in range(8):
            points = [one.point for one in mounts.table() if one.point.startswith(f"{self.root}/")]
            for point in sorted(points, key=len, reverse=True):
                mounts.unmount(Path(point))

    def mounted(self) -> list[str]:
        """The mount points of volumes."""
        return [one.point for one in LinuxMounts().table() if one.point.startswith(f"{self.root}/k/pods/")]

    def pod(self, name: str = "p", **attributes: str) -> CsiPod:
        """A pod with one volume of the data."""
        return CsiPod(name, [CsiVolumeOfPod("data", attributes or {"source": str(self.data)})])

    def contents(self, pod: CsiPod) -> dict[str, bytes]:
        """Every file that the pod sees."""
        where = self.kubelet.target(pod, "data")
        return {
            str(one.relative_to(where)): one.read_bytes() for one in sorted(where.rglob("*")) if one.is_file()
        }

    def fill(self, files: int = 200, size: int = 3000) -> dict[str, bytes]:
        """Writes FILES into the data, and returns what they are."""
        found = {}
        for number in range(files):
            name = f"d{number % 7}/f{number}"
            body = os.urandom(size + number)
            (self.data / name).parent.mkdir(exist_ok=True)
            (self.data / name).write_bytes(body)
            found[name] = body
        return found

    def ask(self, **request: Any) -> dict[str, Any]:
        """What the service answers a command."""
        from gigaslice.runtime.local_protocol import ask

        return ask(self.root / "s" / "control.sock", "dataset service", request)

    def lines(self) -> list[dict[str, Any]]:
        """The log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
