"""The Helm chart: with its own values it is daemonset.yaml, and every value does what its name says."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import config
from tests.fakes.kubelet import FakeKubelet
from vcuda.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "gigaslice"
DEFAULTS = config.load({}, {})
GPUS = "gpus: [{uuid: GPU-00000000-0000-4000-8000-000000000000, model: A, memory: 24GiB}]\n"
Documents = dict[str, dict[str, Any]]


def helm(*words: str, release: str = "gigaslice") -> subprocess.CompletedProcess[str]:
    """`helm template` of the chart; the binary comes with the development dependencies."""
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    assert found, "helm is missing: run make"
    command = [found, "template", release, str(CHART), "--namespace", "kube-system", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def rendered(*words: str, release: str = "gigaslice") -> Documents:
    done = helm(*words, release=release)
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}


def pod(documents: Documents) -> dict[str, Any]:
    return documents["DaemonSet"]["spec"]["template"]["spec"]


def node(documents: Documents) -> dict[str, Any]:
    (container,) = pod(documents)["containers"]
    return container


def test_the_chart_with_its_own_values_is_the_manifest():
    manifest = {one["kind"]: one for one in yaml.safe_load_all((ROOT / "daemonset.yaml").read_text()) if one}
    assert rendered() == manifest


def test_the_chart_has_the_version_of_the_project():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


@pytest.mark.parametrize("release", ["gigaslice", "gpu"])
def test_kubernetes_takes_it_with_everything_set(release, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text(
        """
image: {repository: example.com/gigaslice, tag: v9, pullPolicy: Always}
imagePullSecrets: [{name: pull}]
settings: {slice: 2GiB, visibleDevices: cdi, pollInterval: 5s}
extraEnv: [{name: TZ, value: UTC}]
extraArgs: ["--log-level=debug"]
kubeletDir: /var/snap/microk8s/common/var/lib/kubelet
stateDir: /data/gigaslice
runtimeClassName: nvidia
nodeSelector: {gpu: "yes"}
affinity: {nodeAffinity: {}}
tolerations: [{key: gpu, operator: Exists}]
priorityClassName: ""
podAnnotations: {a: b}
podLabels: {c: d}
maxUnavailable: 10%
resources: {limits: {memory: 256Mi}}
serviceAccount: {create: true, name: other, annotations: {x: z}}
"""
    )
    documents = rendered("--values", str(values), release=release)
    for document in documents.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    container, spec = node(documents), pod(documents)
    assert container["image"] == "example.com/gigaslice:v9"
    assert spec["runtimeClassName"] == "nvidia" and "priorityClassName" not in spec
    assert spec["nodeSelector"] == {"gpu": "yes"} and spec["serviceAccountName"] == "other"
    assert documents["ServiceAccount"]["metadata"]["name"] == "other"
    paths = {volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == paths
    assert "/data/gigaslice" in paths and not [path for path in paths if path.startswith("/var/lib/")]
    selector = documents["DaemonSet"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= documents["DaemonSet"]["spec"]["template"]["metadata"]["labels"].items()


def test_the_agent_understands_the_flags_that_settings_become():
    words = ["--set", "settings.slice=2GiB,settings.visibleDevices=cdi,kubeletDir=/k,stateDir=/s"]
    command, *flags = node(rendered(*words))["args"]
    assert command == "node"
    given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    settings = config.load(given, {})
    assert (settings.slice_bytes, settings.visible_devices) == (2 << 30, "cdi")
    assert settings.state_dir == Path("/s") and settings.kubelet_dir == Path("/k/device-plugins")
    assert settings.pod_resources == Path("/k/pod-resources/kubelet.sock")


def test_two_releases_do_not_share_names():
    one, other = rendered(), rendered(release="second")
    for kind, document in one.items():
        assert document["metadata"]["name"] != other[kind]["metadata"]["name"]
    assert one["DaemonSet"]["spec"]["selector"] != other["DaemonSet"]["spec"]["selector"]


def test_without_access_to_the_api_nothing_of_it_is_made():
    documents = rendered("--set", "rbac.create=false,serviceAccount.create=false")
    assert set(documents) == {"DaemonSet"}
    assert pod(documents)["serviceAccountName"] == "default"


@pytest.mark.parametrize(
    "mistake", ["imge.tag=x", "image.pullPolicy=Sometimes", "kubeletDir=relative", "settings.Slice=1GiB"]
)
def test_a_mistake_in_the_values_is_refused(mistake):
    done = helm("--set", mistake)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_the_port_of_metrics_follows_the_setting():
    (port,) = node(rendered("--set", "settings.metricsAddress=:9000"))["ports"]
    assert port["containerPort"] == 9000
    silent = node(rendered("--set", "settings.metricsAddress=off"))
    assert "ports" not in silent and "readinessProbe" not in silent
    private = node(rendered("--set", "settings.metricsAddress=127.0.0.1:9000"))
    assert "ports" in private and "readinessProbe" not in private, "the kubelet asks the pod's address"


@pytest.mark.parametrize(
    "words", [["--set-string", "settings.bindCpus=on"], ["--set", "extraArgs={--bind-cpus=on}"]], ids=str
)
def test_the_capability_for_cpus_comes_with_their_binding_alone(words):
    assert node(rendered(*words))["securityContext"]["capabilities"]["add"] == ["DAC_OVERRIDE", "SYS_NICE"]
    without = node(rendered("--set-string", "settings.bindCpus=off"))
    assert without["securityContext"]["capabilities"]["add"] == ["DAC_OVERRIDE"]


# --- the probe where metrics are off ---------------------------------------------------------------------------------


@pytest.fixture
def exec_probe() -> list[str]:
    """The command of both probes of a chart without metrics."""
    documents = rendered("--set", "settings.metricsAddress=off")
    kubernetes_validate.validate(documents["DaemonSet"], kubernetes_validate.latest_version(), strict=True)
    startup, liveness = (node(documents)[name] for name in ("startupProbe", "livenessProbe"))
    assert startup["exec"] == liveness["exec"]
    assert (startup["periodSeconds"], startup["failureThreshold"]) == (2, 30)
    assert (liveness["periodSeconds"], liveness["failureThreshold"]) == (30, 3)
    command: list[str] = liveness["exec"]["command"]
    assert "timeout=5)" in command[2] and liveness["timeoutSeconds"] > 5
    assert (command[0], command[-1]) == ("python", str(DEFAULTS.kubelet_dir / DEFAULTS.socket_name))
    return command


def probe(command: list[str], socket: Path, seconds: float = 5) -> int:
    """Runs the probe's own command, with our interpreter and that socket."""
    words = [sys.executable, *command[1:-1], str(socket)]
    words = [part.replace("timeout=5", f"timeout={seconds}") for part in words]
    return subprocess.run(words, capture_output=True, timeout=60, check=False).returncode


@pytest.fixture
def running() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A node agent that a kubelet stand-in has registered, and its socket."""
    # /tmp and a short name: the path of a unix socket may have 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name,
        FakeKubelet(Path(name) / "k") as kubelet,
    ):
        folder = Path(name)
        inventory = folder / "gpus.yaml"
        inventory.write_text(GPUS)
        flags = f"""--inventory {inventory} --state-dir {folder / "state"} --log-level error --metrics-address off
            --kubelet-dir {kubelet.plugin_directory} --pod-resources {kubelet.pod_resources_socket}"""
        agent = subprocess.Popen([sys.executable, "-m", "agent", "node", *shlex.split(flags)], cwd=ROOT)
        try:
            deadline = time.monotonic() + 60
            while not kubelet.allocatable().get(DEFAULTS.resource):
                assert agent.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield agent, kubelet.plugin_directory / DEFAULTS.socket_name
        finally:
            agent.kill()
            agent.wait()


def test_the_probe_tells_a_living_agent_from_a_dead_one(exec_probe, running):
    agent, socket = running
    assert probe(exec_probe, socket, 30) == 0
    agent.send_signal(signal.SIGSTOP)
    assert probe(exec_probe, socket, 0.5) != 0, "an agent that does not answer"
    agent.send_signal(signal.SIGCONT)
    assert probe(exec_probe, socket, 30) == 0
    agent.kill()
    agent.wait()
    assert socket.is_socket(), "a killed agent leaves its socket"
    assert probe(exec_probe, socket) != 0
    assert probe(exec_probe, socket.with_name("nothing")) == 0, "one that waits for GPUs has no socket"
