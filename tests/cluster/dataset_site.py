# SPDX-License-Identifier: Apache-2.0
"""A node with a real kubelet, and the dataset service and the GPU agent as processes beside it.

The node is not made here. K8S_BIN is a directory with kubectl, K8S_NODE_KUBECONFIG an administrator of a cluster whose
kubelet runs here as root with its directory at /var/lib/kubelet, K8S_NODE its name, K8S_NODE_IMAGE an image on it with
sh. K8S_NODE_KUBELET is a command that starts the kubelet anew and leaves the containers; K8S_NODE_REBOOT one that does
what a reboot does to the kubelet, the runtime and their mounts. Nothing else may serve the driver meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gigaslice.roles.dataset_node.mounts.linux import LinuxMounts
from tests.fakedriver.env import driver_env

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("K8S_BIN", "K8S_NODE_KUBECONFIG", "K8S_NODE", "K8S_NODE_IMAGE")
GPU = "gigaslice.io/vgpu-memory"
Document = dict[str, Any]


def missing() -> str:
    """Why there is no such node; empty where there is one."""
    if os.geteuid() != 0:
        return "takes root, and a real kubelet of this machine"
    absent = [name for name in NEEDED if name not in os.environ]
    return f"takes a real kubelet of this machine: {', '.join(absent)}" if absent else ""


def kubelet_command(name: str) -> list[str]:
    """The command that the environment has under NAME; skips the test where there is none."""
    if name not in os.environ:
        pytest.skip(f"takes {name}, a command")
    return shlex.split(os.environ[name])


class DatasetSite:
    """The node. Use it as a context manager; pods are deleted at its end.

    Attributes:
        data: A directory that pods may name as a source; `fill` puts files there.
    """

    def __init__(self, *flags: str) -> None:
        self.node = os.environ["K8S_NODE"]
        self.kubeconfig = os.environ["K8S_NODE_KUBECONFIG"]
        self.flags = list(flags)
        self.root = Path(tempfile.mkdtemp(prefix="gs-", dir="/var/tmp"))
        self.run_dir = Path(tempfile.mkdtemp(prefix="gs-", dir="/dev/shm"))  # in memory, as /run of nodes
        self.data = self.root / "data"
        self.data.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None
        self._pods: list[str] = []

    # --- the service and the agent ------------------------------------------------------------------------------

    def __enter__(self) -> DatasetSite:
        with contextlib.ExitStack() as undo:
            undo.callback(self._end)
            self._set_up()
            undo.pop_all()
        return self

    def _set_up(self) -> None:
        self.kubectl("apply", "-f", str(ROOT / "deploy/namespace.yaml"))
        self._install("deploy/dataset.yaml", "gigaslice-dataset", "kubeconfig")
        definitions = sorted((ROOT / "deploy/helm/gigaslice/files/crds-datasets").glob("*.yaml"))
        for one in definitions:
            self.kubectl("apply", "-f", str(one))
        self.start()

    def _install(self, manifest: str, account: str, name: str) -> None:
        """Applies everything of MANIFEST but DaemonSets; writes a kubeconfig of its service account."""
        documents = [one for one in yaml.safe_load_all((ROOT / manifest).read_text()) if one]
        rest = [one for one in documents if one["kind"] != "DaemonSet"]
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rest))
        config = yaml.safe_load(Path(self.kubeconfig).read_text())
        bound = ("--bound-object-kind=Node", f"--bound-object-name={self.node}")  # as tokens of pods are
        token = self.kubectl("-n", "gigaslice", "create", "token", account, "--duration=2h", *bound).strip()
        config["users"][0]["user"] = {"token": token}
        (self.root / name).write_text(yaml.safe_dump(config))

    def start(self, *, wait: bool = True) -> None:
        """Starts the service, and waits until the kubelet has registered it."""
        command = [
            sys.executable, "-m", "gigaslice_cli", "dataset", f"--state-dir={self.root}/s", f"--run-dir={self.run_dir}",
            f"--node-name={self.node}", f"--allow=s3,{self.data}", "--keep-free=0%", "--metrics-address=off",
            f"--kubeconfig={self.root}/kubeconfig", "--local-addresses=on", *self.flags,
        ]  # fmt: skip
        before = self.logged("registered")
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        if wait:
            self.until(lambda: self.logged("registered") > before, "the driver is registered")

    def start_agent(self) -> None:
        """Starts the GPU agent on a simulated driver, and waits until both it and the kubelet are ready."""
        driver = driver_env("two-24g", self.root / "machine.state")  # says so where it is not built
        self._install("daemonset.yaml", "gigaslice", "agent.kubeconfig")
        command = [
            sys.executable, "-m", "gigaslice_cli", "node", f"--state-dir={self.root}/agent", f"--node-name={self.node}",
            f"--kubeconfig={self.root}/agent.kubeconfig", "--metrics-address=off", "--poll-interval=2s",
            f"--dataset-gate={self.run_dir}/gate/gate.sock",
        ]  # fmt: skip
        before = self.logged("agent connected")
        with (self.root / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=driver)
        self.until(lambda: self.logged("agent connected") > before, "the agent is connected")
        path = "{.status.allocatable." + GPU.replace(".", "\\.") + "}"
        self.until(
            lambda: self.kubectl("get", "node", self.node, "-o", f"jsonpath={path}") not in ("", "0"),
            "the kubelet knows the GPUs",
        )

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Ends the service."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(30)

    def reboot(self) -> None:
        """What a reboot leaves of the service: its state on disk, and no mount and nothing in memory."""
        command = kubelet_command("K8S_NODE_REBOOT")
        self.kill()
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        self._unmount_all()
        shutil.rmtree(self.run_dir)
        self.run_dir.mkdir()

    def restart_kubelet(self) -> None:
        """Starts the kubelet anew; containers stay."""
        command = kubelet_command("K8S_NODE_KUBELET")
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def __exit__(self, *_: object) -> None:
        try:
            if self.process is None or self.process.poll() is not None:
                self.start()
            for pod in self._pods:
                self.kubectl("delete", "pod", pod, "--ignore-not-found", "--wait=true", check=False)
            self.until(lambda: not self.mounted(), "nothing is mounted for pods")
        finally:
            self._end()

    def _end(self) -> None:
        """Ends what was started, and removes what was made."""
        for process in (self.agent, self.process):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(30)
        self._unmount_all()
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def _unmount_all(self) -> None:
        mounts = LinuxMounts()
        for one in reversed(mounts.table()):
            if one.point.startswith(str(self.root)):
                mounts.unmount(Path(one.point))

    # --- what is seen -------------------------------------------------------------------------------------------

    def logged(self, event: str) -> int:
        """How often the service has logged EVENT."""
        log = self.root / "log"
        return log.read_text().count(f'"event": "{event}"') if log.exists() else 0

    def until(self, condition: Callable[[], object], what: str, seconds: float = 90.0) -> None:
        """Waits for CONDITION."""
        end = time.monotonic() + seconds
        while not condition():
            ended = self.agent is not None and self.agent.poll() is not None
            assert not ended, f"the agent has ended: {what}\n{(self.root / 'agent.log').read_text()[-3000:]}"
            assert time.monotonic() < end, f"not in time: {what}\n{(self.root / 'log').read_text()[-3000:]}"
            time.sleep(0.1)

    def mounted(self) -> list[str]:
        """What is mounted for pods, placeholders included."""
        return [
            one
            for one in self.points()
            if one.startswith("/var/lib/kubelet/pods/") and one.endswith("/mount")
        ]

    @staticmethod
    def points() -> list[str]:
        """Every mount point of this machine."""
        return [one.point for one in LinuxMounts().table()]

    # --- pods ---------------------------------------------------------------------------------------------------

    def kubectl(self, *words: str, stdin: str = "", check: bool = True) -> str:
        """What kubectl prints."""
        command = [f"{os.environ['K8S_BIN']}/kubectl", "--kubeconfig", self.kubeconfig, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def pod(
        self,
        name: str,
        volumes: Mapping[str, Mapping[str, str]],
        *,
        containers: Mapping[str, Sequence[str]] | None = None,
        gpu: bool = False,
        script: str = "find / -xdev -maxdepth 0 >/dev/null; find /data -type f | wc -l; exec sleep 100000",
        secret: str = "",
        **spec: Any,
    ) -> None:
        """Makes a pod of the node.

        Args:
            name: Its name.
            volumes: Their attributes, by name; each is mounted at /data/NAME.
            containers: The volumes of each, with a path inside as VOLUME:PATH; one container with all of them where
                it is None.
            gpu: Whether each asks for a GPU slice.
            script: What they run.
            secret: The Secret of the volumes.
            spec: More of the pod.
        """
        listed = containers if containers is not None else {"c": list(volumes)}
        csi: dict[str, Any] = {"driver": "dataset.gigaslice.io", "readOnly": True}
        if secret:
            csi["nodePublishSecretRef"] = {"name": secret}
        image = spec.pop("image", os.environ["K8S_NODE_IMAGE"])
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": self.node,
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": False,
                "containers": [
                    {
                        "name": one,
                        "image": image,
                        "imagePullPolicy": spec.pop("imagePullPolicy", "Never"),
                        "command": ["sh", "-c", script],
                        "resources": {"limits": {GPU: 1}} if gpu else {},
                        "volumeMounts": [_mount(volume) for volume in mounts],
                    }
                    for one, mounts in listed.items()
                ],
                "volumes": [
                    {"name": volume, "csi": {**csi, "volumeAttributes": dict(attributes)}}
                    for volume, attributes in volumes.items()
                ],
                **spec,
            },
        }
        self.document(document)

    def document(self, pod: Document) -> None:
        """Makes a pod of this document, which is deleted at the end."""
        self._pods.append(pod["metadata"]["name"])
        self.kubectl("apply", "-f", "-", stdin=json.dumps(pod))

    def get(self, name: str) -> Document:
        """A pod's document; empty where it is gone."""
        text = self.kubectl("get", "pod", name, "-o", "json", check=False)
        found: Document = json.loads(text) if text else {}
        return found

    def phase(self, name: str) -> str:
        """A pod's phase."""
        return str(self.get(name).get("status", {}).get("phase", ""))

    def runs(self, name: str) -> bool:
        """Whether all containers of a pod run."""
        found = self.get(name).get("status", {}).get("containerStatuses") or []
        return bool(found) and all("running" in one["state"] for one in found)

    def restarts(self, name: str) -> int:
        """How often containers of a pod have been started again."""
        return sum(one["restartCount"] for one in self.get(name)["status"]["containerStatuses"])

    def log(self, name: str, container: str = "c") -> str:
        """What a container has printed."""
        return self.kubectl("logs", name, "-c", container, check=False).strip()

    def events(self, name: str) -> str:
        """The events of a pod, and of none that had its name before."""
        uid = self.get(name).get("metadata", {}).get("uid", "none")
        return self.kubectl("get", "events", "--field-selector", f"involvedObject.uid={uid}", "-o", "json")

    def fill(self, name: str, files: int, size: int) -> str:
        """Makes a directory of FILES of SIZE; returns its path, as pods name it."""
        folder = self.data / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            (folder / f"f{number}").write_bytes(os.urandom(size))
        return str(folder)


def _mount(volume: str) -> Document:
    name, _, path = volume.partition(":")
    return {
        "name": name,
        "mountPath": f"/data/{name}",
        "readOnly": True,
        **({"subPath": path} if path else {}),
    }
