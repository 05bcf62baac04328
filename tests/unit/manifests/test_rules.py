# SPDX-License-Identifier: Apache-2.0
"""The chart's alerts: made where asked for, about metrics and labels that exist, and told in operations.md."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from agent.telemetry.metrics import METRICS as AGENT
from gigaslice.roles.controller.metrics import METRICS as CONTROLLER
from gigaslice.roles.dataset_node.metrics import METRICS as DATASET
from gigaslice.roles.scheduler.metrics import METRICS as SCHEDULER
from tests.unit.manifests.test_chart import CHART, ROOT, helm, listed

ON = ("--set", "metrics.rules.enabled=true")
API = ("--api-versions", "monitoring.coreos.com/v1")
ALL = (*ON, "--set", "cluster.enabled=true,dataset.enabled=true")
ROWS = {row.name: row for table in (AGENT, CONTROLLER, SCHEDULER, DATASET) for row in table}
FILES = sorted((CHART / "files" / "rules").glob("*.yaml"))
OF_A_SCRAPE = {"instance"}
"""Labels that Prometheus adds."""
WORDS = {"on", "unless", "or", "absent", "max", "increase"}
"""What the expressions use of PromQL; whatever else is a name there is a metric or a label of one."""


def rules_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made = [one for one in documents if one["kind"] == "PrometheusRule"]
    return [rule for one in made for group in one["spec"]["groups"] for rule in group["rules"]]


def alerts(*words: str) -> set[str]:
    return {rule["alert"] for rule in rules_of(listed(*words, "--kube-version", "1.36.0"))}


RULES = [
    rule for path in FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
]


def metrics_of(expression: str) -> set[str]:
    """The metrics that EXPRESSION names."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\bon \([^)]*\)|\[[0-9]+[smhd]\]', " ", expression)
    return set(re.findall(r"[A-Za-z_]\w*", bare)) - WORDS


def labels_of(expression: str) -> set[str]:
    """The labels that EXPRESSION selects or matches by."""
    selected = re.findall(r"[{,]\s*(\w+)\s*(?:=|!)", expression)
    matched = [name for part in re.findall(r"\bon \(([^)]*)\)", expression) for name in part.split(", ")]
    return {*selected, *matched}


def mistakes(rule: dict[str, Any]) -> list[str]:
    """What RULE names that there is not."""
    metrics, rows = metrics_of(rule["expr"]), []
    unknown = sorted(metrics - ROWS.keys())
    rows = [ROWS[name] for name in metrics & ROWS.keys()]
    has = {"node", *OF_A_SCRAPE}.union(*(row.labels for row in rows))
    texts = " ".join(rule["annotations"].values())
    unknown += sorted((labels_of(rule["expr"]) | set(re.findall(r"\$labels\.(\w+)", texts))) - has)
    rated = re.findall(r"increase\((\w+)", rule["expr"])
    unknown += [
        f"{row.name} is a {row.kind}" for row in rows if (row.kind == "counter") != (row.name in rated)
    ]
    return unknown


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_what_an_alert_names_exists(rule: dict[str, Any]) -> None:
    assert metrics_of(rule["expr"]), "it asks for nothing"
    assert not mistakes(rule)
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "description"}
    assert rule.get("for", "5m") in {"1m", "5m", "10m", "15m"}


@pytest.mark.parametrize(
    ("expression", "text", "wrong"),
    [
        ("gigaslice_gone == 1", "", ["gigaslice_gone"]),
        ('gigaslice_gpu_healthy{colour="red"} == 0', "", ["colour"]),
        ("gigaslice_gpu_healthy == 0 unless on (node, rack) gigaslice_gpu_cordoned == 1", "", ["rack"]),
        ("gigaslice_gpu_healthy == 0", "{{ $labels.xid }}", ["xid"]),
        ("gigaslice_allocate_failures_total > 0", "", ["gigaslice_allocate_failures_total is a counter"]),
        ("increase(gigaslice_gpu_healthy[5m]) > 0", "", ["gigaslice_gpu_healthy is a gauge"]),
    ],
)
def test_a_mistake_would_be_found(expression: str, text: str, wrong: list[str]) -> None:
    assert mistakes({"expr": expression, "annotations": {"summary": text}}) == wrong


def test_alerts_come_when_asked_for() -> None:
    assert not alerts() and not alerts(*API)
    assert not alerts(*API, "--set", "metrics=null"), "values of a chart before this one"
    assert not alerts("--set", "metrics.rules.enabled=auto")
    assert alerts("--set", "metrics.rules.enabled=auto", *API) == alerts(*ON)
    assert "metrics.rules.enabled" in helm("--set", "metrics.rules.enabled=yes").stderr.replace("/", ".")


def test_a_role_that_is_off_has_no_alerts() -> None:
    by_file = {
        path.stem: {
            rule["alert"] for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
        }
        for path in FILES
    }
    assert alerts(*ON) == by_file["node"]
    assert alerts(*ON, "--set", "dataset.enabled=true") == by_file["node"] | by_file["dataset"]
    extender = alerts(*ON, "--set", "cluster.enabled=true,scheduler.mode=extender")
    assert extender == by_file["node"] | by_file["cluster"]  # whose metrics are off by themselves
    assert alerts(*ALL) == set().union(*by_file.values())
    assert len(RULES) == len(alerts(*ALL))


def test_the_chart_leaves_the_rules_as_they_are() -> None:
    made = {rule["alert"]: rule for rule in rules_of(listed(*ALL, "--kube-version", "1.36.0"))}
    assert made == {rule["alert"]: rule for rule in RULES}


def test_prometheus_chooses_rules_by_labels_of_yours() -> None:
    documents = listed(*ON, "--set", "metrics.rules.labels.release=monitoring")
    (rule,) = [one for one in documents if one["kind"] == "PrometheusRule"]
    assert rule["metadata"]["labels"]["release"] == "monitoring"
    assert rule["metadata"]["namespace"] == "gigaslice"


def test_the_page_names_every_alert() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"`(Gigaslice\w+)`", page)) == {rule["alert"] for rule in RULES}
