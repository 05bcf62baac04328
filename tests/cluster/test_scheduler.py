# SPDX-License-Identifier: Apache-2.0
"""The scheduler service beside a real kube-scheduler: what docs/cluster.md promises, and what it costs."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT, INVENTORY
from tests.cluster import roles
from tests.cluster.control_plane import ControlPlane, until
from tests.fakes.kubeapi import new_pod
from tests.fakes.ports import free_port
from tests.integration.cluster import simulated_cluster as world

NAMESPACE = "scheduler-test"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLASSES = "/apis/gigaslice.io/v1alpha1/resourceclasses"
Document = dict[str, Any]


@dataclass
class Cluster:
    """The control plane, the service and its port."""

    plane: ControlPlane
    folder: Path
    port: int
    service: subprocess.Popen[bytes] | None = None

    def start_service(self) -> None:
        with (self.folder / "service.log").open("ab") as log:
            self.service = subprocess.Popen(
                [sys.executable, "-m", "gigaslice_cli", "scheduler", f"--listen-address=127.0.0.1:{self.port}",
                 f"--kubeconfig={roles.kubeconfig(self.plane, roles.SCHEDULER)}",
                 f"--leader-lease={roles.NAMESPACE}/gigaslice-scheduler-service"],
                stdout=log, stderr=log,
            )  # fmt: skip

        def ready() -> bool:
            assert self.service is not None
            assert self.service.poll() is None, (self.folder / "service.log").read_text()[-3000:]
            try:
                return bool(self.read("readyz"))
            except OSError:
                return False

        until(ready, 60)

    def stop_service(self, number: int = signal.SIGTERM) -> None:
        if self.service is not None:
            self.service.send_signal(number)
            self.service.wait(20)
            self.service = None

    def read(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=5) as reply:
            return str(reply.read().decode())

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.read("metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def nodes(self, **inventories: Document) -> None:
        """Nodes by name, with the fields of world.node."""
        for name, fields in inventories.items():
            document = world.node(f"s-{name}", **fields)
            status = document.pop("status")
            status["allocatable"] |= {"cpu": "32", "memory": "64Gi", "pods": "200"}
            status["capacity"] = status["allocatable"]
            document["metadata"]["labels"] = {"kubernetes.io/hostname": f"s-{name}"}
            api = self.plane.admin
            api.post("/api/v1/nodes", document)
            api.patch(f"/api/v1/nodes/s-{name}/status", {"status": status})
            api.patch(f"/api/v1/nodes/s-{name}", {"spec": {"taints": None}})

    def pod(self, name: str, slices: int = 0, *, priority: str = "", **limits: int) -> None:
        spec = {"schedulerName": world.SCHEDULER, "terminationGracePeriodSeconds": 0}
        if priority:
            spec["priorityClassName"] = priority
        self.plane.admin.post(PODS, new_pod(name, world.asked(slices, **limits), **spec))

    def items(self) -> list[Document]:
        found: list[Document] = self.plane.admin.get(PODS)["items"]
        return found

    def bound(self) -> dict[str, str]:
        return {
            one["metadata"]["name"]: one["spec"]["nodeName"]
            for one in self.items()
            if one["spec"].get("nodeName")
        }

    def message(self, name: str) -> str:
        conditions = self.plane.admin.get(f"{PODS}/{name}").get("status", {}).get("conditions", [])
        return next((str(one.get("message", "")) for one in conditions if one["type"] == "PodScheduled"), "")

    def delete(self, name: str) -> None:
        self.plane.admin.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def check(self) -> None:
        """No GPU is promised twice."""
        held: Counter[str] = Counter()
        for one in self.items():
            text = one["metadata"].get("annotations", {}).get(ASSIGNMENT)
            if text and one["spec"].get("nodeName"):
                for shares in Assignment.decode(text).containers.values():
                    held.update({share.gpu: share.slices for share in shares})
        assert max(held.values(), default=0) <= 16


@pytest.fixture(scope="module")
def started(roles_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A kube-scheduler with the service as its extender."""
    folder = tmp_path_factory.mktemp("scheduler")
    found = Cluster(roles_plane, folder, free_port())
    admin = roles_plane.admin
    admin.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for name, value in (("s-high", 1000), ("s-low", 10)):
        kind = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        admin.post("/apis/scheduling.k8s.io/v1/priorityclasses", kind)
    configuration = roles.scheduler_configuration(roles_plane.documents, roles_plane, found.port)
    (folder / "scheduler.yaml").write_text(configuration)
    with contextlib.ExitStack() as ends:
        ends.callback(found.stop_service)
        found.start_service()
        scheduler = roles_plane.start(
            "kube-scheduler", f"--config={folder / 'scheduler.yaml'}", f"--secure-port={free_port()}",
            "--bind-address=127.0.0.1", f"--cert-dir={folder}",
        )  # fmt: skip
        ends.callback(scheduler.terminate)
        yield found


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """The same, with nothing of other tests in it."""
    yield started
    started.check()
    for one in started.items():
        started.delete(one["metadata"]["name"])
    for one in started.plane.admin.get("/api/v1/nodes")["items"]:
        if one["metadata"]["name"].startswith("s-"):
            started.plane.admin.delete(f"/api/v1/nodes/{one['metadata']['name']}")
    until(lambda: not started.items())


def test_a_class_and_two_models_in_one_node(cluster: Cluster) -> None:
    cluster.nodes(a={"model": "NVIDIA A"}, b={"model": "NVIDIA B"})
    for name, model in (("s-a", "NVIDIA A"), ("s-b", "NVIDIA B")):
        document = {
            "apiVersion": "gigaslice.io/v1alpha1",
            "kind": "ResourceClass",
            "metadata": {"name": name},
        }
        cluster.plane.admin.post(
            CLASSES, {**document, "spec": {"selector": {"matchLabels": {"model": model}}}}
        )
    for name in ("b", "a"):
        cluster.pod(f"on-{name}", **{"gigaslice.io__gpu": 1, f"gpuclass.gigaslice.io__s-{name}": 1})
    until(lambda: len(cluster.bound()) == 2)
    assert cluster.bound() == {"on-a": "s-a", "on-b": "s-b"}


def test_six_and_six(cluster: Cluster) -> None:
    cluster.nodes(a={})
    for number in range(2):
        cluster.pod(f"ten-{number}", 10)
    until(lambda: len(cluster.bound()) == 2)
    before = cluster.metric("gigaslice_scheduler_filter_seconds_count")
    cluster.pod("eight", 8)
    until(lambda: "no GPU has that much memory free together" in cluster.message("eight"))
    time.sleep(3)
    calls = cluster.metric("gigaslice_scheduler_filter_seconds_count") - before
    assert calls <= 4, f"{calls} filter calls in 3 s: a loop"
    begun = time.monotonic()
    cluster.delete("ten-0")
    until(lambda: "eight" in cluster.bound())
    print(
        f"bound {time.monotonic() - begun:.2f} s after the GPU was free; {calls:g} filter calls while it waited"
    )


def test_a_gpu_that_heals(cluster: Cluster) -> None:
    cluster.nodes(a={"unhealthy": "xid-79"})
    cluster.pod("p", 8)
    until(lambda: "unhealthy or cordoned" in cluster.message("p"))
    annotations = {INVENTORY: world.inventory("s-a")}
    cluster.plane.admin.patch("/api/v1/nodes/s-a", {"metadata": {"annotations": annotations}})
    until(lambda: "p" in cluster.bound())


def test_a_class_made_later_needs_the_hand_back(cluster: Cluster) -> None:
    cluster.nodes(a={})
    before = cluster.metric("gigaslice_scheduler_wakeups_total")
    cluster.pod("p", **{"gigaslice.io__gpu": 1, "gpuclass.gigaslice.io__s-late": 1})
    until(lambda: "there is no GPU class" in cluster.message("p"))
    document = {
        "apiVersion": "gigaslice.io/v1alpha1",
        "kind": "ResourceClass",
        "metadata": {"name": "s-late"},
    }
    cluster.plane.admin.post(
        CLASSES, {**document, "spec": {"selector": {"matchLabels": {"vendor": "NVIDIA"}}}}
    )
    until(lambda: "p" in cluster.bound())
    assert cluster.metric("gigaslice_scheduler_wakeups_total") == before + 1


def test_a_burst_onto_one_node_needs_no_second_binding(cluster: Cluster) -> None:
    cluster.nodes(a={"gpus": 8})
    before = {result: cluster.metric(f'gigaslice_scheduler_bindings_total{{result="{result}"}}')
              for result in ("bound", "refused", "failed", "doubtful")}  # fmt: skip
    begun = time.monotonic()
    for number in range(100):
        cluster.pod(f"p-{number}", 1)
    until(lambda: len(cluster.bound()) == 100, 60)
    print(f"100 pods bound {time.monotonic() - begun:.1f} s after the first was made")
    after = {result: cluster.metric(f'gigaslice_scheduler_bindings_total{{result="{result}"}}')
             for result in before}  # fmt: skip
    assert {result: after[result] - before[result] for result in before} == {
        "bound": 100, "refused": 0, "failed": 0, "doubtful": 0,
    }  # fmt: skip


def test_the_service_is_killed_in_a_burst(cluster: Cluster) -> None:
    cluster.nodes(a={"gpus": 8})
    for number in range(40):
        cluster.pod(f"p-{number}", 3)
        if number in (10, 25):
            until(cluster.bound)
            cluster.stop_service(signal.SIGKILL)
            cluster.start_service()
    until(lambda: len(cluster.bound()) == 40, 60)


def test_preemption_frees_one_gpu(cluster: Cluster) -> None:
    cluster.nodes(a={})
    for number, slices in enumerate((10, 10, 6, 6)):
        cluster.pod(f"low-{number}", slices, priority="s-low")
        until(lambda number=number: len(cluster.bound()) == number + 1)
    cluster.pod("high", 12, priority="s-high")
    until(lambda: "high" in cluster.bound(), 60)
    assert len(cluster.bound()) == 3, json.dumps(cluster.bound())
