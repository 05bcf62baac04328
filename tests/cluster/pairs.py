# SPDX-License-Identifier: Apache-2.0
"""A kube-scheduler and the service beside it, as the pod of the chart has them, and a burst of pods for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from tests.cluster import roles
from tests.cluster.control_plane import ControlPlane, Refused, until
from tests.fakes.kubeapi import new_pod
from tests.fakes.ports import free_port
from tests.integration.cluster import simulated_cluster

SLICES = 16
Document = dict[str, Any]


class Pair:
    """One replica. before: the port by which its service reaches the API server; ahead: by which it is reached."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str, *, before: int = 0) -> None:
        self.name = name
        self.port = free_port()
        self._plane = plane
        self._folder = folder
        self._before = before
        self.service: subprocess.Popen[bytes] | None = None
        self.scheduler: subprocess.Popen[bytes] | None = None

    def start(self, *, ahead: int = 0) -> None:
        self.start_service()
        configuration = roles.scheduler_configuration(
            self._plane.documents, self._plane, ahead or self.port, lease="on"
        )
        path = self._folder / f"{self.name}.yaml"
        path.write_text(configuration)
        self.scheduler = self._start(
            self._plane.binaries["kube-scheduler"], f"--config={path}", f"--secure-port={free_port()}",
            "--bind-address=127.0.0.1", f"--cert-dir={self._folder}", *self._flags(),
        )  # fmt: skip

    def _flags(self) -> list[str]:
        """Those of the chart's kube-scheduler: without them a pod that counts refused waits for five minutes."""
        words = (
            word
            for one in self._plane.documents
            if one["kind"] == "Deployment"
            for container in one["spec"]["template"]["spec"]["containers"]
            for word in container.get("command", ())
        )
        return [word for word in words if word.startswith("--pod-max-")]

    def start_service(self, *, ready: bool = True) -> None:
        path = roles.kubeconfig(self._plane, roles.SCHEDULER, port=self._before)
        self.service = self._start(
            sys.executable, "-m", "gigaslice_cli", "scheduler", f"--listen-address=127.0.0.1:{self.port}",
            f"--kubeconfig={path}", f"--identity={self.name}",
            f"--leader-lease={roles.NAMESPACE}/gigaslice-scheduler-service",
        )  # fmt: skip
        if ready:
            until(self._ready, 120)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _ready(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5),
        ):
            return True
        return False

    def signal(self, number: int) -> None:
        for one in (self.scheduler, self.service):
            if one is not None and one.poll() is None:
                os.kill(one.pid, number)

    def kill_service(self) -> None:
        assert self.service is not None
        self.service.kill()
        self.service.wait()

    def stop(self) -> None:
        for one in (self.scheduler, self.service):
            if one is not None and one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.terminate()
                try:
                    one.wait(30)
                except subprocess.TimeoutExpired:
                    one.kill()
                    one.wait()


class Burst:
    """Pods in a namespace of their own, on nodes of their own, each with 8 GPUs of 16 slices."""

    def __init__(self, plane: ControlPlane, name: str, nodes: int = 1) -> None:
        self.pods = f"/api/v1/namespaces/{name}/pods"
        self._api = plane.admin
        self._name = name
        self._nodes = [f"{name}-{number}" for number in range(nodes)]

    def __enter__(self) -> Burst:
        self._api.post("/api/v1/namespaces", {"metadata": {"name": self._name}})
        for name in self._nodes:
            document = simulated_cluster.node(name, gpus=8)
            status = document.pop("status")
            status["allocatable"] |= {"cpu": "32", "memory": "64Gi", "pods": "200"}
            status["capacity"] = status["allocatable"]
            self._api.post("/api/v1/nodes", document)
            self._api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
            self._api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.items():
            self._api.delete(f"{self.pods}/{one['metadata']['name']}", {"gracePeriodSeconds": 0})
        for name in self._nodes:
            self._api.delete(f"/api/v1/nodes/{name}")
        until(lambda: not self.items())

    def make(self, count: int, slices: int, prefix: str = "p") -> None:
        for number in range(count):
            document = new_pod(
                f"{prefix}-{number}", simulated_cluster.asked(slices),
                schedulerName=simulated_cluster.SCHEDULER, terminationGracePeriodSeconds=0,
            )  # fmt: skip
            self._api.post(self.pods, document)

    def items(self) -> list[Document]:
        end = time.monotonic() + 120
        while True:
            try:
                found: list[Document] = self._api.get(self.pods)["items"]
                return found
            except (OSError, Refused):  # the API server restarts
                assert time.monotonic() < end
                time.sleep(0.2)

    def bound(self) -> int:
        self.check()
        return sum(bool(one["spec"].get("nodeName")) for one in self.items())

    def check(self) -> None:
        """No GPU is promised twice, and every bound pod has its GPUs."""
        held: Counter[str] = Counter()
        for one in self.items():
            if one["spec"].get("nodeName"):
                found = Assignment.decode(one["metadata"]["annotations"][ASSIGNMENT])
                held.update(
                    {each.gpu: each.slices for shares in found.containers.values() for each in shares}
                )
        assert max(held.values(), default=0) <= SLICES, held


@contextlib.contextmanager
def running(*pairs: Pair) -> Iterator[None]:
    """Stops what the test has started."""
    try:
        yield
    finally:
        for one in pairs:
            one.stop()
