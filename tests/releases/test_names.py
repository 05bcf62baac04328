# SPDX-License-Identifier: Apache-2.0
"""The names of every release are names today: people have them in files, dashboards, alerts and scripts."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml

from tests.releases import writing
from tests.releases.make import CHART

# What went away after a release, by release and table: each stands in the changelog under Removed, with what to do.
GONE: dict[str, dict[str, set[str]]] = {}


def then(release):
    return json.loads((release.fixtures / "names.json").read_text())


def test_every_name_of_a_release_is_still_one(release):
    today = writing.names()
    lost = {table: set(known) - set(today.get(table, ())) for table, known in then(release).items()}
    assert {table: names for table, names in lost.items() if names} == GONE.get(release.version, {})


def test_the_tables_have_names(release):
    tables = then(release)
    assert len(tables["settings of node"]) > 30 and len(tables["metrics of node"]) > 30
    assert {"--memory", "--gpu"} <= set(tables["options of vcuda run"])
    assert "gigaslice.io/cores" in tables["annotations"]


def test_the_charts_values_of_a_release_are_taken(release):
    """`helm upgrade --reset-then-reuse-values` gives the new chart what was set for the one before."""
    values = yaml.safe_load((release.fixtures / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator(schema).validate(values)


def test_a_value_that_the_chart_does_not_know_would_be_noticed(release):
    values = yaml.safe_load((release.fixtures / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({**values, "unknown": 1})
