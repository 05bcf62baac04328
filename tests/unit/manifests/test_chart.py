"""The Helm chart: with its own values it is daemonset.yaml, and every value does what its name says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import config
from vcuda.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "gigaslice"
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
