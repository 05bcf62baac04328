"""What the status of a Dataset says."""

import pytest

from gigaslice.controller.dataset_statuses import _parse, dataset_status
from gigaslice.dataset.objects import CachedDataset, DatasetNode
from tests.unit.gigaslice.controller.crd_schema import mistakes


def watched(**spec):
    metadata = {"name": "coco", "namespace": "team", "uid": "u", "resourceVersion": "7", "generation": 3}
    return _parse({"metadata": metadata, "spec": {"source": "s3://b/coco", **spec}})


def cached(digest="d1", source="s3://b/coco", **more):
    return CachedDataset(f"{source}{digest}", source, digest, 100, **more)


def status(one, **nodes):
    found = dataset_status(one, [DatasetNode(name, 1, 1, tuple(some)) for name, some in nodes.items()])
    assert mistakes("datasets", {"spec": {"source": "s3://b/coco"}, "status": found}) == []
    assert found.pop("observedGeneration") == 3
    return found


def test_nothing_has_it():
    assert status(watched(), a=[cached(source="s3://b/other")]) == {
        "phase": "Absent", "nodes": 0, "pods": 0, "holders": [],
    }  # fmt: skip


def test_it_is_on_its_way():
    found = status(
        watched(), a=[cached(state="Fetching", fetched=10)], b=[cached(state="Fetching", fetched=60)]
    )
    assert (found["phase"], found["fetchedBytes"], found["bytes"], found["nodes"]) == ("Fetching", 60, 100, 0)


def test_the_nodes_of_the_newest_version_and_everyone_who_has_any():
    found = status(
        watched(),
        a=[cached("d1", last_used=5.0, pods=("team/old",))],
        b=[cached("d2", last_used=9.0, pods=("team/new",))],
        c=[cached("d2", last_used=1.0)],
    )
    assert (found["phase"], found["digest"], found["nodeNames"]) == ("Ready", "d2", ["b", "c"])
    assert (found["pods"], found["holders"]) == (2, ["team/new", "team/old"])


def test_a_pinned_version_is_the_only_one_that_counts():
    one = watched(check="pinned", digest="ab" * 32)
    assert status(one, a=[cached("cd" * 32, last_used=9.0)])["phase"] == "Absent"
    assert status(one, a=[cached("ab" * 32)])["nodeNames"] == ["a"]


def test_an_invalid_one_says_why():
    found = status(watched(source="bucket/x"), a=[])
    assert found["phase"] == "Invalid" and "team/coco: source" in found["reason"]


def test_what_is_no_object_is_left_out():
    with pytest.raises(ValueError, match="without"):
        _parse({"metadata": {"name": "x"}})
