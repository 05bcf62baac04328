# SPDX-License-Identifier: Apache-2.0
"""The dataset service's manifests: what it may do, where it mounts, and that both ways to install it are one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import config
from gigaslice.core.model import DATASET_DRIVER
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.dataset_node.start_gate import GATE_DIRECTORY, GATE_SOCKET
from gigaslice.runtime.settings import load
from gigaslice.runtime.tasks import TERMINATION_SECONDS
from gigaslice_cli import frame
from tests.unit.manifests.test_chart import helm, listed

ROOT = Path(__file__).resolve().parents[3]
DEFAULTS = load(DatasetSettings, {}, {})
Document = dict[str, Any]


def chart(*sets: str) -> list[Document]:
    words = [word for one in ("dataset.enabled=true", *sets) for word in ("--set", one)]
    return [one for one in listed(*words) if _is_ours(one)]


def _is_ours(document: Document) -> bool:
    return document["kind"] == "CSIDriver" or document["metadata"]["name"].endswith("-dataset")


def plain() -> list[Document]:
    return [one for one in yaml.safe_load_all((ROOT / "deploy" / "dataset.yaml").read_text()) if one]


def of(documents: list[Document], kind: str) -> Document:
    (found,) = [one for one in documents if one["kind"] == kind]
    return found


def pod_of(documents: list[Document]) -> Document:
    found: Document = of(documents, "DaemonSet")["spec"]["template"]["spec"]
    return found


def container_of(documents: list[Document]) -> Document:
    (found,) = pod_of(documents)["containers"]
    return dict(found)


def test_without_it_nothing_of_it_is_there():
    assert not [one for one in listed() if _is_ours(one)]


def test_both_ways_are_one():
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in chart()}
    assert {(one["kind"], one["metadata"]["name"]): one for one in plain()} == by_name


@pytest.mark.parametrize("version", ["1.30", "1.33", "1.36"])
def test_kubernetes_takes_it(version):
    for document in plain():
        kubernetes_validate.validate(document, version, strict=True)


def test_the_kubelet_says_which_pod_asks_and_nothing_is_attached():
    driver = of(plain(), "CSIDriver")
    assert driver["metadata"]["name"] == DATASET_DRIVER
    assert driver["spec"] == {
        "attachRequired": False,
        "podInfoOnMount": True,
        "fsGroupPolicy": "None",
        "volumeLifecycleModes": ["Ephemeral"],
    }


def test_it_may_read_pods_and_datasets_write_events_and_its_node_and_nothing_else():
    assert of(plain(), "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["gigaslice.io"], "resources": ["datasets"], "verbs": ["get"]},
        {"apiGroups": ["gigaslice.io"], "resources": ["datasetnodes"], "verbs": ["create", "patch"]},
    ]
    account = of(plain(), "ServiceAccount")["metadata"]["name"]
    assert pod_of(plain())["serviceAccountName"] == account
    assert [one["name"] for one in of(plain(), "ClusterRoleBinding")["subjects"]] == [account]
    assert account != "gigaslice", "the GPU agent has an account of its own"


def test_mounts_are_where_the_service_looks_and_reach_the_host():
    sources = {one["name"]: one.get("hostPath", {}).get("path") for one in pod_of(plain())["volumes"]}
    mounts = {one["mountPath"]: one for one in container_of(plain())["volumeMounts"]}
    for path in (DEFAULTS.kubelet_root, DEFAULTS.state_dir):
        assert mounts[str(path)]["mountPropagation"] == "Bidirectional"
    for path in (DEFAULTS.kubelet_root, DEFAULTS.state_dir, DEFAULTS.run_dir):
        assert sources[mounts[str(path)]["name"]] == str(path), "host and container must call it the same"
    assert container_of(plain())["securityContext"]["privileged"] is True, (
        "the kubelet demands it of Bidirectional"
    )
    gate = config.load({}, {}).dataset_gate
    assert gate == DEFAULTS.run_dir / GATE_DIRECTORY / GATE_SOCKET, "the GPU agent finds the gate there"


def test_the_flags_are_taken():
    found = container_of(
        chart(
            "dataset.settings.allow=nfs://server/export",
            "dataset.settings.keepFree=10%",
            "dataset.settings.trustedNamespaces=shared",
            "dataset.stateDir=/data/cache",
            "kubeletDir=/data/kubelet",
            "dataset.extraArgs={--datasets=2}",
        )
    )
    known = frame.make_parser("dataset").parse_args(found["args"])
    from gigaslice.runtime.settings import flags_of

    settings = load(DatasetSettings, flags_of(DatasetSettings, known), {})
    assert (settings.allow, settings.keep_free, settings.datasets) == (("nfs://server/export",), 0.1, 2)
    assert settings.trusted_namespaces == ("shared",)
    assert (str(settings.state_dir), str(settings.kubelet_root)) == ("/data/cache", "/data/kubelet")
    mounts = {one["mountPath"] for one in found["volumeMounts"]}
    assert {"/data/cache", "/data/kubelet"} <= mounts


def test_probes_ask_where_metrics_are_served():
    container = container_of(plain())
    assert container["ports"] == [{"name": "metrics", "containerPort": DEFAULTS.metrics_address[1]}]
    assert "livenessProbe" not in container_of(chart("dataset.settings.metricsAddress=off"))
    assert pod_of(plain())["terminationGracePeriodSeconds"] == TERMINATION_SECONDS


def test_the_gpu_agent_stays_unprivileged():
    (agent,) = [one for one in listed() if one["kind"] == "DaemonSet"]
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    assert "privileged" not in container["securityContext"]
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert "mountPropagation" not in mounts[str(DEFAULTS.run_dir / GATE_DIRECTORY)]


@pytest.mark.parametrize(
    ("setting", "says"),
    [("runDir", "nothing"), ("stateDir", "dataset.stateDir"), ("kubeletRoot", "kubeletDir")],
)
def test_directories_that_are_mounted_are_no_settings(setting, says):
    done = helm("--set", "dataset.enabled=true", "--set", f"dataset.settings.{setting}=/elsewhere")
    assert (
        done.returncode != 0
        and f"dataset.settings.{setting}" in done.stderr
        and f"write {says}" in done.stderr
    )
