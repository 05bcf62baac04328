# SPDX-License-Identifier: Apache-2.0
"""Definitions of our kinds: objects of every release under those of today, objects of today under a release's.

Helm leaves definitions alone that were installed by hand, so an older one may be under newer roles for long; and after
a `helm rollback` the older ones are there again. An API server drops fields that a definition does not name, and says
nothing: so here they are mistakes. Rules in CEL (`x-kubernetes-validations`) are evaluated
as well: an object of before that breaks a new one could not be changed any more.
"""

from __future__ import annotations

import json

import pytest
import yaml

from tests.releases import writing
from tests.releases.make import CRDS
from tests.unit.gigaslice.roles.controller.crd_schema import mistakes_under

KINDS = ("ResourceClass", "ExtendedResource", "Dataset", "DatasetNode")

# Fields that older definitions do not have, by release: what a controller of today loses under them.
DROPPED: dict[str, set[str]] = {}


def definition(folder, kind):
    for path in sorted(folder.glob("**/*.yaml")):
        found = yaml.safe_load(path.read_text())
        if found.get("spec", {}).get("names", {}).get("kind") == kind:
            return found
    raise LookupError(f"no definition of {kind} in {folder}")


def mistakes(definition, document):
    (version,) = (one for one in definition["spec"]["versions"] if one["name"] == "v1alpha1")
    return sorted(mistakes_under(version["schema"]["openAPIV3Schema"], document))


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
