# SPDX-License-Identifier: Apache-2.0
"""What README and limits.md say of proofs and of rights is what the table of proofs and the chart say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.docs.test_docs import ROOT
from tests.unit.gpu.test_hardware import ROWS
from tests.unit.manifests.test_chart import listed

LIMITS = (ROOT / "docs" / "limits.md").read_text()
README = (ROOT / "README.md").read_text()
FIRST_SCREEN = "".join(README.splitlines(keepends=True)[:20])
PARTS = {
    "node": "node agent",
    "node/driver-limits": "limits helper",
    "dataset": "dataset service",
    "scheduler": "scheduler",
    "controller": "controller",
}


def counts(text: str) -> list[tuple[int, int]]:
    """How many things are taken for granted of a real driver, and how many of them no GPU was asked about."""
    plain = " ".join(text.replace("**", "").split())
    found = re.findall(
        r"Of the (\d+) things that \w+(?: \w+)? takes for granted of [^,]*, (\d+) have not been looked at",
        plain,
    )
    return [(int(total), int(unseen)) for total, unseen in found]


@pytest.mark.parametrize("text", [FIRST_SCREEN, LIMITS], ids=["README", "limits.md"])
def test_what_no_gpu_has_shown_yet_is_said(text: str) -> None:
    """Once a GPU was asked, the sentences follow the table; once all rows have an answer, they go."""
    unseen = sum(row[4] == "not yet" for row in ROWS)
    assert counts(text) == ([(len(ROWS), unseen)] if unseen else [])
    said = "seen on a real gpu" in " ".join(text.lower().split())
    assert said == (unseen == len(ROWS)), "nothing was seen, or something"


def test_what_is_there_is_not_said_to_be_missing() -> None:
    missing = LIMITS.partition("## Not yet")[2].partition("\n## ")[0]
    assert missing
    assert [
        word for word in ("scheduler", "placement", "classes", "dataset", "webhook") if word in missing
    ] == []


def workloads() -> dict[str, dict[str, Any]]:
    """The pods of every role, by the component that it is; a container with rights of its own is apart."""
    documents = listed(
        "--kube-version",
        "1.36.0",
        "--set",
        "cluster.enabled=true,dataset.enabled=true,driverLimits.enabled=true",
        "--set",
        "settings.bindCpus=true",
    )
    pods = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"]["spec"]
        for one in documents
        if one["kind"] in ("DaemonSet", "Deployment")
    }
    node = pods["node"]
    agent, helper = node["containers"]
    assert helper["name"] == "driver-limits"
    return {
        **pods,
        "node": node | {"containers": [agent]},
        "node/driver-limits": node | {"containers": [helper]},
    }


def test_the_parts_that_one_trusts_are_those_of_the_chart() -> None:
    section = LIMITS.partition("## Whom you trust")[2].partition("\n## ")[0]
    rows = {
        line.split("|")[1].split(",")[0].strip(): line.split("|")[2]
        for line in section.splitlines()
        if line.startswith("| ")
    }
    pods = workloads()
    assert set(PARTS) == set(pods)
    assert set(rows) - {"part", "---"} == set(PARTS.values())
    for component, spec in pods.items():
        row = rows[PARTS[component]]
        contexts = [
            spec.get("securityContext", {}) | one.get("securityContext", {}) for one in spec["containers"]
        ]
        users = {one["runAsUser"] for one in contexts}
        added = {name for one in contexts for name in one.get("capabilities", {}).get("add", [])}
        assert ("**privileged**" in row) == any(one.get("privileged") for one in contexts), component
        assert users == (
            {0} if row.strip().startswith("root") else {int(re.findall(r"user (\d+)", row)[0])}
        ), component
        assert ("host's PIDs" in row) == bool(spec.get("hostPID")), component
        assert set(re.findall(r"`([A-Z_]+)`", row)) == added, component
        none = not added and all("ALL" in one.get("capabilities", {}).get("drop", []) for one in contexts)
        assert ("no capabilities" in row) == none, component


def test_who_controls_the_agent_is_said() -> None:
    plain = " ".join(LIMITS.split())
    assert (
        "Who may write to the kubelet's device-plugin directory or to `/var/lib/gigaslice` controls the agent"
        in plain
    )
    volumes = workloads()["node"]["volumes"]
    paths = {volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}
    assert "/var/lib/kubelet/device-plugins" in paths and "/var/lib/gigaslice" in paths
