# SPDX-License-Identifier: Apache-2.0
"""All that we install by hand is in one namespace, which admits it; and no page says another."""

from __future__ import annotations

import re

import yaml

from tests.unit.docs.test_docs import PAGES, names
from tests.unit.manifests.test_chart import ROOT

FILES = [ROOT / "daemonset.yaml", *sorted((ROOT / "deploy").glob("*.yaml"))]
LEVEL = "pod-security.kubernetes.io/"
OTHERS = {"kube-system", "gpu-operator"}
"""Namespaces that are not ours to have; a page may name them, and no command of a page works on ours in them."""


def test_every_manifest_is_of_one_namespace() -> None:
    named = 0
    for path in FILES:
        text = path.read_text()
        for namespace in re.findall(r"(?m)^\s*(?:- )?namespace: *(\S+)$|serviceaccount:([^:\s]+):", text):
            assert "".join(namespace) == "gigaslice", names(path)
            named += 1
    assert named > 12


def test_the_namespace_admits_pods_of_the_host() -> None:
    (namespace,) = yaml.safe_load_all((ROOT / "deploy" / "namespace.yaml").read_text())
    labels = namespace["metadata"]["labels"]
    assert namespace["metadata"]["name"] == "gigaslice"
    assert {key: labels[LEVEL + key] for key in ("enforce", "audit", "warn")} == dict.fromkeys(
        ("enforce", "audit", "warn"), "privileged"
    )


def test_no_manifest_deletes_the_namespace_of_others() -> None:
    """`kubectl delete -f` of any of them leaves what the others made."""
    for path in FILES:
        kinds = {one["kind"] for one in yaml.safe_load_all(path.read_text()) if one and "kind" in one}
        assert "Namespace" not in kinds or path.name == "namespace.yaml", names(path)


def test_commands_of_pages_name_that_namespace() -> None:
    commands = 0
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for line in page.read_text().splitlines():
            if not re.search(r"gigaslice-(node|controller|scheduler|dataset)|helm (install|upgrade)", line):
                continue
            for namespace in re.findall(r"(?:-n|--namespace)[ =](\S+?)[`\s]", line + " "):
                assert namespace == "gigaslice" or namespace not in OTHERS or " delete daemonset" in line, (
                    names(page)
                )
                commands += 1
    assert commands > 10
