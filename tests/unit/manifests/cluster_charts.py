# SPDX-License-Identifier: Apache-2.0
"""The cluster half of the chart as Helm renders it, and what its objects say."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from gigaslice.role_settings import load
from gigaslice.roles.controller.config import ControllerConfig
from tests.unit.manifests.test_chart import documents_of, helm

ON = ("--set", "cluster.enabled=true")
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
SCHEDULERS = ("second", "extender", "none")
ADMISSIONS = ("auto", "policy", "webhook", "none")
Document = dict[str, Any]


def chart(*sets: str, version: str = "1.36", release: str = "gigaslice") -> list[Document]:
    return documents_of(_rendered(sets, version, release))


@functools.cache
def _rendered(sets: tuple[str, ...], version: str, release: str) -> str:
    """What helm makes of the same values, which many tests look at."""
    words = [word for one in sets for word in ("--set", one)]
    done = helm(*ON, "--kube-version", f"{version}.0", *words, release=release)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of(documents: list[Document], kind: str, name: str = "") -> list[Document]:
    return [one for one in documents if one["kind"] == kind and one["metadata"]["name"].endswith(name)]


def one_of(documents: list[Document], kind: str, name: str = "") -> Document:
    (found,) = of(documents, kind, name)
    return found


def spec_of(workload: Document) -> Document:
    found: Document = workload["spec"]["template"]["spec"]
    return found


def kinds(documents: list[Document]) -> set[str]:
    return {one["kind"] for one in documents}


def rights(documents: list[Document], account: str) -> set[tuple[str, str]]:
    """What an account may, as (verb, resource) pairs, with resource names after a colon; stock roles by their names."""
    found = set()
    for binding in (one for one in documents if one["kind"].endswith("RoleBinding")):
        if account not in [one["name"] for one in binding["subjects"]]:
            continue
        reference = binding["roleRef"]
        roles = [
            one
            for one in documents
            if one["kind"] == reference["kind"] and one["metadata"]["name"] == reference["name"]
        ]
        if not roles:
            found.add(("stock", reference["name"]))
        for rule in (rule for role in roles for rule in role["rules"]):
            only = ":" + ",".join(rule["resourceNames"]) if "resourceNames" in rule else ""
            found |= {(verb, resource + only) for verb in rule["verbs"] for resource in rule["resources"]}
    return found


def reads(*resources: str) -> set[tuple[str, str]]:
    return set(itertools.product(("get", "list", "watch"), resources))


def controller_settings(documents: list[Document]) -> ControllerConfig:
    """What the controller makes of its flags."""
    (container,) = spec_of(one_of(documents, "Deployment", "-controller"))["containers"]
    command, *flags = container["args"]
    assert command == "controller"
    return load(ControllerConfig, dict(flag.removeprefix("--").split("=", 1) for flag in flags), {})


def hooks(documents: list[Document]) -> dict[str, Document]:
    found = [one for one in documents if one["kind"].endswith("WebhookConfiguration")]
    return {one["kind"].partition("Webhook")[0]: one["webhooks"][0] for one in found}


def workloads(documents: list[Document]) -> dict[str, Document]:
    """The pods of each role."""
    found = [one["spec"]["template"] for one in documents if one["kind"] in ("DaemonSet", "Deployment")]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in found}


def served(pod: Document) -> dict[str, int]:
    """The named ports of a pod."""
    return {
        port["name"]: port["containerPort"]
        for one in pod["spec"]["containers"]
        for port in one.get("ports", [])
    }
