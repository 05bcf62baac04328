# SPDX-License-Identifier: Apache-2.0
"""docs/cluster.md: what a reader copies from it is valid, passes our own admission, and is what the chart installs."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gigaslice.core.classes.automatic import class_name
from gigaslice.core.classes.resource_class import parse_resource_class
from gigaslice.roles.webhook.admission_pod import read_admission_pod
from gigaslice.roles.webhook.complete import completion_patch
from gigaslice.roles.webhook.facts import AdmissionFacts
from gigaslice.roles.webhook.reviews import answer_mutate
from tests.unit.docs.test_docs import ROOT, fences
from tests.unit.manifests.cluster_charts import chart, one_of, rights

PAGE = ROOT / "docs" / "cluster.md"
EXAMPLES: list[dict[str, Any]] = [one for text in fences(PAGE, "yaml") for one in yaml.safe_load_all(text)]
NAMES = ("nvidia.h100", "nvidia.tesla.t4")
FACTS = AdmissionFacts(
    {name: parse_resource_class({"metadata": {"name": name}, "spec": {}}) for name in NAMES}
)


def of(kind: str) -> list[dict[str, Any]]:
    return [one for one in EXAMPLES if one["kind"] == kind]


@pytest.mark.parametrize(
    "document",
    [one for one in EXAMPLES if "Configuration" not in one["kind"] and one["kind"] != "ResourceClass"],
    ids=lambda one: str(one["kind"]),
)
def test_kubernetes_takes_every_example(document):
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_class_of_the_examples_is_made_of_the_drivers_names():
    (shown,) = of("ResourceClass")
    one = parse_resource_class(shown)
    assert one.name == "nvidia.h100"
    for model, matches in (
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100 PCIe", True),
        ("NVIDIA A100", False),
    ):
        assert one.matches({"vendor": "NVIDIA", "model": model}) == matches
    assert class_name("NVIDIA", "NVIDIA H100 80GB HBM3") in PAGE.read_text()


@pytest.mark.parametrize("account", ["gigaslice-scheduler", "gigaslice-controller"])
def test_the_page_names_everything_that_an_account_may_touch(account):
    (row,) = [line.lower() for line in PAGE.read_text().splitlines() if line.startswith(f"| `{account}` |")]
    touched = {
        resource.partition(":")[0].partition("/")[0]
        for verb, resource in rights(chart(), account)
        if verb != "stock"
    }
    assert len(touched) > 5
    words = {one.removesuffix("s") for one in touched if not one.endswith("webhookconfigurations")}
    assert not [one for one in words if not re.search(rf"\b{one}s?\b", row)]


def test_admission_takes_every_pod():
    assert len(of("Pod")) == 4
    for pod in of("Pod"):
        assert not answer_mutate(read_admission_pod(pod), FACTS).message
        assert completion_patch(read_admission_pod(pod), FACTS), "the examples are the short form"


def test_the_lines_for_an_own_scheduler_are_those_of_the_chart():
    (shown,) = of("KubeSchedulerConfiguration")
    installed = yaml.safe_load(one_of(chart(), "ConfigMap")["data"]["scheduler.yaml"])
    extender = {key: value for key, value in installed["extenders"][0].items() if key != "ignorable"}
    assert shown["extenders"] == [extender] and installed["extenders"][0]["ignorable"] is False
    (profile,), (own,) = installed["profiles"], shown["profiles"]
    assert own == {**profile, "schedulerName": "default-scheduler"}


def test_the_page_names_what_is_installed():
    text = PAGE.read_text()
    names = {(one["kind"], one["metadata"]["name"]) for one in chart()}
    for kind, name in (("DaemonSet", "gigaslice-node"), ("Deployment", "gigaslice-controller")):
        assert (kind, name) in names and f"{kind.lower()}/{name}" in text
    assert ("Deployment", "gigaslice-scheduler") in names
