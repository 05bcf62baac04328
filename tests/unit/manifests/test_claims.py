# SPDX-License-Identifier: Apache-2.0
"""Nodes that serve claims: chart and manifests say the same, give what the agent needs, and bound what it may."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import config
from gigaslice.core.claims.names import DRIVER
from gigaslice.core.claims.parameters import PARAMETERS
from gigaslice.core.claims.templates import CLASS, ClaimTemplate, ContainerClaim
from tests.unit.manifests.test_chart import CHECKED, ROOT, documents_of, helm, listed
from tests.unit.manifests.test_driver_limits import daemonset, patched, pod_of

Document = dict[str, Any]
ON = ("--set", "node.api=dra", "--kube-version", "1.36.0")
FILES = ("daemonset.yaml", "deploy/node-policy.yaml", "deploy/pod-policy.yaml", "deploy/claims.yaml")


def node_of(documents: list[Document]) -> Document:
    (container,) = pod_of(daemonset(documents))["containers"]
    assert isinstance(container, dict)
    return container


def settings_of(documents: list[Document]) -> config.Config:
    """What the agent makes of the flags."""
    given = dict(flag.removeprefix("--").split("=", 1) for flag in node_of(documents)["args"][1:])
    return config.load(given, {})


def mounts(documents: list[Document]) -> dict[str, Document]:
    """By the path in the container: the volume, where path and path on the host are the same."""
    volumes = {one["name"]: one for one in pod_of(daemonset(documents))["volumes"]}
    return {one["mountPath"]: volumes[one["name"]] for one in node_of(documents)["volumeMounts"]}


def rules(documents: list[Document]) -> set[tuple[str, str]]:
    (role,) = [
        one for one in documents if one["metadata"]["name"].endswith("-node-claims") and "rules" in one
    ]
    return {(verb, name) for rule in role["rules"] for verb in rule["verbs"] for name in rule["resources"]}


def test_the_chart_is_the_manifests_and_the_patch_beside_them():
    plain = {
        (one["kind"], one["metadata"]["name"]): one
        for name in FILES
        for one in documents_of((ROOT / name).read_text())
    }
    (patch,) = documents_of((ROOT / "deploy" / "claims-node.yaml").read_text())
    plain["DaemonSet", "gigaslice-node"] = patched(plain["DaemonSet", "gigaslice-node"], patch)
    (container,) = pod_of(plain["DaemonSet", "gigaslice-node"])["containers"]
    container["args"].insert(1, CHECKED)  # what daemonset.yaml says to add with the policies
    found = {(one["kind"], one["metadata"]["name"]): one for one in listed(*ON)}
    for spec in (one["DaemonSet", "gigaslice-node"]["spec"]["template"]["spec"] for one in (found, plain)):
        spec["volumes"].sort(key=lambda volume: str(volume["name"]))
        spec["containers"][0]["volumeMounts"].sort(key=lambda mount: str(mount["name"]))
    assert found == plain


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
@pytest.mark.parametrize(
    "values", ["node.api=dra", "node.keepClaims=true", "node.api=dra,admission.rights=warn"]
)
def test_kubernetes_takes_it(version, values):
    for document in listed("--set", values, "--kube-version", f"{version}.0", release="gpu"):
        kubernetes_validate.validate(document, version, strict=True)


def test_without_it_no_agent_has_anything_to_do_with_claims():
    text = yaml.safe_dump_all(listed("--kube-version", "1.36.0"))
    assert "resource.k8s.io" not in text and "plugins_registry" not in text and "/var/run/cdi" not in text


@pytest.mark.parametrize("kubelet", ["/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"])
@pytest.mark.parametrize("values, api", [("node.api=dra", "dra"), ("node.keepClaims=true", "device-plugin")])
def test_the_agent_finds_what_it_serves_in(kubelet, values, api):
    documents = listed("--set", f"{values},kubeletDir={kubelet}", "--kube-version", "1.36.0")
    settings = settings_of(documents)
    assert settings.api == api and str(settings.kubelet_root) == kubelet
    found = mounts(documents)
    for path in (f"{kubelet}/plugins_registry", f"{kubelet}/plugins/{DRIVER}", str(settings.cdi_dir)):
        assert found[path]["hostPath"]["path"] == path
    assert f"{kubelet}/device-plugins" in found, "the other API is served until its last allocation ends"


def test_an_agent_that_asks_nobody_cannot_serve_claims():
    done = helm(*ON, "--set", "settings.kubeApi=off")
    assert done.returncode != 0 and "leave settings.kubeApi out" in done.stderr


@pytest.mark.parametrize(
    "key, instead", [("api", "node.api"), ("kubeletRoot", "kubeletDir"), ("cdiDir", "/var/run/cdi")]
)
def test_settings_that_the_chart_makes_are_refused(key, instead):
    value = "dra" if key == "api" else "/x"
    done = helm("--set", f"settings.{key}={value}", "--kube-version", "1.36.0")
    assert done.returncode != 0 and instead in done.stderr


def test_a_probe_without_metrics_asks_for_the_drivers_health():
    documents = listed(*ON, "--set", "settings.metricsAddress=off")
    command = node_of(documents)["livenessProbe"]["exec"]["command"]
    assert command[-1] == "/var/lib/kubelet/plugins/gigaslice.io/dra.sock"
    assert "/grpc.health.v1.Health/Check" in command[2] and r'b"\x08\x01"' in command[2]
    compile(command[2], "probe", "exec")


def test_the_agents_rights_are_those():
    assert rules(listed(*ON)) == {
        *((verb, "resourceslices") for verb in ("get", "list", "watch", "create", "update", "delete")),
        ("get", "resourceclaims"), ("get", "pods"), ("patch", "pods"), ("get", "nodes"),
    }  # fmt: skip
    without = listed(*ON, "--set", "rbac.create=false")
    assert not [one for one in without if "Role" in one["kind"]]
    assert not [one for one in without if one["metadata"]["name"] in ("gigaslice-wake", "gigaslice-slices")]


def test_the_class_is_that_of_the_templates():
    (found,) = [one for one in listed(*ON) if one["kind"] == "DeviceClass"]
    assert found["metadata"]["name"] == CLASS
    spec = ClaimTemplate((ContainerClaim((1 << 30,)),)).spec()
    assert spec["devices"]["requests"][0]["exactly"]["deviceClassName"] == CLASS


# --- policies ---------------------------------------------------------------------------------------------------------


def policy(name: str) -> Document:
    (found,) = [
        one
        for one in listed(*ON)
        if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"] == f"gigaslice-{name}"
    ]
    return found


def test_the_parameters_that_the_policies_know_are_those_of_the_table():
    variables = policy("parameters")["spec"]["variables"]
    (names,) = [one["expression"] for one in variables if one["name"] == "names"]
    assert set(yaml.safe_load(names)) == {"apiVersion", "kind", *(row.name for row in PARAMETERS)}
    rights = policy("claim-rights")["spec"]["validations"]
    messages = " ".join(one["message"] for one in rights)
    bounded = {row for row in PARAMETERS if (row.row.free_values, row.row.free_up_to) != (None, None)}
    for row in bounded:
        assert f"{row.name} in the parameters of a claim" in messages
        assert row.row.namespace_label in messages
    assert len(rights) == len(bounded) + 1, "and cores"


def test_cores_are_bounded_in_each_class_that_leads_to_the_driver():
    def classes(*more: str) -> Any:
        documents = listed(*ON, *more)
        (bound,) = (
            one
            for one in documents
            if one["kind"] == "ValidatingAdmissionPolicy" and "-claim-rights" in one["metadata"]["name"]
        )
        (text,) = (one["expression"] for one in bound["spec"]["variables"] if one["name"] == "cores")
        return yaml.safe_load(text.partition('deviceClassName.orValue("") in ')[2].partition(")")[0])

    assert classes() == [CLASS]
    assert classes("--set", f"admission.deviceClasses={{big.example,{CLASS}}}") == [CLASS, "big.example"]


def test_rights_follow_the_value():
    for rights, actions in (("deny", ["Deny"]), ("warn", ["Warn"])):
        found = [
            one["spec"]["validationActions"]
            for one in listed(*ON, "--set", f"admission.rights={rights}")
            if one["metadata"]["name"] == "gigaslice-claim-rights" and "Binding" in one["kind"]
        ]
        assert found == [actions]
    names = {one["metadata"]["name"] for one in listed(*ON, "--set", "admission.rights=off")}
    assert "gigaslice-claim-rights" not in names and "gigaslice-parameters" in names
