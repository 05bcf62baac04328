# SPDX-License-Identifier: Apache-2.0
"""The Grafana board of the cluster asks for metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gigaslice.roles.controller import metrics as controller

BOARD = Path(__file__).resolve().parents[5] / "deploy" / "grafana" / "gigaslice-cluster.json"


def queries() -> list[str]:
    board = json.loads(BOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return found + [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]


def used() -> set[str]:
    return {name for query in queries() for name in re.findall(r"\bgigaslice_\w+", query)}


def with_parts(names: Iterable[str]) -> set[str]:
    found = set(names)
    return found | {
        f"{name}_{part}" for name in found if name.endswith("_seconds") for part in ("bucket", "count")
    }


def test_every_metric_of_the_board_exists() -> None:
    of_scheduler = {name for name in used() if name.startswith("gigaslice_scheduler_")}
    assert used() - of_scheduler <= {row.name for row in controller.METRICS}
    assert len(used()) > 15


def test_every_metric_of_the_scheduler_exists() -> None:
    scheduler = pytest.importorskip("gigaslice.roles.scheduler.metrics")
    assert {name for name in used() if name.startswith("gigaslice_scheduler_")} <= with_parts(
        row.name for row in scheduler.METRICS
    )


def test_gauges_of_the_cluster_are_not_added_up_over_replicas() -> None:
    """Every replica of the controller has them."""
    cluster = ("gigaslice_cluster_", "gigaslice_class_", "gigaslice_pods_", "gigaslice_defragmentation_")
    for query in queries():
        if any(name in query for name in cluster) and not query.startswith("label_values"):
            assert re.search(r"max( by \([a-z, ]+\))? \(?gigaslice_|max\(gigaslice_", query), query


def test_labels_of_the_controllers_metrics_are_theirs() -> None:
    for query in queries():
        for name, selector in re.findall(r"(gigaslice_\w+)\{([^}]*)\}", query):
            labels = {row.name: row.labels for row in controller.METRICS}.get(
                name, ("state", "result", "reason")
            )
            assert set(re.findall(r"(\w+)=", selector)) <= set(labels), query


def test_the_board_can_be_imported() -> None:
    board = json.loads(BOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert board["uid"] != json.loads((BOARD.parent / "gigaslice.json").read_text())["uid"]
    for panel in board["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]
