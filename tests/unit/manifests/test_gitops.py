# SPDX-License-Identifier: Apache-2.0
"""The chart for tools that compare renderings: each is the last one, and what others write is not in it."""

from __future__ import annotations

import argparse
import re
from typing import Any

import pytest
import yaml

from gigaslice.cluster_commands import exec_on_node
from tests.unit.docs.test_docs import ROOT, fences
from tests.unit.manifests.test_chart import CHART, documents_of, helm

PAGE = ROOT / "docs" / "operations.md"
EVERYTHING = (
    "--set", "cluster.enabled=true,dataset.enabled=true,networkPolicy.enabled=true,metrics.rules.enabled=true",
    "--set", "driverLimits.enabled=true,node.api=dra,settings.overuse=evict",
)  # fmt: skip


def text(*words: str, version: str = "1.36.2") -> str:
    done = helm(*EVERYTHING, *words, "--kube-version", version)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("version", ["1.34.1", "1.36.2"])
def test_two_renderings_are_the_same(version: str) -> None:
    assert text(version=version) == text(version=version)


def test_a_release_that_is_there_already_changes_nothing() -> None:
    assert text() == text("--is-upgrade")


def test_the_chart_looks_nothing_up_and_makes_nothing_up() -> None:
    for path in (CHART / "templates").rglob("*.*"):
        code = re.sub(r"\{\{-? */\*.*?\*/ *-?\}\}", "", path.read_text(), flags=re.DOTALL)
        calls = re.findall(r"\{\{[^}]*\b(lookup|now|uuidv4|rand\w+|gen\w*(?:CA|Cert|PrivateKey)\w*)\b", code)
        assert not calls, f"{path.name}: {calls}"


def tools() -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page says to ignore: to Argo CD, and to Flux."""
    settings: dict[str, Any] = {}
    for fence in fences(PAGE, "yaml"):
        settings |= yaml.safe_load(fence)
    return settings["ignoreDifferences"], settings["driftDetection"]["ignore"]


def test_what_the_controller_writes_is_rendered_empty_and_named_on_the_page() -> None:
    argo, flux = tools()
    secrets, hooks = set(), set()
    for one in documents_of(text() + text("--set", "admission.mode=webhook")):
        if one["kind"] == "Secret":
            assert not {"data", "stringData"} & one.keys()
            secrets.add(("Secret", one["metadata"]["name"]))
        if one["kind"].endswith("WebhookConfiguration"):
            for number, hook in enumerate(one["webhooks"]):
                assert "caBundle" not in hook["clientConfig"]
                hooks.add((one["kind"], one["metadata"]["name"], number))
    configurations = {(kind, name) for kind, name, _ in hooks}
    assert secrets and len(configurations) == 2 and len(hooks) == 3
    assert {(one["kind"], one["name"]) for one in argo} == secrets | configurations

    def ignored(kind: str, name: str, path: str) -> bool:
        return any(
            re.fullmatch(one["target"]["kind"], kind)
            and one["target"]["name"] == name
            and path in one["paths"]
            for one in flux
        )

    assert all(ignored(kind, name, "/data") for kind, name in secrets)
    for kind, name, number in hooks:
        assert ignored(kind, name, f"/webhooks/{number}/clientConfig/caBundle"), (kind, number)


def test_definitions_are_kept_and_the_page_says_which() -> None:
    made = [one for one in documents_of(text()) if one["kind"] == "CustomResourceDefinition"]
    assert len(made) == 4
    page = PAGE.read_text()
    for one in made:
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert one["metadata"]["name"] in page.partition("kubectl delete crd")[2].partition("`")[0]


def test_the_command_for_a_node_finds_the_agents() -> None:
    (agents,) = [
        one for one in documents_of((ROOT / "daemonset.yaml").read_text()) if one["kind"] == "DaemonSet"
    ]
    labels = dict(pair.split("=") for pair in exec_on_node.AGENT_LABELS.split(","))
    assert labels == agents["spec"]["selector"]["matchLabels"]
    containers = agents["spec"]["template"]["spec"]["containers"]
    assert containers[0]["name"] == exec_on_node.AGENT_CONTAINER
    parser = argparse.ArgumentParser()
    exec_on_node.add_arguments(parser)
    assert parser.parse_args(["n"]).namespace == agents["metadata"]["namespace"]
