# SPDX-License-Identifier: Apache-2.0
"""What an installation says and asks of itself: notes, the pod of helm test, definitions, what Prometheus scrapes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent.commands.installation import PARTS
from deploy.generated import old_files
from deploy.helm import manifests, readme
from gigaslice_cli import frame
from tests.unit.manifests.test_chart import CHART, ROOT, listed

ALL = "cluster.enabled=true,dataset.enabled=true"
SETS = {
    "own values": "",
    "everything": f"{ALL},driverLimits.enabled=true,node.api=dra,networkPolicy.enabled=true,metrics.rules.enabled=true,"
    "metrics.podMonitor.enabled=true,metricsToken=scrape,settings.overuse=evict",
    "extender": "cluster.enabled=true,scheduler.mode=extender,admission.mode=webhook",
    "without rights": "cluster.enabled=true,rbac.create=false,serviceAccount.create=false,crds.enabled=false",
}
FOREIGN = {"PodMonitor", "PrometheusRule", "CustomResourceDefinition"}
"""Kinds whose schema the validator has not."""


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_kubernetes_takes_every_object_of_it(values: str) -> None:
    for document in listed("--set", values, "--kube-version", "1.36.0", tests=True):
        if document["kind"] not in FOREIGN:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("values", ["", SETS["everything"]])
def test_helm_lint_has_nothing_to_say(values: str) -> None:
    helm = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    assert helm
    command = [helm, "lint", "--strict", str(CHART), "--set", values, "--kube-version", "1.36.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout and "[ERROR]" not in done.stdout


# --- helm test --------------------------------------------------------------------------------------------------------


def of_the_test(*words: str) -> dict[str, dict[str, Any]]:
    return {
        one["kind"]: one
        for one in listed(*words, "--kube-version", "1.36.0", tests=True)
        if "test" in one["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    }


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ("", "node"),
        ("cluster.enabled=true", "node,controller,scheduler,webhook"),
        ("cluster.enabled=true,scheduler.mode=none,admission.mode=none", "node,controller"),
        ("dataset.enabled=true", "node,dataset"),
    ],
)
def test_the_test_asks_for_what_is_installed(values: str, parts: str) -> None:
    pod = of_the_test("--set", values)["Pod"]
    (container,) = pod["spec"]["containers"]
    assert container["args"] == ["doctor", "--cluster=gigaslice", f"--parts={parts}"]
    assert set(parts.split(",")) <= set(PARTS)
    asked = frame.make_parser("doctor").parse_args(container["args"])
    assert (asked.cluster, asked.parts) == ("gigaslice", tuple(parts.split(",")))


def test_the_test_knows_a_resource_of_another_name() -> None:
    (container,) = of_the_test("--set", "settings.resource=example.com/mem")["Pod"]["spec"]["containers"]
    assert container["args"][-1] == "--resource=example.com/mem"


def test_the_test_reads_and_its_rights_go_with_it() -> None:
    objects = of_the_test("--set", ALL)
    assert set(objects) == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Pod",
    }
    for kind in ("ClusterRole", "Role"):
        for rule in objects[kind]["rules"]:
            assert set(rule["verbs"]) <= {"get", "list"} and "secrets" not in rule["resources"]
    for kind, one in objects.items():
        notes = one["metadata"]["annotations"]
        policy = notes["helm.sh/hook-delete-policy"].split(",")
        assert "before-hook-creation" in policy
        assert ("hook-succeeded" in policy and "hook-failed" in policy) == (kind != "Pod"), (
            "a log is read afterwards"
        )
        assert (notes.get("helm.sh/hook-weight") == "-1") == (kind != "Pod")
    spec = objects["Pod"]["spec"]
    assert spec["restartPolicy"] == "Never" and spec["securityContext"]["runAsNonRoot"] is True
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_no_policy_and_no_service_takes_the_test_for_a_part() -> None:
    labels = of_the_test("--set", ALL)["Pod"]["metadata"]["labels"]
    for one in listed("--set", f"{ALL},networkPolicy.enabled=true", "--kube-version", "1.36.0"):
        selector = (
            one.get("spec", {}).get("selector") if one["kind"] in ("Service", "PodDisruptionBudget") else None
        )
        selector = one["spec"]["podSelector"] if one["kind"] == "NetworkPolicy" else selector
        if selector:
            chosen = selector.get("matchLabels", selector)
            assert not chosen.items() <= labels.items(), one["metadata"]["name"]


def test_it_can_be_left_out() -> None:
    assert of_the_test("--set", "test.enabled=false") == {}


# --- notes ------------------------------------------------------------------------------------------------------------


def notes(values: str = "", version: str = "1.36.0") -> str:
    text: str = manifests.carried("NOTES.txt", "--set", values, "--kube-version", version)
    return text


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_what_the_notes_wait_for_is_there(values: str) -> None:
    there = {
        f"{one['kind'].lower()}/{one['metadata']['name']}"
        for one in listed("--set", values, "--kube-version", "1.36.0")
        if one["kind"] in ("DaemonSet", "Deployment")
    }
    assert set(re.findall(r"rollout status (\S+)", notes(values))) == there


def test_the_notes_follow_the_values() -> None:
    assert "helm test gigaslice --namespace gigaslice\n" in notes()
    assert "kubectl -n gigaslice logs gigaslice-test\n" in notes()
    assert "helm test" not in notes("test.enabled=false")
    assert "cluster.enabled=true" in notes() and "kubectl get resourceclasses" in notes(
        "cluster.enabled=true"
    )
    assert "needs the extender" in notes("cluster.enabled=true,scheduler.mode=extender")
    assert "nothing places pods" in notes("cluster.enabled=true,scheduler.mode=none")
    assert "vgpu.gigaslice.io" in notes("node.api=dra")
    assert "example.com/mem: 8" in notes("settings.resource=example.com/mem")
    assert "runtimeClassName: nvidia" in notes("runtimeClassName=nvidia")
    assert "kubectl apply --server-side" in notes("cluster.enabled=true,crds.enabled=false")
    assert "no admission policies" in notes(version="1.29.0") and "no admission policies" not in notes()


# --- definitions ------------------------------------------------------------------------------------------------------


def test_definitions_can_be_somebody_elses() -> None:
    def made(*words: str) -> set[str]:
        kinds = listed("--set", ALL, *words)
        return {one["metadata"]["name"] for one in kinds if one["kind"] == "CustomResourceDefinition"}

    files = [*(CHART / "files" / "crds").iterdir(), *(CHART / "files" / "crds-datasets").iterdir()]
    assert made() == {yaml.safe_load(path.read_text())["metadata"]["name"] for path in files}
    assert made("--set", "crds.enabled=false") == set()


def test_definitions_are_not_where_helm_never_upgrades_them() -> None:
    assert not (CHART / "crds").exists()


# --- PodMonitor -------------------------------------------------------------------------------------------------------


def monitors(values: str, *words: str) -> list[dict[str, Any]]:
    every = listed("--set", values, "--kube-version", "1.36.0", *words)
    return [one for one in every if one["kind"] == "PodMonitor"]


def test_it_scrapes_every_role_that_is_there_and_reachable() -> None:
    on = "metrics.podMonitor.enabled=true"
    for values, roles in (
        (on, {"node"}),
        (f"{on},{ALL}", {"node", "controller", "scheduler", "dataset"}),
        (f"{on},cluster.enabled=true,scheduler.mode=extender", {"node", "controller"}),
        (f"{on},dataset.enabled=true,settings.metricsAddress=127.0.0.1:9445", {"dataset"}),
    ):
        (monitor,) = monitors(values)
        (expression,) = monitor["spec"]["selector"]["matchExpressions"]
        assert set(expression["values"]) == roles, values
        ports = {
            one["metadata"]["labels"]["app.kubernetes.io/component"]: [
                port["name"]
                for container in one["spec"]["template"]["spec"]["containers"]
                for port in container.get("ports", [])
            ]
            for one in listed("--set", values, "--kube-version", "1.36.0")
            if one["kind"] in ("DaemonSet", "Deployment")
        }
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert all(endpoint["port"] in ports[role] for role in roles)


def test_it_does_not_hide_whose_gpus_a_metric_is_about() -> None:
    (monitor,) = monitors("metrics.podMonitor.enabled=true")
    (relabeling,) = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
    assert relabeling["action"] == "labeldrop"
    assert set(relabeling["regex"].split("|")) == {"namespace", "pod", "container"}


def test_it_is_there_where_it_is_asked_for_or_found() -> None:
    assert monitors("") == [] and monitors("metrics.podMonitor.enabled=auto") == []
    assert monitors("metrics.podMonitor.enabled=auto", "--api-versions", "monitoring.coreos.com/v1")
    nothing = "metrics.podMonitor.enabled=true,settings.metricsAddress=off"
    assert monitors(nothing) == [], "a monitor of nothing would be an error of the operator"
    (monitor,) = monitors(
        "metrics.podMonitor.enabled=true,metrics.podMonitor.interval=30s,metrics.podMonitor.labels.release=x,metricsToken=t"
    )
    assert monitor["metadata"]["labels"]["release"] == "x"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == "30s"
    assert endpoint["authorization"] == {"credentials": {"name": "t", "key": "token"}}


# --- the chart's page -------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_program_makes() -> None:
    assert old_files({readme.FILE: readme.made()}) == [], "run make chart-readme"


def test_every_value_has_a_row_with_its_default() -> None:
    def paths(value: object, above: str = "") -> set[str]:
        if isinstance(value, dict) and value and above.rpartition(".")[2] not in ("requests.", "limits."):
            return {path for key, below in value.items() for path in paths(below, f"{above}{key}.")}
        return {above.rstrip(".")}

    rows = re.findall(r"(?m)^\| `([^`]+)` \|", (CHART / "README.md").read_text())
    values = paths(yaml.safe_load((CHART / "values.yaml").read_text()))
    missing = {path for path in values if not any(path == row or path.startswith(f"{row}.") for row in rows)}
    assert missing == set() and len(rows) == len(set(rows)) > 80


def test_comments_become_prose_examples_and_cells() -> None:
    text = """# Of the file.

# What it is for, such as
#   size: 1
thing:
  a: 1   # one | two
         # and more
         # to say
  # Above it.
  b: {}
# Of the list.
list:
  - x: 1
"""
    (block,) = readme.blocks(text.replace("         #", "              #"))
    assert block.intro == "What it is for, such as\n\n```yaml\nsize: 1\n```"
    assert [(value.path, value.default, value.text) for value in block.values] == [
        ("thing.a", "1", "one | two and more to say"),
        ("thing.b", "{}", "Above it."),
        ("list", '[{"x": 1}]', "Of the list."),
    ]


def test_the_pages_say_how_each_is_used() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for words in (
        "helm test gigaslice",
        "global.imageRegistry",
        "image.digest",
        "crds.enabled",
        "images.txt",
    ):
        assert words in page, words
    assert "podMonitor" in page and "--cluster" in page
