# SPDX-License-Identifier: Apache-2.0
"""The container that sets the driver's limits: its rights and no others, beside an agent that alone has the token."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import config
from gigaslice.kubeapi.access import SERVICE_ACCOUNT, find_access
from gigaslice.roles.driver_limits.settings import DriverLimitSettings
from gigaslice.runtime.settings import load
from tests.unit.manifests.test_chart import CHECKED, ROOT, documents_of, helm, listed, with_values
from tests.unit.manifests.test_floors import MANIFESTS

Document = dict[str, Any]
PATCH = ROOT / "deploy" / "driver-limits.yaml"
ON = ("--set", "driverLimits.enabled=true")
AGENT = config.load({}, {})
ROLE = load(DriverLimitSettings, {}, {})
SOCKET_DIRECTORY = str(AGENT.driver_limits_socket.parent)
CGROUPS = str(ROLE.cgroup_root)
KEYS = {"containers": "name", "volumes": "name", "volumeMounts": "mountPath"}
"""The fields that say of lists of Kubernetes which of their elements are the same."""


def daemonset(documents: list[Document]) -> Document:
    (document,) = [
        document
        for document in documents
        if document["kind"] == "DaemonSet" and document["metadata"]["name"] == "gigaslice-node"
    ]
    return document


def pod_of(document: Document) -> Document:
    pod: Document = document["spec"]["template"]["spec"]
    return pod


def container(document: Document, name: str) -> Document:
    (container,) = [container for container in pod_of(document)["containers"] if container["name"] == name]
    assert isinstance(container, dict)
    return container


def patched(document: Document, patch: Document) -> Document:
    """The document under a strategic merge patch that only adds, as kubectl patch makes it."""
    merged = copy.deepcopy(document)
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = patched(merged[key], value)
        elif key in KEYS and key in merged:
            for element in value:
                same = [old for old in merged[key] if old[KEYS[key]] == element[KEYS[key]]]
                if same:
                    same[0].update(patched(same[0], element))
                else:
                    merged[key].append(element)
        else:
            merged[key] = value
    return merged


def plain() -> Document:
    (patch,) = documents_of(PATCH.read_text())
    return patched(daemonset(documents_of((ROOT / "daemonset.yaml").read_text())), patch)


WAYS = {"chart": daemonset(listed(*ON)), "manifest": plain()}


@pytest.fixture(params=WAYS)
def node_pods(request: pytest.FixtureRequest) -> Document:
    """The DaemonSet with the container, by each way to have it."""
    return WAYS[request.param]


# --- off and on -------------------------------------------------------------------------------------------------------


def test_it_is_off_and_no_capability_comes_by_itself():
    for document in (daemonset(listed()), daemonset(documents_of((ROOT / "daemonset.yaml").read_text()))):
        assert [container["name"] for container in pod_of(document)["containers"]] == ["node"]
        text = yaml.safe_dump(document)
        assert "SYS_ADMIN" not in text and CGROUPS not in text and SOCKET_DIRECTORY not in text
        assert "--driver-limits" not in text, (
            "auto is the agent's own, and says that the container is missing"
        )
        assert "annotations" not in document["spec"]["template"]["metadata"]


def test_both_ways_to_have_it_make_the_same():
    chart, manifest = copy.deepcopy(WAYS["chart"]), copy.deepcopy(WAYS["manifest"])
    assert container(chart, "node")["args"].pop() == CHECKED
    for document in (chart, manifest):
        for part in (pod_of(document), *pod_of(document)["containers"]):
            for key, of in KEYS.items():
                part[key] = sorted(part.get(key, ()), key=lambda element, of=of: element[of])
    assert chart == manifest


def test_kubernetes_takes_it(node_pods):
    kubernetes_validate.validate(node_pods, kubernetes_validate.latest_version(), strict=True)


def test_the_patch_is_one_of_the_manifests_and_of_this_version():
    assert PATCH in MANIFESTS
    helper, node = (container(WAYS["manifest"], name) for name in ("driver-limits", "node"))
    assert helper["image"] == node["image"] and helper["imagePullPolicy"] == node["imagePullPolicy"]


def test_everything_of_the_release_is_the_containers_too(tmp_path):
    values = """
image: {repository: example.com/gigaslice, tag: v9, pullPolicy: Always}
driverLimits: {enabled: true, resources: {limits: {memory: 1Gi}}}
podAnnotations: {a: b, kubectl.kubernetes.io/default-container: driver-limits}
"""
    document = with_values(tmp_path, values)["DaemonSet"]
    helper = container(document, "driver-limits")
    assert (helper["image"], helper["imagePullPolicy"]) == ("example.com/gigaslice:v9", "Always")
    assert helper["resources"]["limits"] == {"memory": "1Gi"}
    annotations = document["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"a": "b", "kubectl.kubernetes.io/default-container": "driver-limits"}


# --- what the container has -------------------------------------------------------------------------------------------


def test_the_helper_has_one_capability_and_nothing_else(node_pods):
    context = container(node_pods, "driver-limits")["securityContext"]
    assert context == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
    }
    assert "ports" not in container(node_pods, "driver-limits")


def test_the_agent_has_no_more_than_without(node_pods):
    without = container(daemonset(documents_of((ROOT / "daemonset.yaml").read_text())), "node")
    node = container(node_pods, "node")
    assert node["securityContext"] == without["securityContext"]
    added = [mount for mount in node["volumeMounts"] if mount not in without["volumeMounts"]]
    assert added == [{"name": "driver-limits", "mountPath": SOCKET_DIRECTORY}]


def test_the_helper_sees_its_socket_and_cgroups_alone(node_pods):
    volumes = {volume["name"]: volume for volume in pod_of(node_pods)["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container(node_pods, "driver-limits")["volumeMounts"]}
    assert set(mounts) == {SOCKET_DIRECTORY, CGROUPS}
    assert volumes[mounts[CGROUPS]["name"]]["hostPath"] == {"path": CGROUPS, "type": "Directory"}
    assert mounts[CGROUPS]["readOnly"] is True
    assert "emptyDir" in volumes[mounts[SOCKET_DIRECTORY]["name"]], "two agents on a node have one each"
    assert "readOnly" not in mounts[SOCKET_DIRECTORY]
    assert "mountPropagation" not in mounts[CGROUPS] | mounts[SOCKET_DIRECTORY]


def test_of_the_driver_it_is_given_nvml(node_pods):
    variables = {variable["name"]: variable for variable in container(node_pods, "driver-limits")["env"]}
    assert {name: variable["value"] for name, variable in variables.items()} == {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "utility",
    }


def test_both_containers_speak_over_the_same_socket_and_the_command_exists(node_pods):
    assert ROLE.socket == AGENT.driver_limits_socket
    command = [
        sys.executable,
        "-m",
        "gigaslice_cli",
        *container(node_pods, "driver-limits")["args"],
        "--help",
    ]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0 and "--cgroup-root" in answer.stdout, answer.stderr


def test_it_is_small(node_pods):
    assert container(node_pods, "driver-limits")["resources"] == {
        "requests": {"cpu": "10m", "memory": "32Mi"},
        "limits": {"memory": "96Mi"},
    }


@pytest.mark.parametrize("writable", ["true", "false"])
def test_cgroups_are_written_only_where_it_is_said(writable):
    document = daemonset(listed(*ON, "--set", f"driverLimits.cgroupWritable={writable}"))
    (mount,) = [
        mount
        for mount in container(document, "driver-limits")["volumeMounts"]
        if mount["mountPath"] == CGROUPS
    ]
    assert mount.get("readOnly", False) == (writable == "false")


# --- the token --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_the_token_is_the_agents_alone(enabled):
    pod = pod_of(daemonset(listed("--set", f"driverLimits.enabled={enabled}")))
    assert pod["automountServiceAccountToken"] is False
    (volume,) = [volume for volume in pod["volumes"] if "projected" in volume]
    having = {
        container["name"]: mount
        for container in pod["containers"]
        for mount in container["volumeMounts"]
        if mount["name"] == volume["name"]
    }
    assert having == {"node": {"name": volume["name"], "mountPath": str(SERVICE_ACCOUNT), "readOnly": True}}


def test_it_is_the_volume_that_the_api_server_makes_where_it_mounts_one():
    """Its files, and its time: with 3607 seconds a token counts as one that was mounted by itself."""
    pod = pod_of(daemonset(documents_of((ROOT / "daemonset.yaml").read_text())))
    (volume,) = [volume for volume in pod["volumes"] if "projected" in volume]
    assert volume["projected"]["sources"] == [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]


def test_the_agent_gets_in_with_what_such_a_volume_holds(tmp_path: Path):
    """Links to a directory that the kubelet changes by one rename; a renewed token is used from then on."""

    def written(name: str, token: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(token)
        (tmp_path / name / "ca.crt").write_text("-")
        (tmp_path / "..data_tmp").symlink_to(name)
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    written("..2026_1", "first")
    for file in ("token", "ca.crt"):
        (tmp_path / file).symlink_to(f"..data/{file}")
    access, why = find_access(None, "10.0.0.1:443", tmp_path)
    assert access is not None and why == f"service account {tmp_path}"
    assert access.authorization() == "Bearer first" and access.ca_file == tmp_path / "ca.crt"
    written("..2026_2", "second")
    assert access.authorization() == "Bearer second"


# --- settings ---------------------------------------------------------------------------------------------------------


def flags(*words: str) -> list[str]:
    return [
        flag
        for flag in container(daemonset(listed(*words)), "node")["args"]
        if flag.startswith("--driver-limits")
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("{enabled: true}", []),
        ("{enabled: true, mode: auto}", []),
        ("{enabled: true, mode: required}", ["--driver-limits=required"]),
        ("{mode: off}", ["--driver-limits=off"]),
        ("{mode: 'off'}", ["--driver-limits=off"]),
        ("{enabled: true, margin: 512MiB}", ["--driver-limits-margin=512MiB"]),
        ("{enabled: true, margin: 1073741824}", ["--driver-limits-margin=1073741824"]),
        (
            "{enabled: true, exempt: [monitoring, gpu-operator]}",
            ["--driver-limits-exempt=monitoring,gpu-operator"],
        ),
    ],
)
def test_values_become_the_agents_settings(tmp_path, values, expected):
    (tmp_path / "values.yaml").write_text(f"driverLimits: {values}")
    given = flags("--values", str(tmp_path / "values.yaml"))
    assert given == expected
    config.load(dict(flag.removeprefix("--").split("=", 1) for flag in given), {})


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("driverLimits=off", "driverLimits.mode"),
        ("driverLimitsMargin=1GiB", "driverLimits.margin"),
        ("driverLimitsExempt=a", "driverLimits.exempt"),
        ("driverLimitsSocket=/s", f"nothing: it is in {SOCKET_DIRECTORY}"),
    ],
)
def test_settings_that_the_chart_has_values_for_are_refused(key, instead):
    done = helm("--set", f"settings.{key}")
    assert done.returncode != 0 and f"write {instead}" in done.stderr


def test_what_is_required_is_installed():
    done = helm("--set", "driverLimits.mode=required")
    assert done.returncode != 0 and "write driverLimits.enabled: true" in done.stderr


@pytest.mark.parametrize(
    "mistake",
    ["mode=on", "mode=maybe", "margin=much", "exempt={Not A Name}", "enabled=perhaps", "enable=true"],
)
def test_values_that_mean_nothing_are_refused(mistake):
    done = helm("--set", f"driverLimits.{mistake}")
    assert done.returncode != 0 and "values don't meet the specifications" in done.stderr
