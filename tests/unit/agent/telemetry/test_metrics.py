# SPDX-License-Identifier: Apache-2.0
"""The table of metrics, the text that Prometheus reads, and the dashboard that asks for it."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.telemetry.counters import Counters
from agent.telemetry.metrics import METRICS
from gigaslice.runtime.metrics import Exposition, Values

DASHBOARD = Path(__file__).resolve().parents[4] / "deploy" / "grafana" / "gigaslice.json"

NO_CLAIM = {"claim": "", "request": ""}  # for Prometheus, labels that are not there


def read(values):
    text = Exposition(lambda: values, node="node-a").prepare()().decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_names_follow_the_conventions():
    for row in METRICS:
        assert re.fullmatch(r"gigaslice(_[a-z]+)+", row.name)
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert not re.search(r"_(mb|mib|gb|gib|ms|percent)$", row.name)
        assert "memory" not in row.name or row.name.endswith("_bytes")
    assert len({row.name for row in METRICS}) == len(METRICS)


def test_values_are_written_with_the_node_and_their_labels():
    values = Values(METRICS)
    values.add("gigaslice_container_oom_errors_total", 3, "default", "a", 'c"0', "", "")
    (sample,) = read(values)["gigaslice_container_oom_errors"]
    assert sample.value == 3
    assert sample.labels == {
        "node": "node-a",
        "namespace": "default",
        "pod": "a",
        "container": 'c"0',
        **NO_CLAIM,
    }


def test_equal_labels_add_up_instead_of_spoiling_everything():
    values = Values(METRICS)
    for count in (3, 4):
        values.add("gigaslice_container_memory_used_bytes", count, "GPU-1", "", "", "", "", "")
    (sample,) = read(values)["gigaslice_container_memory_used_bytes"]
    assert sample.value == 7


def test_labels_of_others_are_one_line_for_every_reader():
    """prometheus_client escapes LF alone; str.splitlines, and readers like it, end a line at CR and others too."""
    values = Values(METRICS)
    for end in ("\r", "\n", "\x85", "\u2028", "\x00", "\u202e"):
        values.add("gigaslice_container_oom_errors_total", 3, "default", f"a{end}b", "main", "", "")
    text = Exposition(lambda: values, node="node-a").prepare()().decode()
    assert text.split("\n") == [*text.splitlines(), ""]
    assert all(line.isprintable() for line in text.splitlines())
    assert {sample.value for sample in read(values)["gigaslice_container_oom_errors"]} == {3, 12}


def test_what_the_table_does_not_have_is_refused():
    with pytest.raises(KeyError):
        Values(METRICS).add("gigaslice_surprise", 1)
    with pytest.raises(ValueError, match="labels"):
        Values(METRICS).add("gigaslice_gpu_healthy", 1)


def test_a_histogram_counts_upwards():
    histogram, name = Counters().allocate, "gigaslice_allocate_duration_seconds"
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    values = Values(METRICS)
    values.add(name, histogram)
    samples = {(s.name, s.labels.get("le")): s for s in read(values)[name]}
    assert [samples[f"{name}_bucket", bound].value for bound in ("0.05", "0.1", "1.0", "2.5", "+Inf")] == [
        1,
        2,
        3,
        3,
        4,
    ]
    assert (samples[f"{name}_count", None].value, samples[f"{name}_sum", None].value) == (4, 7.65)
    assert {sample.labels["node"] for sample in samples.values()} == {"node-a"}


def test_a_series_ends_with_its_allocation():
    now = Values(METRICS)
    now.add("gigaslice_container_slices", 8, "GPU-1", "default", "a", "c0", "", "")
    exposition = Exposition(lambda: now, node="node-a")
    assert b'pod="a"' in exposition.prepare()()
    now = Values(METRICS)
    assert b'pod="a"' not in exposition.prepare()()


def queries(panel):
    yield from (target["expr"] for target in panel.get("targets", ()))
    for inner in panel.get("panels", ()):
        yield from queries(inner)


def test_the_dashboard_asks_for_what_exists():
    dashboard = json.loads(DASHBOARD.read_text())
    known = {row.name for row in METRICS}
    known |= {
        f"{row.name}_{part}"
        for row in METRICS
        if row.kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    found = [query for panel in dashboard["panels"] for query in queries(panel)]
    found += [
        variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"
    ]
    assert len(found) > 15
    for query in found:
        names = re.findall(r"\bgigaslice_\w+", query)
        assert names, query
        assert set(names) <= known, query
        labels = {
            label for group in re.findall(r"by \(([^)]*)\)", query) for label in re.split(r", *", group)
        }
        own = {"node", "le", *(label for row in METRICS if row.name in names for label in row.labels)}
        assert labels <= own, query


def test_the_dashboard_loads_without_editing():
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert dashboard["uid"] and dashboard["title"]
    for panel in dashboard["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
