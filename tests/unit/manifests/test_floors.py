# SPDX-License-Identifier: Apache-2.0
"""Which Kubernetes each way to install needs: chart, manifests, policies and pages say the same."""

from __future__ import annotations

import re

import kubernetes_validate
import pytest
import yaml

from tests.unit.manifests.test_chart import CHART, ROOT, documents_of, helm, listed

AGENT, CLUSTER = "1.26", "1.30"
"""Of the agent alone, and of all that relies on policies of the API server."""
CLAIMS, CLAIMS_GATED = "1.36", "1.34"
"""Of nodes that serve claims: by itself, and with a feature gate that nobody has by default."""
POLICY = re.compile("^kind: ValidatingAdmissionPolicy$", re.MULTILINE)
MANIFESTS = [ROOT / "daemonset.yaml", *sorted((ROOT / "deploy").glob("*.yaml"))]


@pytest.mark.parametrize("value", ["cluster.enabled", "dataset.enabled"])
@pytest.mark.parametrize("version", ["1.26.0", "1.28.15", "1.29.14-eks-1a2b"])
def test_what_relies_on_policies_is_not_rendered_where_there_are_none(value, version):
    done = helm("--set", f"{value}=true", "--kube-version", version)
    assert (
        done.returncode != 0 and f"{value} needs Kubernetes {CLUSTER}, and this is v{version}" in done.stderr
    )


@pytest.mark.parametrize("version", ["1.30.0", "1.30.4-gke.9", "1.31.0"])
def test_it_is_rendered_from_there_on(version):
    words = ("--set", "cluster.enabled=true,dataset.enabled=true", "--kube-version", version)
    for document in listed(*words):
        if document["apiVersion"].startswith("admissionregistration.k8s.io/"):
            assert document["apiVersion"] == "admissionregistration.k8s.io/v1"
            kubernetes_validate.validate(document, CLUSTER, strict=True)


@pytest.mark.parametrize("version", [f"{AGENT}.0", "1.29.14"])
def test_the_agent_alone_works_before_without_any_policy(version):
    kinds = {document["kind"] for document in listed("--kube-version", version)}
    assert kinds == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}


def test_the_chart_and_the_pages_say_it():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={AGENT}.0-0"
    assert f"a cluster of Kubernetes {CLUSTER} or later" in (ROOT / "docs" / "cluster.md").read_text()
    operations = re.sub(r"\s+", " ", (ROOT / "docs" / "operations.md").read_text())
    assert (
        f"from Kubernetes {CLUSTER};" in operations
        and f"down to {AGENT}, the agents work alone" in operations
    )


@pytest.mark.parametrize(
    "path", [path for path in MANIFESTS if POLICY.search(path.read_text())], ids=lambda path: path.name
)
def test_a_manifest_with_a_policy_says_it_at_its_top(path):
    top = path.read_text().partition("\napiVersion")[0]
    said, schema = (CLAIMS, CLAIMS_GATED) if path.name == "claims.yaml" else (CLUSTER, CLUSTER)
    assert f"Kubernetes {said}" in top
    for document in documents_of(path.read_text()):
        kubernetes_validate.validate(document, schema, strict=True)


@pytest.mark.parametrize("version", ["1.30.0", "1.33.9"])
@pytest.mark.parametrize("value", ["node.api=dra", "node.keepClaims=true"])
def test_claims_are_not_served_where_there_are_none(version, value):
    done = helm("--set", value, "--kube-version", version)
    assert (
        done.returncode != 0
        and f"needs Kubernetes {CLAIMS}, or {CLAIMS_GATED} with the feature gate" in done.stderr
    )


def test_no_template_asks_for_versions_that_are_not_served():
    """Branches for older ones would be written and never run."""
    asked = {
        version
        for path in (CHART / "templates").rglob("*.*")
        for version in re.findall(r'"gigaslice\.since" \(list [.$] "([0-9.]+)"', path.read_text())
    }
    assert CLUSTER in asked and not {one for one in asked if int(one.partition(".")[2]) < int(CLUSTER[2:])}
