# SPDX-License-Identifier: Apache-2.0
"""The agent is killed again and again on a node with a real kubelet, whose pods ask for more than the node has.

    K8S_NODE_KUBECONFIG=… K8S_NODE=… K8S_NODE_IMAGE=… python -m tests.cluster.node_kills --kills 200

The node is that of test_node.py, in a cluster with a controller manager and its usual scheduler; it takes root.
K8S_NODE_KUBELET is the kubelet's folder where that is another than usual. Deployments of pods of several sizes want
some slices more than there are, and their pods are deleted all the time. The kubelet gives a device out again as soon
as its pod has ended, and fails each pod that the scheduler has bound by a number of slices that is no more. Failed pods
are counted as the API server has them. Promises are checked without the agent and the kubelet: by the limits pages that
living processes have mounted. The next kill is 5 to 30 s after the agent was ready: one that is killed before it serves
is away for longer than its front waits, the sooner on a busy machine.

--with-front kills the front and the agent, as a container that ends, and starts them again at once: there pods do fail,
and it is printed how many. SIGTERM ends it early, with a report of what there was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import vcuda
from tests.cluster import roles
from tests.cluster.control_plane import Refused, find_binaries, until
from tests.cluster.test_node import MEMORY, Existing
from tests.fakedriver.env import driver_env
from tests.fakes.eventually import looking
from tests.fakes.ports import free_port
from vcuda import contract

GPUS, GIB = 4, 24
MACHINE = f"""\
driver_version: 550.163.01
cuda_version: 12040
context_memory: 100MiB
seed: {{seed}}

gpu *:
  model: NVIDIA L4
  memory: {GIB}GiB
  capability: 8.9
  multiprocessors: 58
""" + "".join(f"gpu {number}:\n  pci: 00000000:{0x3B + number:02x}:00.0\n" for number in range(GPUS))
OURS = (sys.executable, "-m", "gigaslice_cli")
SIZES = {12: 3, 8: 3, 6: 4, 3: 4, 2: 5}
"""Replicas by slices: 106 of the 96 that there are."""
LONG = 240.0
_NOT_HERE = (
    "Deployment", "DaemonSet", "Service", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
)  # fmt: skip
Document = dict[str, Any]


class Node:
    """The agent as a process on a node of an existing cluster, and a namespace for pods.

    values: of the chart. flags: of the agent, beside those that name this node.
    """

    values: tuple[str, ...] = ("admission.mode=none",)
    flags: tuple[str, ...] = ()

    def __init__(self, plane: Existing, name: str, image: str) -> None:
        self.plane, self.name, self.image = plane, name, image
        self.api = plane.admin
        self.namespace = f"node-kills-{os.getpid()}"
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.kubelet = Path(os.environ.get("K8S_NODE_KUBELET", "/var/lib/kubelet"))
        self.state = plane.folder / "agent"
        self._port = free_port()
        self._agent: subprocess.Popen[bytes] | None = None
        self._flags: list[str] = []
        self._driver: dict[str, str] = {}

    def __enter__(self) -> Node:
        machine = self.plane.folder / "machine.txt"
        machine.write_text(MACHINE.format(seed=os.getpid()))
        self._driver = driver_env(machine, self.plane.folder / "machine.state")
        roles.install(self.plane, *self.values, without=_NOT_HERE)
        self.api.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self._flags = [
            f"--state-dir={self.state}",
            f"--kubeconfig={roles.kubeconfig(self.plane, roles.AGENT, self.name)}",
            f"--node-name={self.name}",
            f"--metrics-address=127.0.0.1:{self._port}",
            f"--kubelet-dir={self.kubelet / 'device-plugins'}",
            f"--pod-resources={self.kubelet / 'pod-resources/kubelet.sock'}",
            *self.flags,
        ]
        self.start()
        try:
            self.wait(self.offered)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._agent is not None:
            self._agent.send_signal(signal.SIGTERM)
            self._agent.wait(60)

    def wait(self, condition: Callable[[], object]) -> None:
        """Waits for a condition that an agent has to bring about: one that has ended fails at once, with its output."""

        def met() -> bool:
            assert self._agent is not None
            code = self._agent.poll()
            if condition():
                return True
            text = (self.plane.folder / "node.log").read_text()[-3000:]
            assert code is None, f"the agent has ended with {code}:\n{text}"
            return False

        until(met, LONG)

    def offered(self) -> bool:
        """Whether the cluster has all that the node offers."""
        return self.allocatable() == GPUS * GIB

    def start(self, version: Sequence[str] = OURS, without: tuple[str, ...] = ()) -> None:
        """Starts front and agent of a VERSION, without flags that it does not have."""
        with (self.plane.folder / "node.log").open("ab") as log:
            command = [*version, "node", *(flag for flag in self._flags if flag.split("=")[0] not in without)]
            self._agent = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **self._driver}, start_new_session=True
            )

    def kill(self, *, with_front: bool) -> None:
        """SIGKILL for the agent's own process, which its front starts again; or for both, which are started here."""
        assert self._agent is not None and self._agent.poll() is None, "the agent has ended by itself"
        workers = psutil.Process(self._agent.pid).children()
        if with_front:
            self._agent.kill()
            self._agent.wait()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        if with_front:
            self.start()

    def wait_served(self) -> float:
        """Waits until the agent is ready again; how long that took."""
        begun = time.monotonic()

        def ready() -> bool:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=5) as answer,
            ):
                return bool(answer.status == 200)
            return False

        self.wait(ready)
        return time.monotonic() - begun

    def command(self, *words: str) -> str:
        """What a command of the agent says."""
        command = [sys.executable, "-m", "gigaslice_cli", *words, f"--state-dir={self.state}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=self._driver).stdout

    def allocatable(self) -> int:
        """Slices, as the scheduler has them."""
        status = self.api.get(f"/api/v1/nodes/{self.name}")["status"]
        return int(status["allocatable"].get(MEMORY, 0))

    def template(self, slices: int, grace: int = 1) -> Document:
        """The spec of a pod that sleeps, without a network of its own."""
        container = {
            "name": "main",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "exec sleep 100000"],
            "resources": {"limits": {MEMORY: str(slices)}},
        }
        return {
            "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": self.name},
            "hostNetwork": True,
            "terminationGracePeriodSeconds": grace,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
        }

    def listed(self) -> list[Document]:
        """All pods of the namespace."""
        found: list[Document] = self.api.get(self.pods)["items"]
        return found


@dataclass(slots=True)
class Watch:
    """What the API server and the processes of this machine show, looked at twice a second by `watched`."""

    node: Node
    made: set[str] = field(default_factory=set)
    failed: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When it was noticed, and why, by the pod's UID."""
    allocatable: Counter[int] = field(default_factory=Counter)
    checks: int = 0
    over_grants: list[str] = field(default_factory=list)
    most: int = 0
    """Slices of all GPUs that living processes had at a time."""

    def look(self) -> None:
        for pod in self.node.listed():
            uid, status = pod["metadata"]["uid"], pod["status"]
            self.made.add(uid)
            ended_by_us = "deletionTimestamp" in pod["metadata"] and not status.get("reason")
            if status.get("phase") == "Failed" and uid not in self.failed and not ended_by_us:
                text = f"{status.get('reason', '')}: {status.get('message', '')}"
                self.failed[uid] = (time.time(), text)
                print(f"{time.strftime('%H:%M:%S')} {pod['metadata']['name']} failed: {text}", flush=True)
        self.allocatable[self.node.allocatable()] += 1
        self.checks += 1
        granted = granted_bytes(self.node.state)
        self.most = max(self.most, sum(granted.values()) >> 30)
        for gpu, count in granted.items():
            if count > GIB << 30:
                self.over_grants.append(f"{gpu}: {count >> 30} GiB")


def granted_bytes(state: Path) -> dict[str, int]:
    """Bytes of each GPU by the limits pages of an agent that processes have mounted, all of which lived at one moment.

    state: the agent's folder, in one of the machine's own.
    """
    before = set(_mounted(state))
    pages = {key: page for key, page in _mounted(state).items() if key in before}
    granted: Counter[str] = Counter()
    for page in pages.values():
        for gpu in page.gpus:
            granted[gpu.uuid] += gpu.memory_bytes
    return granted


def _mounted(state: Path) -> dict[tuple[str, str, str], vcuda.LimitsPage]:
    """Limits pages by process, its start, and the file's place on its file system; one process for each file."""
    found: dict[str, tuple[tuple[str, str, str], vcuda.LimitsPage]] = {}
    ours = f"/{state.parent.name}/{state.name}/"
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError, vcuda.VcudaError):
            for line in (process / "mountinfo").read_text().splitlines():
                fields = line.split()
                if fields[4] == contract.CONTAINER_LIMITS and ours in fields[3] and fields[3] not in found:
                    begun = (process / "stat").read_text().rpartition(")")[2].split()[19]
                    page = vcuda.read_limits(process / "root" / contract.CONTAINER_LIMITS.lstrip("/"))
                    found[fields[3]] = ((process.name, begun, fields[3]), page)
    return dict(found.values())


class Crowd:
    """Deployments that want more than there is, whose pods are deleted all the time."""

    def __init__(self, node: Node, rng: random.Random, sizes: Mapping[int, int]) -> None:
        self._node, self._rng, self._sizes = node, rng, sizes
        self._path = f"/apis/apps/v1/namespaces/{node.namespace}/deployments"

    def make(self) -> None:
        """Creates the Deployments."""
        for slices, replicas in self._sizes.items():
            labels = {"app": f"s{slices}"}
            spec = {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": self._node.template(slices)},
            }
            self._node.api.post(self._path, {"metadata": {"name": f"s{slices}"}, "spec": spec})

    def delete_some(self) -> None:
        """Deletes up to two pods that run."""
        running = [
            pod["metadata"]["name"]
            for pod in self._node.listed()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        for name in self._rng.sample(running, min(self._rng.randint(0, 2), len(running))):
            with contextlib.suppress(Refused):
                self._node.api.delete(f"{self._node.pods}/{name}")

    def stir(self, seconds: float) -> None:
        """Deletes pods for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.delete_some()
            time.sleep(min(left, self._rng.uniform(1.0, 3.0)))

    def end(self) -> None:
        """Deletes Deployments and pods, and waits for it."""
        for slices in self._sizes:
            with contextlib.suppress(Refused):
                self._node.api.delete(f"{self._path}/s{slices}", {"propagationPolicy": "Background"})
        until(lambda: not self._node.listed(), LONG)


@contextlib.contextmanager
def watched(node: Node) -> Iterator[Watch]:
    """Looks while the block runs."""
    watch = Watch(node)
    with looking(watch.look, 0.5):
        yield watch


@contextlib.contextmanager
def existing_node() -> Iterator[Node]:
    """The node that the environment names, with an agent; SystemExit with what is missing."""
    wanted = ("K8S_NODE_KUBECONFIG", "K8S_NODE", "K8S_NODE_IMAGE")
    missing = [name for name in wanted if not os.environ.get(name)]
    binaries = find_binaries()
    if missing or os.geteuid() or isinstance(binaries, str):
        raise SystemExit(
            f"{', '.join(missing) or 'root, or a binary,'} is missing (tests/cluster/test_node.py)"
        )
    path, name, image = (os.environ[one] for one in wanted)
    folder = Path(tempfile.mkdtemp(prefix="gs-kills-", dir="/tmp"))
    print(f"logs: {folder}", flush=True)
    with Existing(folder, binaries, Path(path)) as plane, Node(plane, name, image) as node:
        yield node


def main() -> int:
    """Returns 1 where a pod has failed or a GPU was promised twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--mean", type=float, default=10.0, help="seconds between two kills, 5 to 30 each")
    parser.add_argument("--with-front", action="store_true")
    options = parser.parse_args()
    rng, halt = random.Random(options.seed), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: halt.set())
    with existing_node() as node:
        crowd, starts = Crowd(node, rng, SIZES), list[float]()
        with watched(node) as watch:
            try:
                crowd.make()
                crowd.stir(30)
                while len(starts) < options.kills and not halt.is_set():
                    pause = min(30.0, 5.0 + rng.expovariate(1 / (options.mean - 5.0)))
                    crowd.stir(pause)
                    node.kill(with_front=options.with_front)
                    starts.append(node.wait_served())
                    text = f"kill {len(starts)} after {pause:.1f} s, ready in {starts[-1]:.1f} s"
                    print(time.strftime("%H:%M:%S"), text, flush=True)
                crowd.stir(30)
            finally:
                crowd.end()
    report = {
        "seed": options.seed,
        "kills": len(starts),
        "front killed, too": options.with_front,
        "ready again, median and longest": [round(statistics.median(starts), 1), round(max(starts), 1)],
        "pods": len(watch.made),
        "failed": len(watch.failed),
        "checks of the pages of living processes": watch.checks,
        "GPUs promised twice": watch.over_grants,
        "slices that living processes had at most": watch.most,
        "allocatable, and how often": dict(sorted(watch.allocatable.items())),
    }
    print(json.dumps(report, indent=1), flush=True)
    return 1 if watch.failed or watch.over_grants else 0


if __name__ == "__main__":
    sys.exit(main())
