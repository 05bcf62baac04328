# SPDX-License-Identifier: Apache-2.0
"""daemonset.yaml and the examples: valid for a current Kubernetes, and in agreement with the code they start."""

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
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.runtime import tasks
from gigaslice.runtime.settings import CONFIG_VARIABLE, ENV_PREFIX, load
from vcuda import contract
from vcuda.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
EVICTION = ROOT / "deploy" / "eviction.yaml"
NODE_POLICY = ROOT / "deploy" / "node-policy.yaml"
MANIFESTS = [
    ROOT / "daemonset.yaml",
    EVICTION,
    NODE_POLICY,
    ROOT / "deploy" / "pod-policy.yaml",
    *sorted((ROOT / "docs" / "examples").glob("*.yaml")),
]
DEFAULTS = config.load({}, {})


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def validate(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.fixture
def daemonset() -> dict[str, Any]:
    (found,) = [one for one in documents(ROOT / "daemonset.yaml") if one["kind"] == "DaemonSet"]
    return found


@pytest.fixture
def pod(daemonset: dict[str, Any]) -> dict[str, Any]:
    return daemonset["spec"]["template"]["spec"]


@pytest.fixture
def node(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return container


# --- the schema ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_takes_it(path: Path) -> None:
    found = documents(path)
    assert found
    for document in found:
        validate(document)


def test_the_schema_would_notice_a_misspelt_field(daemonset: dict[str, Any]) -> None:
    wrong = copy.deepcopy(daemonset)
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong)


# --- what the agent needs --------------------------------------------------------------------------------------------


def test_an_upgrade_is_a_hand_over(daemonset: dict[str, Any], node: dict[str, Any]) -> None:
    """Two agents on a node for a moment: one of them must stand by, and both must find a port of their own."""
    assert daemonset["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }
    assert {"name": "GIGASLICE_STANDBY", "value": "on"} in node["env"]
    assert not daemonset["spec"]["template"]["spec"].get("hostNetwork")
    assert not [port for port in node["ports"] if "hostPort" in port]


def test_the_selector_finds_the_pods(daemonset: dict[str, Any]) -> None:
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_hosts_pids_and_a_place_on_every_node(pod: dict[str, Any]) -> None:
    assert pod["hostPID"] is True
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert "nodeSelector" not in pod and "runtimeClassName" not in pod


def test_the_command_is_one_that_exists(node: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "gigaslice_cli", *node["args"], "--help"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "--state-dir" in answer.stdout


def test_mounts_are_where_the_agent_looks(pod: dict[str, Any], node: dict[str, Any]) -> None:
    sources = {
        volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume
    }
    mounts = {mount["mountPath"]: mount for mount in node["volumeMounts"] if mount["name"] in sources}
    assert set(mounts) == {
        str(DEFAULTS.state_dir),
        str(DEFAULTS.ledger_dir),
        str(DEFAULTS.kubelet_dir),
        str(DEFAULTS.pod_resources.parent),
        str(DEFAULTS.dataset_gate.parent),
    }
    for path, mount in mounts.items():
        assert sources[mount["name"]] == path, "host and container must call it the same"
        assert "mountPropagation" not in mount
    assert str(DEFAULTS.state_dir) == contract.HOST_STATE_DIR
    assert mounts[str(DEFAULTS.pod_resources.parent)]["readOnly"] is True
    assert len(sources) == len(mounts)


def test_credentials_that_the_dataset_service_keeps_are_in_no_directory_of_the_agent(
    pod: dict[str, Any],
) -> None:
    directory = load(DatasetSettings, {}, {}).run_dir
    kept = [directory / "early" / "csi-1.json", directory / "wait" / "wait.sock"]
    mounted = [Path(volume["hostPath"]["path"]) for volume in pod["volumes"] if "hostPath" in volume]
    assert not [(one, where) for one in kept for where in mounted if one.is_relative_to(where)]


def test_every_setting_in_the_environment_is_one(node: dict[str, Any]) -> None:
    names = {variable["name"]: variable.get("value") for variable in node["env"]}
    sources = {one["name"]: one["valueFrom"] for one in node["env"] if "valueFrom" in one}
    assert sources == {"GIGASLICE_NODE_NAME": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    known = {field.variable for field in config.SETTINGS} | {CONFIG_VARIABLE}
    assert {name for name in names if name.startswith(ENV_PREFIX)} <= known
    assert names["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert names["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


def test_the_image_is_this_version(node: dict[str, Any]) -> None:
    assert node["image"] == f"gigaslice:{VERSION}"


def test_probes_ask_where_metrics_are_served(node: dict[str, Any]) -> None:
    """By HTTP: a probe that starts a Python costs more than the agent itself does."""
    (port,) = node["ports"]
    assert DEFAULTS.metrics_address == (None, port["containerPort"])
    for name, path in (("readiness", "/readyz"), ("liveness", "/healthz"), ("startup", "/healthz")):
        probe = node[f"{name}Probe"]["httpGet"]
        assert (probe["path"], probe["port"]) == (path, port["name"])


def test_a_slow_start_is_waited_for_and_a_stuck_agent_is_not(node: dict[str, Any]) -> None:
    def patience(name: str) -> int:
        return int(node[name]["periodSeconds"] * node[name]["failureThreshold"])

    assert (patience("startupProbe"), patience("livenessProbe")) == (60, 90)


# --- what it must not have -------------------------------------------------------------------------------------------


def test_no_more_of_the_api_server_than_is_asked_of_it(pod: dict[str, Any]) -> None:
    kinds = {document["kind"]: document for document in documents(ROOT / "daemonset.yaml")}
    assert set(kinds) == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}
    account, role, binding = kinds["ServiceAccount"], kinds["ClusterRole"], kinds["ClusterRoleBinding"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert account["metadata"]["namespace"] == kinds["DaemonSet"]["metadata"]["namespace"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [(one["name"], one["namespace"]) for one in binding["subjects"]] == [
        (account["metadata"]["name"], account["metadata"]["namespace"])
    ]
    assert {(*rule["resources"], *rule["verbs"]) for rule in role["rules"]} == {
        ("pods", "list", "watch"),
        ("events", "create", "patch"),
    }
    assert "automountServiceAccountToken" not in account


def test_the_right_to_evict_is_a_manifest_of_its_own(pod: dict[str, Any]) -> None:
    role, binding = documents(EVICTION)
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"] != "gigaslice-node"
    assert [one["name"] for one in binding["subjects"]] == [pod["serviceAccountName"]]
    assert DEFAULTS.overuse == "report", "else the right would have to come with the agent"


def test_the_right_to_change_a_node_comes_behind_the_policy_that_bounds_it(pod: dict[str, Any]) -> None:
    policy, bound, role, binding = documents(NODE_POLICY)
    assert [policy["kind"], bound["kind"]] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
    assert bound["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"] != "gigaslice-node"
    (subject,) = binding["subjects"]
    user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    assert subject["name"] == pod["serviceAccountName"]
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == f'request.userInfo.username == "{user}"'


def test_an_agent_has_the_time_to_end_that_it_takes(pod: dict[str, Any]) -> None:
    """From the signal: parts that end, then the driver that hangs. Killed, it would end as a failure."""
    assert pod["terminationGracePeriodSeconds"] == tasks.TERMINATION_SECONDS
    assert 2 * tasks.LEAVE_SECONDS <= tasks.TERMINATION_SECONDS, "as much again for what ends before"


def test_as_little_privilege_as_works(pod: dict[str, Any], node: dict[str, Any]) -> None:
    assert "hostNetwork" not in pod and "hostIPC" not in pod
    context = node["securityContext"]
    assert "privileged" not in context
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}


def test_every_mount_and_capability_says_why() -> None:
    lines = [line.strip() for line in (ROOT / "daemonset.yaml").read_text().splitlines()]
    privileges = [
        number
        for number, line in enumerate(lines[:-1])
        if line.startswith(("hostPID:", "maxSurge:", "runAsUser:", "- DAC_OVERRIDE", "# - SYS_NICE"))
        or lines[number + 1].startswith("mountPath:")
    ]
    assert len(privileges) == 11
    assert [lines[number] for number in privileges if not lines[number - 1].startswith("#")] == []


def test_room_for_the_agent_and_a_probe(node: dict[str, Any]) -> None:
    assert node["resources"]["requests"]["memory"] == "72Mi"
    assert node["resources"]["limits"] == {"memory": "192Mi"}, "no CPU limit: the kubelet waits for answers"


# --- the examples ----------------------------------------------------------------------------------------------------


def test_the_example_pods_ask_for_8_and_12() -> None:
    pods = documents(ROOT / "docs" / "examples" / "two-pods.yaml")
    asked = [
        container["resources"]["limits"][DEFAULTS.resource]
        for one in pods
        for container in one["spec"]["containers"]
    ]
    assert asked == [8, 12]
    assert len({one["metadata"]["name"] for one in pods}) == 2
