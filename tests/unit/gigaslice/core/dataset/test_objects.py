# SPDX-License-Identifier: Apache-2.0
"""Dataset and DatasetNode as values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.objects import (
    CachedDataset,
    DatasetNode,
    DatasetUse,
    parse_dataset,
    parse_dataset_node,
)
from tests.unit.gigaslice.roles.controller.crd_schema import mistakes


def document(**spec):
    return {
        "metadata": {"namespace": "team", "name": "coco", "uid": "u1"},
        "spec": {"source": "s3://b/coco/", **spec},
    }


def test_a_dataset_with_everything():
    found = parse_dataset(
        document(
            options={"endpoint": "http://minio:9000/"},
            check="pinned",
            digest="AB" * 32,
            allowedNamespaces=["other"],
        )
    )
    assert found.source.canonical == "s3://b/coco?endpoint=http://minio:9000"
    assert (found.check, found.digest) == ("pinned", "ab" * 32)
    assert found.allows("team") and found.allows("other") and not found.allows("third")
    assert str(found) == "team/coco"


def test_the_least_that_a_dataset_needs():
    found = parse_dataset(document())
    assert (found.check, found.digest, found.allowed) == ("listing", "", frozenset())


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"source": "bucket/coco"}, "team/coco: source"),
        ({"source": ""}, "team/coco: source"),
        ({"check": "sometimes"}, "write listing, pinned or never"),
        ({"check": "pinned"}, "needs the digest"),
        ({"digest": "xyz"}, "64 hexadecimal digits"),
        ({"options": {"secret_key": "hunter2"}}, "goes into the Secret"),
    ],
)
def test_what_the_schema_cannot_refuse_is_said(spec, said):
    with pytest.raises(RequestError, match=said) as caught:
        parse_dataset(document(**spec))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("garbage", [{}, {"metadata": []}, {"metadata": {"name": 3}, "spec": "x"}])
def test_garbage_is_refused(garbage):
    with pytest.raises(RequestError):
        parse_dataset(garbage)
    with pytest.raises(ValueError, match="has no name"):
        parse_dataset_node(garbage)


CACHED = st.builds(
    CachedDataset,
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.sampled_from(["s3://a/b", "nfs://s/x"]),
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.integers(0, 1 << 50),
    st.sampled_from(["Ready", "Fetching"]),
    st.integers(0, 1 << 50),
    st.booleans(),
    st.integers(0, 1 << 31).map(float),
    st.lists(st.sampled_from(["a/b", "c/d"]), max_size=2).map(tuple),
    st.lists(st.builds(DatasetUse, st.sampled_from(["a/x", "b/y"]), st.just(("a/b",))), max_size=2).map(
        tuple
    ),
)


@given(st.lists(CACHED, max_size=5, unique_by=lambda one: one.key), st.integers(0, 1 << 50))
def test_a_node_is_read_as_it_was_written(datasets, free):
    node = DatasetNode("node-a", 1 << 40, free, tuple(sorted(datasets, key=lambda one: one.key)))
    assert parse_dataset_node(node.document()) == node
    scheduling = node.for_scheduling()
    assert scheduling.free == free and len(scheduling.held) == len(datasets)


@given(st.lists(CACHED, max_size=5, unique_by=lambda one: one.key))
def test_what_a_node_writes_is_what_the_definition_allows(datasets):
    assert mistakes("datasetnodes", DatasetNode("node-a", 1, 2, tuple(datasets)).document()) == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, ""),
        ({"source": "/mnt/data"}, ""),
        ({"source": "rclone:box:x", "check": "pinned", "digest": "ab" * 32}, ""),
        ({"source": "bucket/x"}, "write the source with its kind"),
        ({"check": "pinned"}, "needs the digest"),
        ({"check": "often"}, "is not one of"),
        ({"digest": "abc"}, "does not match"),
        ({"sauce": "x"}, "not allowed"),
    ],
)
def test_the_definition_refuses_what_the_code_would(spec, said):
    found = " ".join(mistakes("datasets", {"spec": {"source": "s3://b/c", **spec}}))
    assert (said in found) if said else found == ""


def test_of_too_many_datasets_those_in_use_and_the_latest_are_shown():
    many = tuple(
        CachedDataset(f"{n:064x}", "s3://a", "", 1, in_use=n == 0, last_used=float(n)) for n in range(2500)
    )
    shown = parse_dataset_node(DatasetNode("a", datasets=many).document()).datasets
    assert len(shown) == 2000 and shown[0].in_use and shown[1].last_used == 501.0


def test_entries_that_cannot_be_understood_are_left_out():
    body = {
        "metadata": {"name": "a"},
        "status": {"datasets": [3, {}, {"key": "k"}, {"key": "k", "source": "s"}]},
    }
    assert [one.key for one in parse_dataset_node(body).datasets] == ["k"]
