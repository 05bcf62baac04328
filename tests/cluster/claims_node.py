# SPDX-License-Identifier: Apache-2.0
"""A node with a real kubelet that serves claims: what tests make on it, and what they see without asking the agent.

What containers got is read from their processes: the limits page that each has mounted is a file of an allocation, and
containers that share a quota have the same file. What was promised is checked by `tests.cluster.claim_promises`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import vcuda
from tests.cluster.control_plane import Refused, until
from tests.cluster.node_kills import GPUS, Node
from tests.fakes.ports import free_port
from vcuda import contract

DRIVER, CLASS = "gigaslice.io", "vgpu.gigaslice.io"
RESOURCES = "/apis/resource.k8s.io/v1"
KUBELET_SOCKETS = Path("/var/lib/kubelet/plugins_registry")
CDI = Path("/var/run/cdi")
LONG = 120.0
ENDING = 15.0
_SIZES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "": 1}
Document = dict[str, Any]


class Page(NamedTuple):
    """A limits page that a container has mounted. file: the same for all that share it. gpus: bytes of each."""

    allocation: str
    file: tuple[int, int]
    gpus: dict[str, int]

    @property
    def gib(self) -> int:
        """Of all GPUs."""
        return sum(self.gpus.values()) >> 30


def quantity(text: str) -> int:
    """Bytes of a size as the API server writes it."""
    match = re.fullmatch(r"(\d+)([KMGT]i|)", text)
    assert match, text
    return int(match[1]) * _SIZES[match[2]]


def container(name: str, *claims: str, command: str = "exec sleep 100000", **more: Any) -> Document:
    """A container that names CLAIMS of its pod, as "claim" or "claim/request"."""
    uses = []
    for claim in claims:
        own, _, request = claim.partition("/")
        uses.append({"name": own, **({"request": request} if request else {})})
    resources = {"resources": {"claims": uses}} if uses else {}
    return {"name": name, "command": ["sh", "-c", command], **resources, **more}


class ClaimNode(Node):
    """A node whose agent serves claims."""

    values = ("admission.mode=policy", "node.api=dra")
    flags = ("--api=dra", "--standby=on", "--log-level=info")

    @property
    def logs(self) -> str:
        """What its agents wrote."""
        return (self.plane.folder / "node.log").read_text()

    @property
    def agent(self) -> subprocess.Popen[bytes]:
        """The agent's front, as a process."""
        assert self._agent is not None and self._agent.poll() is None, self.logs[-3000:]
        return self._agent

    def offered(self) -> bool:
        """Whether the scheduler may give out every GPU."""
        return len(self.devices()) == GPUS

    def slices(self) -> dict[str, Document]:
        """What is published, by UID."""
        slices = self.api.get(f"{RESOURCES}/resourceslices")["items"]
        return {one["metadata"]["uid"]: one["spec"] for one in slices if one["spec"]["driver"] == DRIVER}

    def devices(self) -> list[str]:
        """Of the published slices, in their order."""
        return [device["name"] for spec in self.slices().values() for device in spec.get("devices", ())]

    def free_gib(self, gpu: str) -> int:
        """What is published of a GPU."""
        name = f"gpu-{gpu.removeprefix('GPU-').lower()}"
        (device,) = (
            one for spec in self.slices().values() for one in spec.get("devices", ()) if one["name"] == name
        )
        return quantity(device["capacity"]["memory"]["value"]) >> 30

    def halt(self, number: signal.Signals) -> None:
        """Sends a signal to front and agent, and waits for their end."""
        workers = psutil.Process(self.agent.pid).children()
        self.agent.send_signal(number)
        if number == signal.SIGKILL:
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
        assert self._agent is not None
        self._agent.wait(60)
        psutil.wait_procs(workers, 30)

    def ended(self, seconds: float) -> int:
        """Waits until the front that was started last has ended by itself; returns its exit status."""
        assert self._agent is not None
        return self._agent.wait(seconds)

    def use_state(self, folder: Path) -> None:
        """Another state directory for agents that are started from now on."""
        self.state = folder
        self._flags = [flag for flag in self._flags if not flag.startswith("--state-dir=")]
        self._flags.append(f"--state-dir={folder}")

    def start_successor(self) -> subprocess.Popen[bytes]:
        """Starts another agent beside this one; returns the front of the older."""
        older, self._port = self.agent, free_port()
        self._flags = [flag for flag in self._flags if not flag.startswith("--metrics-address")]
        self._flags.append(f"--metrics-address=127.0.0.1:{self._port}")
        self.start()
        return older

    def metric(self, name: str) -> float:
        """The sum over all labels of a metric of the agent that serves."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[{{ ]", line))

    def calls(self, operation: str = "prepare") -> float:
        """How often the kubelet has called this agent."""
        return self.metric(f"gigaslice_claim_{operation}_duration_seconds_count")

    # --- what is made ----------------------------------------------------------------------------------------

    def _resources(self, kind: str) -> str:
        return f"{RESOURCES}/namespaces/{self.namespace}/{kind}"

    def _devices_of(self, memory: Mapping[str, str], **more: Any) -> Document:
        requests = [
            {"name": name, "exactly": {"deviceClassName": CLASS, "capacity": {"requests": {"memory": size}}}}
            for name, size in memory.items()
        ]
        return {"devices": {"requests": requests, **more}}

    def claim(self, claim: str, /, **memory: str) -> Document:
        """Makes a claim with a request for each size."""
        return self.api.post(
            self._resources("resourceclaims"), {"metadata": {"name": claim}, "spec": self._devices_of(memory)}
        )

    def template_of(self, name: str, /, **memory: str) -> None:
        """Makes a template likewise, unless it is there."""
        with contextlib.suppress(Refused):
            self.api.post(
                self._resources("resourceclaimtemplates"),
                {"metadata": {"name": name}, "spec": {"spec": self._devices_of(memory)}},
            )

    def pod_spec(self, containers: Sequence[Document], claims: Mapping[str, str], **more: Any) -> Document:
        """A pod's spec. claims: what a claim or "template:NAME" is called in the pod."""
        fill = {"image": self.image, "imagePullPolicy": "IfNotPresent"}
        spec = {
            **self.template(0),
            "containers": [{**fill, **one} for one in containers],
            "resourceClaims": [
                {"name": own, "resourceClaimTemplateName": name.removeprefix("template:")}
                if name.startswith("template:")
                else {"name": own, "resourceClaimName": name}
                for own, name in claims.items()
            ],
            **more,
        }
        if init := spec.get("initContainers"):
            spec["initContainers"] = [{**fill, **one} for one in init]
        return spec

    def pod(self, name: str, *containers: Document, claims: Mapping[str, str], **more: Any) -> None:
        """Makes a pod."""
        spec = self.pod_spec(containers, claims, **more)
        self.api.post(self.pods, {"metadata": {"name": name}, "spec": spec})

    def small(self, name: str, gib: int = 1) -> None:
        """Makes a pod with one container and a claim of its own."""
        self.template_of(f"gib-{gib}", gpu=f"{gib}Gi")
        self.pod(name, container("main", "g"), claims={"g": f"template:gib-{gib}"})

    def sharing(self, name: str, claim: str = "shared") -> None:
        """Makes a pod with one container that names a claim which is there."""
        self.pod(name, container("main", "g"), claims={"g": claim})

    def deployment(
        self, name: str, replicas: int, containers: Sequence[Document], claims: Mapping[str, str]
    ) -> str:
        """Makes a Deployment. Returns its path."""
        path, labels = f"/apis/apps/v1/namespaces/{self.namespace}/deployments", {"app": name}
        template = {"metadata": {"labels": labels}, "spec": self.pod_spec(containers, claims)}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        self.api.post(path, {"metadata": {"name": name}, "spec": spec})
        return f"{path}/{name}"

    # --- what there is ---------------------------------------------------------------------------------------

    def get(self, name: str) -> Document:
        """A pod."""
        return self.api.get(f"{self.pods}/{name}")

    def running(self, *names: str, within: float = LONG) -> float:
        """Waits until pods run with all their containers; returns how long that took."""
        begun = time.monotonic()

        def ready(name: str) -> bool:
            status = self.get(name)["status"]
            states = status.get("containerStatuses", ())
            return status.get("phase") == "Running" and bool(states) and all(one["ready"] for one in states)

        try:
            until(lambda: all(ready(name) for name in names), within)
        except AssertionError:
            texts = [f"{name}: {self.get(name)['status']} {self.events(name)}" for name in names]
            raise AssertionError("\n".join(texts)) from None
        return time.monotonic() - begun

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reasons and messages of the events of a pod that is there."""
        uid = self.get(name)["metadata"]["uid"]
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=involvedObject.uid={uid}"
        return [(one["reason"], one["message"]) for one in self.api.get(path)["items"]]

    def claims(self) -> list[Document]:
        """All claims of the cluster with devices of ours."""
        items = self.api.get(f"{RESOURCES}/resourceclaims")["items"]
        return [one for one in items if results_of(one)]

    def pages(self, name: str) -> dict[str, Page]:
        """The limits page of each container of a pod that runs and has one."""
        status = self.get(name)["status"]
        states = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
        names = {one.get("containerID", "").rpartition("//")[2]: one["name"] for one in states}
        return {names[ident]: page for ident, page in _container_pages().items() if ident in names}

    def page(self, name: str) -> Page:
        """The one of a pod with one container."""
        (page,) = self.pages(name).values()
        return page

    def process(self, name: str, program: str = "sleep") -> psutil.Process:
        """A process of a pod; the PROGRAM "pause" is its sandbox."""
        uid = self.get(name)["metadata"]["uid"]
        for process in psutil.process_iter(["name"]):
            with contextlib.suppress(OSError):
                path = Path(f"/proc/{process.pid}/cgroup")
                if process.info["name"] == program and f"pod{uid}" in path.read_text():
                    return process
        raise AssertionError(f"{name} has no {program}")

    def delete(self, *names: str, force: bool = False) -> None:
        """Deletes pods, and waits until the API server has none of them."""
        for name in names:
            with contextlib.suppress(Refused):
                self.api.delete(f"{self.pods}/{name}", {"gracePeriodSeconds": 0} if force else None)
        until(lambda: not {one["metadata"]["name"] for one in self.listed()} & set(names), LONG)

    def delete_claim(self, name: str) -> None:
        """Deletes a claim, and does not wait."""
        self.api.delete(f"{self._resources('resourceclaims')}/{name}")

    def clear(self) -> None:
        """Deletes all that is there."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        for one in self.api.get(path)["items"]:
            self.api.delete(f"{path}/{one['metadata']['name']}", {"propagationPolicy": "Background"})
        until(lambda: not self.api.get(path)["items"], LONG)
        until(self._no_pod, LONG)
        for one in self.api.get(self._resources("resourceclaims"))["items"]:
            with contextlib.suppress(Refused):
                self.delete_claim(one["metadata"]["name"])

    def _no_pod(self) -> bool:
        pods = self.listed()
        for one in pods:
            if "deletionTimestamp" not in one["metadata"]:
                with contextlib.suppress(Refused):
                    self.api.delete(f"{self.pods}/{one['metadata']['name']}")
        return not pods

    def left(self) -> list[str]:
        """What is left of claims on the node and in the cluster."""
        return [
            *(path.name for path in CDI.glob("gigaslice.io-*")),
            *(path.name for path in (self.state / "allocations").glob("[!.]*")),
            *(one["metadata"]["name"] for one in self.claims()),
            *(page.allocation for page in _container_pages().values()),
        ]

    def nothing_left(self, within: float) -> None:
        """Waits until that is nothing."""
        with contextlib.suppress(AssertionError):
            until(lambda: not self.left(), within)
        assert not self.left(), self.left()


def results_of(claim: Mapping[str, Any]) -> list[Document]:
    """The devices of ours that a claim was given."""
    allocation = claim.get("status", {}).get("allocation", {})
    return [one for one in allocation.get("devices", {}).get("results", ()) if one["driver"] == DRIVER]


def _container_pages() -> dict[str, Page]:
    """By the container's ID, of all containers of this machine that have one and live."""
    pages = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, vcuda.VcudaError):
            lines = (process / "mountinfo").read_text().splitlines()
            mounted = next((line for line in lines if line.split()[4] == contract.CONTAINER_LIMITS), None)
            match = re.search(r"/([0-9a-f]{64})$", (process / "cgroup").read_text(), re.MULTILINE)
            if mounted and match and match[1] not in pages:
                path = process / "root" / contract.CONTAINER_LIMITS.lstrip("/")
                status = path.stat()
                gpus = {gpu.uuid: gpu.memory_bytes for gpu in vcuda.read_limits(path).gpus}
                allocation = Path(mounted.split()[3]).parent.name
                pages[match[1]] = Page(allocation, (status.st_dev, status.st_ino), gpus)
    return pages


@contextlib.contextmanager
def lingering(process: psutil.Process) -> Iterator[Callable[[], None]]:
    """A program in the file system of a container, which outlives it; yields what ends it.

    process: of the container.
    """
    command = ["nsenter", "-t", str(process.pid), "-m", "--", "/bin/sleep", "100000"]
    program = subprocess.Popen(command)

    def end() -> None:
        program.kill()
        program.wait()

    try:
        own = Path("/proc/self/ns/mnt").readlink()
        until(lambda: Path(f"/proc/{program.pid}/ns/mnt").readlink() != own, 10)
        yield end
    finally:
        end()


def command_of(name: str) -> Callable[[], None] | None:
    """Runs the shell command of an environment variable; None where there is none."""
    command = os.environ.get(name)
    if not command:
        return None
    return lambda: subprocess.run(["sh", "-c", command], check=True, stdout=sys.stderr, timeout=120) and None
