"""The dataset service against a real kubelet of this machine.

Run with K8S_BIN (a directory with kubectl), K8S_NODE_KUBECONFIG (an administrator of a cluster whose kubelet runs here,
as root, with its directory at /var/lib/kubelet), K8S_NODE (its name) and K8S_NODE_IMAGE (an image on it with sh).
Skipped otherwise. Nothing else may serve the driver meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

from gigaslice.dataset_node.mounts.linux import LinuxMounts

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("K8S_BIN", "K8S_NODE_KUBECONFIG", "K8S_NODE", "K8S_NODE_IMAGE")
pytestmark = pytest.mark.skipif(
    any(name not in os.environ for name in NEEDED) or os.geteuid() != 0,
    reason=f"needs root and a real kubelet of this machine: {', '.join(NEEDED)}",
)


class Node:
    def __init__(self, root: Path) -> None:
        self.root, self.data, self.process = root, root / "data", None
        self.kubeconfig = os.environ["K8S_NODE_KUBECONFIG"]
        self.data.mkdir()
        for number in range(50):
            (self.data / f"f{number}").write_bytes(os.urandom(3000))

    def kubectl(self, *words: str, stdin: str = "", check: bool = True) -> str:
        command = [f"{os.environ['K8S_BIN']}/kubectl", "--kubeconfig", self.kubeconfig, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def install(self) -> None:
        """Everything of the manifest but the DaemonSet, and a kubeconfig of its service account."""
        documents = [one for one in yaml.safe_load_all((ROOT / "deploy/dataset.yaml").read_text()) if one]
        rest = [one for one in documents if one["kind"] != "DaemonSet"]
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rest))
        config = yaml.safe_load(Path(self.kubeconfig).read_text())
        token = self.kubectl("-n", "kube-system", "create", "token", "gigaslice-dataset").strip()
        config["users"][0]["user"] = {"token": token}
        (self.root / "kubeconfig").write_text(yaml.safe_dump(config))

    def start(self) -> None:
        command = [
            sys.executable, "-m", "agent", "dataset", f"--state-dir={self.root}/s", f"--run-dir={self.root}/r",
            f"--node-name={os.environ['K8S_NODE']}", f"--allow={self.data}", "--keep-free=0%", "--metrics-address=off",
            f"--kubeconfig={self.root}/kubeconfig",
        ]  # fmt: skip
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        before = self.registrations()
        self.until(lambda: self.registrations() > before, "the driver is registered")

    def registrations(self) -> int:
        return (self.root / "log").read_text().count('"event": "registered"')

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(30)

    def until(self, condition, what: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not in time: {what}\n{(self.root / 'log').read_text()[-2000:]}"
            time.sleep(0.2)

    def pod(self, name: str, **attributes: str) -> None:
        container = {
            "name": "c",
            "image": os.environ["K8S_NODE_IMAGE"],
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", "ls /data | wc -l; exec sleep 100000"],
            "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
        }
        csi = {"driver": "dataset.gigaslice.io", "readOnly": True, "volumeAttributes": attributes}
        spec = {
            "nodeName": os.environ["K8S_NODE"],
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [{"name": "data", "csi": csi}],
        }
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def phase(self, name: str) -> str:
        return self.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}", check=False)

    def events(self, name: str) -> str:
        return self.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}", "-o", "json")

    def mounted(self) -> list[str]:
        return [
            one.point
            for one in LinuxMounts().table()
            if one.source.startswith(str(self.root)) and "/pods/" in one.point
        ]


@pytest.fixture
def node():
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/var/tmp") as name:
        made = Node(Path(name))
        made.install()
        try:
            made.start()
            yield made
        finally:
            for pod in ("gs-one", "gs-two", "gs-wrong"):
                made.kubectl("delete", "pod", pod, "--ignore-not-found", "--wait=true", check=False)
            made.until(lambda: not made.mounted(), "nothing is mounted for pods")
            made.kill(signal.SIGTERM)
            mounts = LinuxMounts()
            for one in reversed(mounts.table()):
                if one.point.startswith(name):
                    mounts.unmount(Path(one.point))


def test_a_pod_reads_its_data_over_kills_of_the_service(node):
    node.pod("gs-one", source=str(node.data))
    node.until(lambda: node.phase("gs-one") == "Running", "the first pod runs")
    node.until(lambda: node.kubectl("logs", "gs-one", check=False).strip() == "50", "it sees its files")
    node.kill()
    assert len(node.mounted()) == 1
    node.start()
    node.pod("gs-two", source=str(node.data))
    node.until(lambda: node.phase("gs-two") == "Running", "the second pod runs")
    assert len({one.rpartition("/volumes/")[0] for one in node.mounted()}) == 2
    node.kubectl("delete", "pod", "gs-one", "--wait=true")
    node.until(lambda: len(node.mounted()) == 1, "what the first had is unmounted")


def test_a_mistake_is_an_event(node):
    node.pod("gs-wrong", sorce=str(node.data))
    node.until(lambda: "did you mean source?" in node.events("gs-wrong"), "the event says what to write")
