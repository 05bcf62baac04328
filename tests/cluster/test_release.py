# SPDX-License-Identifier: Apache-2.0
"""The life of a release as operations.md tells it, with Helm on a real API server: upgrade, rollback, uninstall."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.control_plane import Api, ControlPlane, Document, Refused, find_binaries, path_of, until
from tests.fakes.clusters import inventory_gpu, node_inventory
from tests.unit.docs.test_docs import ROOT
from tests.unit.manifests.test_chart import CHART, documents_of, listed

SECRET = "/api/v1/namespaces/gigaslice/secrets/gigaslice-webhook"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HOOK = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/gigaslice-webhook"
BUNDLE = "Q0E="
UNCHECKED = "--disable-openapi-validation"
"""The server of these tests serves no schemas of that kind; it checks what it is sent all the same."""
ON = ("--set", "cluster.enabled=true,dataset.enabled=true")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One of its own: a release is of the whole cluster."""
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    with ControlPlane(tmp_path_factory.mktemp("release"), binaries) as started:
        (namespace,) = documents_of((ROOT / "deploy" / "namespace.yaml").read_text())
        started.admin.apply(namespace)
        yield started


def helm(plane: ControlPlane, *words: str) -> str:
    """Helm's answer; the first of WORDS is what it is to do with the release."""
    done = helm_done(plane, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def helm_done(plane: ControlPlane, *words: str) -> subprocess.CompletedProcess[str]:
    """The same with its exit code."""
    binary = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    assert binary, "helm is missing: run make"
    verbs = words[:2] if words[0] == "get" else words[:1]
    command = [binary, *verbs, "gigaslice", *words[len(verbs) :], "--namespace", "gigaslice"]
    home = {
        name: str(plane.folder / "helm") for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
    }
    environment = {**os.environ, **home, "KUBECONFIG": str(plane.kubeconfig())}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


def written(api: Api) -> tuple[object, object]:
    """What the controller has written: of the secret, and of the webhook."""
    return api.get(SECRET).get("data"), api.get(HOOK)["webhooks"][0]["clientConfig"].get("caBundle")


def replicas(api: Api) -> int:
    return int(
        api.get("/apis/apps/v1/namespaces/gigaslice/deployments/gigaslice-controller")["spec"]["replicas"]
    )


def test_a_release_is_installed_upgraded_rolled_back_and_removed(plane: ControlPlane) -> None:
    api = plane.admin
    helm(plane, "install", str(CHART), *ON, UNCHECKED)
    api.patch(SECRET, {"data": {"tls.crt": BUNDLE}})
    bundle = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": BUNDLE}]
    api.request("PATCH", HOOK, bundle, "application/json-patch+json")
    theirs = ({"tls.crt": BUNDLE}, BUNDLE)
    assert written(api) == theirs

    helm(
        plane, "upgrade", str(CHART), "--reset-then-reuse-values", "--set", "controller.replicas=3", UNCHECKED
    )
    assert replicas(api) == 3 and written(api) == theirs

    helm(plane, "rollback")
    assert replicas(api) == 2 and written(api) == theirs

    manifest = documents_of(helm(plane, "get", "manifest"))
    helm(plane, "uninstall")
    kept = {one["metadata"]["name"] for one in api.get(DEFINITIONS)["items"]}
    assert {name for name in kept if name.endswith(".gigaslice.io")} == {
        one["metadata"]["name"] for one in manifest if one["kind"] == "CustomResourceDefinition"
    }
    for one in manifest:
        if one["kind"] != "CustomResourceDefinition":
            with pytest.raises(Refused, match="404"):
                api.get(path_of(one))

    helm(plane, "install", str(CHART), *ON, UNCHECKED)  # takes the definitions that were kept for its own
    helm(plane, "uninstall")


PODS = "/api/v1/namespaces/gigaslice/pods"


def in_order(api: Api) -> None:
    """What kubelets and agents would write, of one node and its agent."""
    inventory = node_inventory([inventory_gpu("a", 0)]).encode()
    annotations = {"gigaslice.io/inventory": inventory}
    api.post("/api/v1/nodes", {"metadata": {"name": "a", "annotations": annotations}})
    api.patch("/api/v1/nodes/a/status", {"status": {"allocatable": {"gigaslice.io/vgpu-memory": "16"}}})
    labels = {"app.kubernetes.io/name": "gigaslice", "app.kubernetes.io/component": "node"}
    spec = {"containers": [{"name": "node", "image": "x"}], "nodeName": "a"}
    api.post(PODS, {"metadata": {"name": "agent-a", "labels": labels}, "spec": spec})
    api.patch(f"{PODS}/agent-a/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})


def asked(plane: ControlPlane, pod: Document) -> list[str]:
    """What the command of the test's pod prints with the token of its account, as in a container of it."""
    account = f"/api/v1/namespaces/gigaslice/serviceaccounts/{pod['spec']['serviceAccountName']}"
    token = plane.admin.post(f"{account}/token", {"spec": {"expirationSeconds": 600}})["status"]["token"]
    words = [*pod["spec"]["containers"][0]["args"], "--kubeconfig", str(plane.kubeconfig("test", token))]
    command = [sys.executable, "-m", "gigaslice_cli", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == any(line.startswith("fail") for line in lines)
    return lines


def test_the_pod_of_helm_test_may_read_what_it_asks_for(plane: ControlPlane) -> None:
    """Its objects are applied by hand: `helm test` wants schemas that the server of these tests does not serve."""
    api = plane.admin
    in_order(api)
    hooks = [one for one in listed(tests=True) if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    (pod,) = [one for one in hooks if one["kind"] == "Pod"]
    for one in hooks:
        api.apply(one)
    until(lambda: all(line.startswith("ok ") for line in asked(plane, pod)))
    api.patch("/api/v1/nodes/a/status", {"status": {"allocatable": {"gigaslice.io/vgpu-memory": "0"}}})
    first, second = asked(plane, pod)
    assert first.startswith("ok    node ") and second.startswith("fail  nodes"), (first, second)
    for one in hooks:
        if one["kind"] == "Role":
            api.delete(path_of(one))
    until(lambda: any(line.startswith("fail  API server") for line in asked(plane, pod)))
    for one in hooks:
        if one["kind"] != "Role":
            api.delete(path_of(one), {"gracePeriodSeconds": 0})
    api.delete(f"{PODS}/agent-a", {"gracePeriodSeconds": 0})
    api.delete("/api/v1/nodes/a")


def test_definitions_go_to_somebody_else_and_come_back(plane: ControlPlane) -> None:
    api = plane.admin
    path = f"{DEFINITIONS}/resourceclasses.gigaslice.io"
    helm(plane, "install", str(CHART), *ON, UNCHECKED)
    helm(plane, "upgrade", str(CHART), *ON, "--set", "crds.enabled=false", UNCHECKED)
    assert api.get(path), "kept"
    helm(plane, "uninstall")
    api.patch(path, {"metadata": {"annotations": {"meta.helm.sh/release-name": "other"}}})
    refused = helm_done(plane, "install", str(CHART), *ON, UNCHECKED)
    assert refused.returncode != 0 and "meta.helm.sh/release-name" in refused.stderr
    helm(plane, "install", str(CHART), *ON, UNCHECKED, "--take-ownership")
    assert api.get(path)["metadata"]["annotations"]["meta.helm.sh/release-name"] == "gigaslice"
    helm(plane, "uninstall")


def test_pod_security_admits_our_pods_in_the_namespace_alone(plane: ControlPlane) -> None:
    api = plane.admin
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.post("/api/v1/namespaces", {"metadata": {"name": "strict", "labels": labels}})
    (agents,) = [
        one for one in yaml.safe_load_all((ROOT / "daemonset.yaml").read_text()) if one["kind"] == "DaemonSet"
    ]
    spec = {**agents["spec"]["template"]["spec"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"}, "spec": spec}
    api.post("/api/v1/namespaces/gigaslice/pods?dryRun=All", pod)
    assert not [text for text in api.warnings if "PodSecurity" in text]
    with pytest.raises(Refused, match="PodSecurity"):
        api.post("/api/v1/namespaces/strict/pods?dryRun=All", pod)
