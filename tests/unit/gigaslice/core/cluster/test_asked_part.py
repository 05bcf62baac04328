# SPDX-License-Identifier: Apache-2.0
"""An assignment counts for what its pod asks for, whoever has written it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.classes.resource_class import ClassShare, ResourceClass
from gigaslice.core.classes.selector import parse_selector
from gigaslice.core.cluster.asked_part import asked_part
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import ContainerKind, Pod, Share
from tests.fakes.clusters import CHECKED, bound, container, facts, pod, uuid
from tests.fakes.gpus import GIB

ANY = parse_selector({"matchLabels": {"model": "NVIDIA A"}})
CLASSES = {
    "whole": ResourceClass("whole", ANY, None),
    "eighth": ResourceClass("eighth", ANY, ClassShare(2 * GIB, 10)),
    "slow": ResourceClass("slow", ANY, ClassShare(0, 10)),
}


def written(*shares: tuple[int, int], name: str = "main", node: str = "a") -> dict[str, str]:
    named = tuple(Share(uuid(node, gpu), slices) for gpu, slices in shares)
    return {ASSIGNMENT: Assignment({name: named}).encode()}


def left(one: Pod, gpus: int = 4) -> list[int]:
    """What is left on GPUs of 16 slices when that pod is bound to their node."""
    state = ClusterState(CHECKED)
    for known in CLASSES.values():
        state.put_class(known)
    state.put_node(facts("a", gpus))
    state.put_pod(replace(one, node="a"))
    return [gpu.free for gpu in state.room("a")]


@pytest.mark.parametrize(
    ("asking", "shares", "free"),
    [
        (container(slices=1), [(0, 16), (1, 16)], [15, 16, 16, 16]),
        (container(slices=8), [(0, 4), (1, 4)], [12, 12, 16, 16]),
        (container(slices=8), [(0, 4), (1, 4), (2, 4), (3, 16)], [12, 12, 16, 16]),
        (container(gpus=1), [(0, 1), (1, 16), (2, 16)], [16, 0, 16, 16]),
        (container(gpus=2), [(0, 16), (1, 16)], [0, 0, 16, 16]),
        (container(gpus=1, slices=2), [(0, 16), (1, 16), (2, 16)], [0, 14, 16, 16]),
        (container(classes={"whole": 1}), [(0, 16), (1, 16)], [0, 16, 16, 16]),
        (container(classes={"whole": 1}, slices=3), [(0, 16), (1, 16)], [13, 16, 16, 16]),
        (container(classes={"eighth": 2}), [(0, 16), (1, 16)], [12, 16, 16, 16]),
        (container(classes={"slow": 1}), [(0, 16), (1, 16)], [0, 16, 16, 16]),
        (container(classes={"gone": 1}), [(0, 16), (1, 16)], [0, 16, 16, 16]),
        (container(slices=2), [(9, 16), (0, 16)], [16, 16, 16, 16]),
    ],
)
def test_no_more_than_the_pod_asks_for(asking, shares, free) -> None:
    assert left(pod("1", asking, annotations=written(*shares))) == free


def test_a_container_that_asks_for_nothing_or_is_not_there_has_nothing() -> None:
    annotations = written((0, 16), name="other")
    assert left(pod("1", container(), container("other"), annotations=annotations)) == [16] * 4
    assert left(pod("1", container(), annotations=annotations)) == [16] * 4


def test_exclusive_shuts_no_more_gpus_than_the_slices_that_it_has() -> None:
    annotations = {**written(*((gpu, 1) for gpu in range(4))), "exclusive": "true"}
    assert left(pod("1", container(slices=1), annotations=annotations)) == [0, 16, 16, 16]


def test_an_assignment_of_nothing_that_counts_is_none() -> None:
    """The pod counts as one without, as its agent would place it: such an assignment is not executed."""
    asking = pod("1", container(slices=8), annotations=written((0, 16), name="other"))
    assert sorted(left(asking)) == [8, 16, 16, 16]


def test_what_was_written_later_counts_for_what_was_asked() -> None:
    state = ClusterState(CHECKED)
    state.put_node(facts("a"))
    one = bound("1", "a", (0, 2))
    state.put_pod(one)
    state.put_pod(replace(one, annotations=written((0, 16), (1, 16))))
    assert sum(gpu.free for gpu in state.room("a")) == 30


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, unique_by=lambda one: one[0]),
    st.integers(0, 20),
    st.integers(0, 3),
    st.dictionaries(st.sampled_from([*CLASSES, "gone"]), st.integers(1, 3), max_size=2),
)
def test_it_is_a_part_of_it_and_as_much_as_is_asked(shares, slices, whole, classes) -> None:
    asking = container(slices=slices, gpus=whole, classes=classes)
    given_all = Assignment({"main": tuple(Share(uuid("a", gpu), count) for gpu, count in shares)})
    found = asked_part(given_all, pod("1", asking), CLASSES, ClusterUnits())
    kept = {} if found is None else {share.gpu: share.slices for share in found.containers["main"]}
    all_of = {uuid("a", gpu): count for gpu, count in shares}
    assert all(0 < count <= all_of[gpu] for gpu, count in kept.items())
    if slices or whole:
        largest = sum(sorted(all_of.values(), reverse=True)[:whole])
        rest = sum(all_of.values()) - largest
        assert sum(kept.values()) == largest + min(slices, rest)


def test_init_containers_have_their_own() -> None:
    first = container("first", slices=4, kind=ContainerKind.INIT)
    named = {name: (Share(uuid("a", 0), 16),) for name in ("first", "main")}
    one = pod("1", first, container(slices=2), annotations={ASSIGNMENT: Assignment(named).encode()})
    assert left(one) == [12, 16, 16, 16]
