# SPDX-License-Identifier: Apache-2.0
"""GPUs for one pod alone, and GPUs with different parts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.deviceplugin.preferred import preferred_device_ids
from gigaslice.core.model import Infeasible, Placement, Reason, Request
from gigaslice.core.placement import place, place_waiting
from tests.fakes.gpus import node_state
from tests.fakes.nodes import all_device_ids, inventory, uuid


def node(*used, gpus=4, slices=8, unhealthy=()):
    """USED: slices that containers hold of each GPU."""
    found = inventory(gpus, slices, unhealthy=unhealthy)
    return node_state(found.gpus, used=used)


def sizes(answer):
    assert isinstance(answer, Placement), answer
    return {share.gpu: share.slices for share in answer.shares}


def test_different_parts_go_to_different_gpus():
    assert sorted(sizes(place(node(), Request(parts=(2, 6)))).values()) == [2, 6]
    assert sizes(place(node(4, 1), Request(parts=(2, 7)))) == {uuid(0): 2, uuid(1): 7}


def test_a_large_part_never_loses_its_only_gpu_to_a_small_one():
    assert sizes(place(node(5, 0, 7, 8), Request(parts=(1, 2, 8)))) == {uuid(0): 2, uuid(1): 8, uuid(2): 1}


@given(
    st.lists(st.integers(0, 8), min_size=3, max_size=4), st.lists(st.integers(1, 8), min_size=1, max_size=4)
)
def test_parts_are_placed_whenever_that_is_possible(used, parts):
    answer = place(node(*used, gpus=len(used)), Request(parts=tuple(parts)))
    free = sorted((8 - count for count in used), reverse=True)
    possible = len(parts) <= len(used) and all(
        have >= part for have, part in zip(free, sorted(parts, reverse=True), strict=False)
    )
    assert isinstance(answer, Placement) == possible
    if possible:
        found = sizes(answer)
        assert sorted(found.values()) == sorted(parts)
        assert all(count <= 8 - used[int(gpu[-2:])] for gpu, count in found.items())


def test_alone_means_a_gpu_that_nobody_has():
    assert set(sizes(place(node(1, 0, 1, 1), Request(total=3, exclusive=True)))) == {uuid(1)}
    answer = place(node(1, 1, 1, 1), Request(total=3, exclusive=True))
    assert isinstance(answer, Infeasible) and answer.reason is Reason.INSUFFICIENT_NOW
    assert "that no other pod uses" in answer.detail


def test_alone_on_several_gpus_with_even_or_different_parts():
    even = place(node(0, 1), Request(total=7, gpus=2, exclusive=True))
    assert sorted(sizes(even).values()) == [3, 4] and uuid(1) not in sizes(even)
    assert sorted(sizes(place(node(), Request(parts=(1, 5), exclusive=True))).values()) == [1, 5]
    assert {share.cores for share in even.shares} == {0}


@pytest.mark.parametrize("request_, reason", [
    (Request(parts=(9, 1)), Reason.EXCEEDS_GPU),
    (Request(parts=(1,) * 5), Reason.EXCEEDS_NODE),
    (Request(parts=(0, 1)), Reason.INVALID),
    (Request(parts=(1, 2), total=4), Reason.INVALID),
    (Request(parts=(1, 2), gpus=3), Reason.INVALID),
    (Request(parts=(1, 2), only=frozenset({"GPU-x"})), Reason.NO_MATCHING_GPU),
    (Request(parts=(1, 2), whole_first=True), Reason.INVALID),
    (Request(total=33, exclusive=True), Reason.EXCEEDS_NODE),
    (Request(total=0, exclusive=True), Reason.INVALID),
])  # fmt: skip
def test_what_can_never_be(request_, reason):
    for answer in (place(node(), request_), place_waiting(node(), request_)):
        assert isinstance(answer, Infeasible) and answer.reason is reason and answer.permanent


def test_alone_on_whole_gpus_and_on_a_part_of_one_more():
    found = place(node(0, 1), Request(total=20, whole_first=True, exclusive=True))
    assert sorted(sizes(found).values()) == [4, 8, 8] and uuid(1) not in sizes(found)
    assert {(share.slices, share.cores) for share in found.shares} == {(8, 100), (4, 0)}


@pytest.mark.parametrize("used, request_, cores", [
    ((), Request(total=3), 0), ((), Request(total=3, cores=30), 30), ((), Request(total=8, cores=30), 100),
    ((1, 1, 1, 1), Request(total=3, cores=30), 30), ((), Request(parts=(2, 3), cores=100), 100),
])  # fmt: skip
def test_alone_promises_the_compute_that_is_asked_for(used, request_, cores):
    waiting = place_waiting(node(*used), replace(request_, exclusive=True))
    assert {share.cores for share in waiting.placement.shares} == {cores}


def test_waiting_where_the_least_is_missing():
    waiting = place_waiting(node(8, 3, 8, 8), Request(total=2, exclusive=True))
    assert sizes(waiting.placement) == {uuid(1): 2} and waiting.missing
    parts = place_waiting(node(8, 3, 8, 8), Request(parts=(6, 1)))
    assert sizes(parts.placement)[uuid(1)] == 6 and len(parts.placement.shares) == 2 and parts.missing


def test_a_preference_agrees():
    found = inventory(4, 8)
    for request in (Request(parts=(2, 6)), Request(exclusive=True), Request(gpus=2, exclusive=True)):
        device_ids = preferred_device_ids(node(1), all_device_ids(found), [], 8, request=request)
        by_gpu = {
            gpu: sum(t.startswith(gpu + "/") for t in device_ids)
            for gpu in {t.rpartition("/")[0] for t in device_ids}
        }
        from dataclasses import replace

        assert by_gpu == sizes(place(node(1), replace(request, total=8)))
