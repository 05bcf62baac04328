# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/cluster.md on a node with a real kubelet: what the scheduler assigned is what containers get.

The node is not made here. K8S_NODE_KUBECONFIG is an administrator's kubeconfig with a token, of a cluster whose API
server is on loopback; K8S_NODE is a node of it on this machine, with the kubelet in its usual directories and without
an agent; K8S_NODE_IMAGE is an image on it with a shell. It takes root. The agent sees a simulated driver; agent,
service, a second kube-scheduler and controller run as processes, with tokens of the chart's accounts.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import yaml

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from tests.cluster import roles
from tests.cluster.control_plane import Api, ControlPlane, Refused, find_binaries, until
from tests.cluster.pairs import Pair
from tests.cluster.proxy import Proxy
from tests.fakedriver.env import driver_env
from tests.fakes.ports import free_port

LONG = 180.0
CLASSES = "/apis/gigaslice.io/v1alpha1/resourceclasses"
H100, T4 = "gpuclass.gigaslice.io/nvidia.h100.80gb.hbm3", "gpuclass.gigaslice.io/nvidia.tesla.t4"
MEMORY, GPU = "gigaslice.io/vgpu-memory", "gigaslice.io/gpu"
CHECKPOINT = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
MACHINE = """\
driver_version: 550.163.01
cuda_version: 12040
context_memory: 100MiB
seed: 24

gpu *:
  model: NVIDIA H100 80GB HBM3
  memory: 80GiB
  capability: 9.0
  multiprocessors: 132
gpu 0:
  pci: 00000000:3b:00.0
gpu 1:
  pci: 00000000:5e:00.0
gpu 2:
  model: Tesla T4
  memory: 16GiB
  capability: 7.5
  multiprocessors: 40
  pci: 00000000:af:00.0
gpu 3:
  model: Tesla T4
  memory: 16GiB
  capability: 7.5
  multiprocessors: 40
  pci: 00000000:d8:00.0
"""
Document = dict[str, Any]


class Existing(ControlPlane):
    """A cluster that is there already."""

    def __init__(self, folder: Path, binaries: Mapping[str, str], path: Path) -> None:
        super().__init__(folder, binaries)
        document = yaml.safe_load(path.read_text())
        self.port = urlsplit(document["clusters"][0]["cluster"]["server"]).port or 443
        self._token = document["users"][0]["user"]["token"]

    @property
    def admin(self) -> Api:
        return self.bearer(self._token)

    def __enter__(self) -> Existing:
        return self


class HandedOver(NamedTuple):
    """What a container got of one resource: the kubelet's device IDs by GPU, and the GPUs that are visible to it."""

    resource: str
    ids: Counter[str]
    visible: set[str]


class Site:
    """The cluster, its node and what runs for it."""

    def __init__(self, plane: Existing, node: str, image: str) -> None:
        self.plane, self.node, self._image = plane, node, image
        self.api = plane.admin
        self.namespace = f"node-test-{os.getpid()}"
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self._running: list[subprocess.Popen[bytes]] = []
        self._pair = Pair(plane, plane.folder, "pair")
        self.proxy = Proxy(plane.port, plane.folder)
        """Between the agent and the API server."""

    def __enter__(self) -> Site:
        machine = self.plane.folder / "machine.txt"
        machine.write_text(MACHINE)
        driver = driver_env(machine, self.plane.folder / "machine.state")  # says so where it is not built
        with contextlib.ExitStack() as undo:
            undo.callback(self._end)
            self._set_up(driver)
            undo.pop_all()
        return self

    def _set_up(self, driver: Mapping[str, str]) -> None:
        self.proxy.__enter__()
        self.plane.documents = roles.install(
            self.plane, "admission.mode=policy", without=("Deployment", "DaemonSet", "Service")
        )
        self.api.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        for name, value in (("node-low", 10), ("node-high", 1000)):
            kind = {"metadata": {"name": name}, "value": value}
            with contextlib.suppress(Refused):
                self.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", kind)
        self._start(
            "node", "--whole-gpus=gigaslice.io/gpu", f"--state-dir={self.plane.folder / 'agent'}",
            f"--kubeconfig={roles.kubeconfig(self.plane, roles.AGENT, self.node, self.proxy.port)}",
            f"--node-name={self.node}",
            f"--metrics-address=127.0.0.1:{free_port()}", environment=driver,
        )  # fmt: skip
        self._start(
            "controller", f"--kubeconfig={roles.kubeconfig(self.plane, roles.CONTROLLER)}",
            f"--namespace={roles.NAMESPACE}", "--leader-lease=gigaslice-controller",
            f"--metrics-address=127.0.0.1:{free_port()}",
        )  # fmt: skip
        self._pair.start()
        until(
            lambda: {H100, T4} <= {f"gpuclass.gigaslice.io/{name}" for name in self._living().classes()}, LONG
        )
        until(lambda: self._living().allocatable() == (192, 4), LONG)
        time.sleep(2)  # policies act about a second after they are installed

    def __exit__(self, *_: object) -> None:
        try:
            self.clear()
        finally:
            self._end()

    def _living(self) -> Site:
        """Itself. AssertionError with the log of a role that has ended by itself."""
        for one in self._running:
            role = str(one.args[3])  # type: ignore[index]
            assert one.poll() is None, (self.plane.folder / f"{role}.log").read_text()[-3000:]
        return self

    def _end(self) -> None:
        self._pair.stop()
        for one in self._running:
            one.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(30)
            one.kill()
        self.proxy.__exit__()

    def _start(self, *words: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        with (self.plane.folder / f"{words[0]}.log").open("ab") as log:
            command = [sys.executable, "-m", "gigaslice_cli", *words]
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        self._running.append(process)

    def classes(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.api.get(CLASSES)["items"]]

    def allocatable(self) -> tuple[int, int]:
        found = self.api.get(f"/api/v1/nodes/{self.node}")["status"]["allocatable"]
        return int(found.get(MEMORY, 0)), int(found.get(GPU, 0))

    def make(self, name: str, *limits: Mapping[str, int], **more: Any) -> None:
        annotations = more.pop("annotations", {})
        containers = [
            {
                "name": f"c{number}",
                "image": self._image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", "while :; do sleep 1; done"],
                "resources": {"limits": {key: str(count) for key, count in one.items()}},
            }
            for number, one in enumerate(limits)
        ]
        spec = {"terminationGracePeriodSeconds": 0, "containers": containers, **more}
        self.api.post(self.pods, {"metadata": {"name": name, "annotations": annotations}, "spec": spec})

    def get(self, name: str) -> Document:
        return self.api.get(f"{self.pods}/{name}")

    def run(self, name: str, *limits: Mapping[str, int], **more: Any) -> None:
        self.make(name, *limits, **more)
        self.wait(name)

    def wait(self, name: str) -> None:
        try:
            until(lambda: self.get(name)["status"].get("phase") == "Running", LONG)
        except AssertionError:
            raise AssertionError(json.dumps(self.get(name)["status"])) from None

    def message(self, name: str) -> str:
        conditions = self.get(name)["status"].get("conditions", [])
        return next((str(one.get("message", "")) for one in conditions if one["type"] == "PodScheduled"), "")

    def delete(self, *names: str) -> None:
        for name in names:
            self.api.delete(f"{self.pods}/{name}", {"gracePeriodSeconds": 0})
        until(lambda: not {one["metadata"]["name"] for one in self.items()} & set(names), LONG)

    def items(self) -> list[Document]:
        found: list[Document] = self.api.get(self.pods)["items"]
        return found

    def clear(self) -> None:
        self.delete(*(one["metadata"]["name"] for one in self.items()))

    def assigned(self) -> dict[tuple[str, str], dict[str, int]]:
        """GPUs and slices of each container, by pod and container, as the scheduler has written them."""
        found = {}
        for one in self.items():
            text = one["metadata"].get("annotations", {}).get(ASSIGNMENT)
            for container, shares in (Assignment.decode(text).containers if text else {}).items():
                found[one["metadata"]["name"], container] = {share.gpu: share.slices for share in shares}
        return found

    def executed(self) -> dict[tuple[str, str], dict[str, int]]:
        """The same as the agent has carried it out, by its own state."""
        command = [
            sys.executable,
            "-m",
            "gigaslice_cli",
            "status",
            "--json",
            f"--state-dir={self.plane.folder / 'agent'}",
        ]
        document = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return read_status(document)

    def handed_over(self) -> dict[tuple[str, str], HandedOver]:
        """By pod and container, from the kubelet's checkpoint."""
        names = {one["metadata"]["uid"]: one["metadata"]["name"] for one in self.items()}
        return read_checkpoint(json.loads(CHECKPOINT.read_text()), names)

    def check(self) -> None:
        """Every running container has the GPUs of its assignment, by the agent's state and by the kubelet's."""
        assigned = self.assigned()
        until(lambda: self.executed() == assigned, 60)
        for key, one in self.handed_over().items():
            assert one.visible == set(assigned[key]), (key, one, assigned[key])


def read_status(document: Document) -> dict[tuple[str, str], dict[str, int]]:
    """GPUs and their GiB by pod and container."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for one in document["allocations"]:
        shares = found.setdefault((one["pod"], one["container"]), {})
        shares[one["gpu"]] = shares.get(one["gpu"], 0) + (one["limit_bytes"] >> 30)
    return found


def read_checkpoint(document: Document, names: Mapping[str, str]) -> dict[tuple[str, str], HandedOver]:
    """Of the pods with these names, by UID."""
    found = {}
    for one in document["Data"]["PodDeviceEntries"] or []:
        if one["PodUID"] in names:
            answer = api.ContainerAllocateResponse.FromString(base64.b64decode(one["AllocResp"]))
            ids = Counter(each.partition("/")[0] for group in one["DeviceIDs"].values() for each in group)
            visible = set(answer.envs["NVIDIA_VISIBLE_DEVICES"].split(","))
            found[names[one["PodUID"]], one["ContainerName"]] = HandedOver(one["ResourceName"], ids, visible)
    return found


def existing_node() -> tuple[Mapping[str, str], str, str, str]:
    """The control plane's binaries, the kubeconfig, the node and the image; skips the test where one is missing."""
    wanted = ("K8S_NODE_KUBECONFIG", "K8S_NODE", "K8S_NODE_IMAGE")
    missing = [name for name in wanted if not os.environ.get(name)]
    if missing or os.geteuid():
        pytest.skip(
            f"no node with a real kubelet: {', '.join(missing) or 'root'} is missing (tests/cluster/test_node.py)"
        )
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    path, node, image = (os.environ[name] for name in wanted)
    return binaries, path, node, image


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    binaries, path, node, image = existing_node()
    with (
        Existing(tmp_path_factory.mktemp("node"), binaries, Path(path)) as plane,
        Site(plane, node, image) as found,
    ):
        yield found


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    running.clear()
    running_free: Callable[[], bool] = lambda: running.executed() == {}  # noqa: E731
    until(running_free, LONG)


def test_two_models_in_one_node(site: Site) -> None:
    site.run("two-models", {H100: 1}, {T4: 1})
    site.check()
    found = site.assigned()
    assert [sum(found["two-models", name].values()) for name in ("c0", "c1")] == [80, 16]


def test_six_and_six_are_not_eight(site: Site) -> None:
    for name in ("a", "b"):
        site.run(f"fill-{name}", {H100: 1, MEMORY: 74})
    site.run("t4s", {T4: 2})
    site.make("eight", {MEMORY: 8})
    until(lambda: "no GPU has that much memory free together" in site.message("eight"), LONG)
    command = [sys.executable, "-m", "gigaslice_cli", "explain", "pod", "eight", "-n", site.namespace]
    command += [f"--kubeconfig={os.environ['K8S_NODE_KUBECONFIG']}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "6 + 6" in text and "8 wanted on one GPU" in text, text
    site.run("four-and-four", {MEMORY: 8}, annotations={"gigaslice.io/gpus": "2"})
    site.check()
    site.delete("fill-a")
    begun = time.monotonic()
    site.wait("eight")
    print(f"runs {time.monotonic() - begun:.1f} s after there was room")
    site.check()


def test_a_quota_per_class(site: Site) -> None:
    path = f"/api/v1/namespaces/{site.namespace}/resourcequotas"
    site.api.post(path, {"metadata": {"name": "gpus"}, "spec": {"hard": {f"requests.{T4}": "1"}}})
    try:
        until(lambda: site.api.get(f"{path}/gpus").get("status", {}).get("hard"), LONG)
        site.run("first", {T4: 1})
        with pytest.raises(Refused, match="exceeded quota"):
            site.make("second", {T4: 1})
    finally:
        site.api.delete(f"{path}/gpus")


def test_pods_of_lower_priority_give_way(site: Site) -> None:
    for number in range(2):
        site.run(f"h100-{number}", {H100: 1}, priorityClassName="node-low")
        site.run(f"t4-{number}", {T4: 1}, priorityClassName="node-low")
    site.run("urgent", {T4: 1}, priorityClassName="node-high")
    left = {one["metadata"]["name"] for one in site.items()}
    assert {"h100-0", "h100-1", "urgent"} <= left and len(left) == 4
    site.check()


def test_an_unknown_class_is_refused_at_once(site: Site) -> None:
    with pytest.raises(Refused, match="there is no class"):
        site.make("wrong", {"gpuclass.gigaslice.io/nvidia.h10": 1})


def test_pods_that_come_and_go(site: Site) -> None:
    choices = random.Random(3)
    count = itertools.count()
    names: list[str] = []
    for _ in range(16):
        if len(names) > 3 or (names and choices.random() < 0.3):
            gone = choices.sample(names, min(len(names), 2))
            site.delete(*gone)
            names = [name for name in names if name not in gone]
            continue
        name = f"p{next(count)}"
        sizes = choices.choice(
            [{MEMORY: choices.choice((7, 13, 20))}, {H100: 1, MEMORY: 30}, {T4: 1, MEMORY: 5}]
        )
        site.run(name, sizes)
        names.append(name)
        site.check()


def test_the_kubelets_device_ids_are_of_other_gpus_than_the_assignment(site: Site) -> None:
    """As after the agent's watch was late: it could not tell the kubelet which IDs to take."""
    differing = 0
    for turn in range(3):
        site.proxy.held = True
        names = [f"{kind}-{turn}-{number}" for kind in ("h", "t") for number in range(2)]
        for name in names:
            site.make(name, {H100 if name[0] == "h" else T4: 1, MEMORY: 2})
        time.sleep(2)
        site.proxy.held = False
        for name in names:
            site.wait(name)
        site.check()
        assigned = site.assigned()
        given = {key: one for key, one in site.handed_over().items() if one.resource == MEMORY}
        differing += sum(one.ids != Counter(assigned[key]) for key, one in given.items())
    print(f"{differing} times the kubelet's IDs were of other GPUs than the assignment's")
    assert differing
