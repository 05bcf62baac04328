# SPDX-License-Identifier: Apache-2.0
"""docs/rights.md names whatever the code and the manifests give a meaning to, and who keeps it as they do."""

from __future__ import annotations

import re

from gigaslice.core.model.annotations import ANNOTATIONS
from tests.unit.manifests.test_chart import ROOT, documents_of, listed

PAGE = (ROOT / "docs" / "rights.md").read_text()
NAME = re.compile(r"(?<![\w.])gigaslice\.io/([A-Za-z][A-Za-z-]*[A-Za-z])(?![\w{<])")
NOT_FOR_PODS = {
    "allow",  # the beginning of labels
    "scheduler-configuration",  # of our own scheduler's pods: a checksum
    *("vgpu", "dra"),  # devices for the runtime, the driver's socket
}
"""What the code names and nobody sets."""


def named(*texts: str) -> set[str]:
    return {name for text in texts for name in NAME.findall(text)}


def sources() -> list[str]:
    python = [
        path for folder in ("agent", "gigaslice", "gigaslice_cli") for path in (ROOT / folder).rglob("*.py")
    ]
    manifests = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in (".yaml", ".tpl")]
    return [path.read_text() for path in (*python, *manifests, ROOT / "daemonset.yaml")]


def test_every_name_that_the_code_reads_or_writes_has_its_row():
    code = named(*sources()) | {row.name for row in ANNOTATIONS}
    code |= {
        row.option.namespace_label.partition("/")[2]
        for row in ANNOTATIONS
        if row.option.namespace_label in PAGE
    }
    assert len(code) > 25
    assert code - named(PAGE) - NOT_FOR_PODS == set()
    assert named(PAGE) - code == set(), "named, and nothing of the code"
    assert code >= NOT_FOR_PODS


def test_the_labels_are_those_of_annotations_that_are_not_everybodys():
    bounded = {
        row.option.namespace_label
        for row in ANNOTATIONS
        if (row.option.free_values, row.option.free_up_to) != (None, None)
    }
    assert set(re.findall(r"gigaslice\.io/allow-[a-z-]+", PAGE)) == bounded


def test_the_policies_that_keep_it_are_those_of_chart_and_manifests():
    kept = set(re.findall(r"policy `([a-z-]+)`", PAGE))
    kept |= {"gigaslice-rights"}  # of the first table
    found = listed(
        "--set", "cluster.enabled=true,dataset.enabled=true,node.api=dra", "--kube-version", "1.36.0"
    )
    plain = [one for path in (ROOT / "deploy").glob("*.yaml") for one in documents_of(path.read_text())]
    policies = {
        one["metadata"]["name"] for one in (*found, *plain) if one["kind"] == "ValidatingAdmissionPolicy"
    }
    assert policies - kept == {"gigaslice-classes"}, "which refuses mistakes and keeps nobody from anything"
    assert kept <= policies


def test_the_manifests_that_it_names_are_there():
    paths = set(re.findall(r"`((?:deploy/)?[a-z-]+\.yaml)`", PAGE))
    assert paths >= {"daemonset.yaml", "deploy/pod-policy.yaml"}
    assert not [path for path in paths if not (ROOT / path).is_file()]
