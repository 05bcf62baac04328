# SPDX-License-Identifier: Apache-2.0
"""How well a node suits a pod for its datasets."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.affinity import (
    HeldDataset,
    NodeDatasets,
    RequestedDataset,
    bytes_share,
    normalised,
    paper_score,
    weighed,
)

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS["dataset_affinity"], ids=lambda vector: vector["id"])
def test_vectors(vector):
    pod = vector["pod"]
    requested = [RequestedDataset(**one) for one in pod["datasets"]] if pod.get("parse_ok", True) else None
    nodes = {
        name: NodeDatasets(tuple(HeldDataset(**one) for one in node["cached"]))
        for name, node in vector["nodes"].items()
    }
    raw = {name: paper_score(requested, node) for name, node in nodes.items()}
    assert raw == vector["raw"]
    assert normalised(raw) == vector["norm"]


def test_the_worked_example_of_the_rule():
    """Two datasets: all of it, half of it, none of it, a renewal in use, a renewal of an idle one."""
    both = [RequestedDataset("A", "a"), RequestedDataset("B", "b")]
    renewing = [RequestedDataset("A", "new", update=True), RequestedDataset("B", "b")]
    a, b, c = HeldDataset("A", "a"), HeldDataset("B", "b"), HeldDataset("C", "c")
    scores = {
        "n1": paper_score(both, NodeDatasets((a, b, c))),
        "n2": paper_score(both, NodeDatasets((a,))),
        "n3": paper_score(both, NodeDatasets()),
        "n4": paper_score(renewing, NodeDatasets((HeldDataset("A", "a", in_use=True), b))),
        "n5": paper_score(renewing, NodeDatasets((a, b))),
    }
    assert scores == {"n1": 2, "n2": 0, "n3": 0, "n4": 0, "n5": 2}
    assert normalised(scores) == {"n1": 100, "n2": 0, "n3": 0, "n4": 0, "n5": 100}


def test_a_node_that_cannot_be_parsed_has_no_score_and_one_that_still_fetches_neither():
    assert paper_score([RequestedDataset("A", "a")], None) == 0
    assert (
        paper_score([RequestedDataset("A", "a")], NodeDatasets((HeldDataset("A", "a", fetching=True),))) == 0
    )


def test_bytes_count_what_is_there_and_what_is_on_its_way():
    requested = [RequestedDataset("A", "a", 300), RequestedDataset("B", "b", 100)]
    room = 1000
    assert bytes_share(requested, NodeDatasets((), room)) == 0
    assert bytes_share(requested, NodeDatasets((HeldDataset("A", "a", 300),), room)) == 0.75
    assert bytes_share(requested, NodeDatasets((HeldDataset("B", "b", 100, fetching=True),), room)) == 0.25
    assert bytes_share(requested, NodeDatasets((HeldDataset("B", "older", 100),), room)) == 0
    assert bytes_share([RequestedDataset("B")], NodeDatasets((HeldDataset("B", "any", 100),), room)) == 1


def test_deleting_for_the_rest_costs_something_and_never_more_than_fetching_all():
    requested = [RequestedDataset("A", "a", 300), RequestedDataset("B", "b", 100)]
    node = NodeDatasets((HeldDataset("A", "a", 300),), free=0)
    assert 0.6 < bytes_share(requested, node) < 0.75


def test_a_share_counts_a_half_where_nothing_runs():
    assert [weighed(share, unused=True) for share in (0.0, 0.5, 1.0)] == [0.0, 0.25, 0.5]
    assert [weighed(share, unused=False) for share in (0.0, 0.5, 1.0)] == [0.0, 0.5, 1.0]


HELD = st.builds(
    HeldDataset,
    st.sampled_from("ABC"),
    st.sampled_from("xy"),
    st.integers(0, 100),
    st.booleans(),
    st.booleans(),
)
NODES = st.builds(NodeDatasets, st.lists(HELD, max_size=5).map(tuple), st.integers(-50, 500))
REQUESTS = st.lists(
    st.builds(RequestedDataset, st.sampled_from("ABC"), st.sampled_from(["", "x", "y"]), st.integers(0, 100)),
    max_size=4,
)


@given(REQUESTS, NODES)
def test_a_share_is_a_share_and_more_room_is_never_worse(requested, node):
    share = bytes_share(requested, node)
    assert 0.0 <= share <= 1.0
    assert bytes_share(requested, NodeDatasets(node.held, node.free + 100)) >= share
    if paper_score(requested, node):
        assert share == 1.0
