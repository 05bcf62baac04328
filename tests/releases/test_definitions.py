# SPDX-License-Identifier: Apache-2.0
"""Definitions of our kinds: objects of every release under those of today, objects of today under a release's.

Helm leaves definitions alone that were installed by hand, so an older one may be under newer roles for long; and after
a `helm rollback` the older ones are there again. An API server drops fields that a definition does not name, and says
nothing: so here they are mistakes.
"""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml

from tests.releases import writing
from tests.releases.make import CRDS

KINDS = ("ResourceClass", "ExtendedResource", "Dataset", "DatasetNode")

# Fields that older definitions do not have, by release: what a controller of today loses under them.
DROPPED: dict[str, set[str]] = {}


def definition(folder, kind):
    for path in sorted(folder.glob("**/*.yaml")):
        found = yaml.safe_load(path.read_text())
        if found.get("spec", {}).get("names", {}).get("kind") == kind:
            return found
    raise LookupError(f"no definition of {kind} in {folder}")


def strict(node):
    """The schema as JSON Schema, in which unknown fields are mistakes."""
    if isinstance(node, list):
        return [strict(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {key: strict(value) for key, value in node.items() if not key.startswith("x-")}
    if node.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    if "properties" in node and isinstance(node.get("type"), str):
        found["additionalProperties"] = False
    return found


def mistakes(definition, document):
    (version,) = (one for one in definition["spec"]["versions"] if one["name"] == "v1alpha1")
    validator = jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"]))
    return sorted(
        f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in validator.iter_errors(document)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_objects_of_a_release_are_objects_today(release, kind):
    objects = json.loads((release.fixtures / "objects.json").read_text())[kind]
    assert objects
    today = definition(CRDS, kind)
    assert [mistake for one in objects for mistake in mistakes(today, one)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_objects_of_today_are_objects_under_the_definitions_of_a_release(release, kind):
    then = definition(release.fixtures / "crds", kind)
    lost = {mistake for one in writing.objects()[kind] for mistake in mistakes(then, one)}
    assert lost == DROPPED.get(release.version, set())


@pytest.mark.parametrize("kind", KINDS)
def test_a_definition_keeps_its_versions_and_its_place(release, kind):
    then, today = definition(release.fixtures / "crds", kind), definition(CRDS, kind)
    for key in ("group", "scope"):
        assert today["spec"][key] == then["spec"][key]
    assert today["spec"]["names"]["plural"] == then["spec"]["names"]["plural"]
    served = {one["name"] for one in today["spec"]["versions"] if one["served"]}
    assert {one["name"] for one in then["spec"]["versions"] if one["storage"]} <= served
