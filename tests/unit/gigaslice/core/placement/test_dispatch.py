# SPDX-License-Identifier: Apache-2.0
"""Reasons and their sentences, restrictions to GPUs, and slices counted in all."""

import pytest

from gigaslice.core.model import (
    Infeasible,
    LinkLevel,
    NodeState,
    Placement,
    Reason,
    Request,
    Share,
    Topology,
)
from gigaslice.core.placement import Policy, place
from tests.fakes.gpus import node_state
from tests.unit.gigaslice.core.placement.nodes import (
    as_pairs,
    make_gpu,
    place_slices,
    placement,
    uuid,
    vector_node,
)

MIXED = vector_node("mixed6")  # GPU0-3: T4 with 16 slices; GPU4-5: V100 with 32
T4 = frozenset(uuid(index) for index in range(4))


@pytest.mark.parametrize(
    ("request_", "reason", "words"),
    [
        (Request(gpus=0), Reason.INVALID, "0 GPUs asked for"),
        (Request(slices=0), Reason.INVALID, "0 slices per GPU"),
        (Request(total=-1), Reason.INVALID, "-1 slices asked for"),
        (Request(slices=4, total=4), Reason.INVALID, "more than one way"),
        (Request(total=40, whole_first=True, gpus=2), Reason.INVALID, "leave the number of GPUs out"),
        (Request(gpus=2, whole_first=True), Reason.INVALID, "give the size in total"),
        (Request(gpus=3, total=2), Reason.INVALID, "2 slices cannot be spread over 3 GPUs"),
        (Request(slices=4, cores=101), Reason.INVALID, "compute share 101%"),
        (Request(slices=4, cores=-1), Reason.INVALID, "compute share -1%"),
        (Request(only=frozenset({"GPU-99"})), Reason.NO_MATCHING_GPU, "check the UUIDs"),
        (
            Request(slices=33, gpus=9),
            Reason.EXCEEDS_GPU,
            "33 slices of one GPU asked for, but the largest",
        ),
        (Request(slices=17, only=T4), Reason.EXCEEDS_GPU, "has 16"),
        (
            Request(gpus=3, slices=17),
            Reason.EXCEEDS_NODE,
            "3 GPUs of one model asked for, but this node has at most 2",
        ),
        (Request(total=65), Reason.EXCEEDS_NODE, "3 GPUs"),
        (Request(total=72, whole_first=True, only=T4), Reason.EXCEEDS_NODE, "5 GPUs"),
    ],
)
def test_a_request_that_can_never_fit_says_why(request_: Request, reason: Reason, words: str) -> None:
    answer = place(MIXED, request_)
    assert isinstance(answer, Infeasible)
    assert answer.reason is reason
    assert words in answer.detail
    assert "\n" not in answer.detail
    assert answer.permanent


def test_a_request_without_room_says_what_is_free() -> None:
    state = MIXED.with_occupant("a", Placement((Share(uuid(4), 20, 60),))).with_health(uuid(5), healthy=False)
    answer = place(state, Request(slices=20, cores=50))
    assert answer == Infeasible(
        Reason.INSUFFICIENT_NOW,
        "no room now for 20 slices with 50% compute each; free: GPU4 12 of 32 (40%), GPU5 unhealthy; "
        "waits for other pods to end",
    )
    assert not answer.permanent


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(gpus=2), "32 slices on each of 2 GPUs"),
        (Request(total=49), "up to 25 slices on each of 2 GPUs"),
        (Request(total=48, whole_first=True), "1 GPU whole and 16 slices of another"),
        (Request(slices=1), "1 slice;"),
    ],
)
def test_the_options_is_named_in_the_words_of_the_request(request_: Request, words: str) -> None:
    gpus = [make_gpu(index, 32) for index in range(2)]
    full = node_state(gpus, used=(32, 32))
    answer = place(full, request_)
    assert isinstance(answer, Infeasible)
    assert f"no room now for {words}" in answer.detail


def test_a_node_without_gpus_answers_too() -> None:
    answer = place(node_state([]), Request())
    assert answer == Infeasible(Reason.NO_MATCHING_MODEL, "no GPU on this node; it has no GPU at all")


def test_a_gpu_smaller_than_a_slice_serves_no_container() -> None:
    state = node_state([make_gpu(0, 0)])
    for request in (Request(), Request(slices=1), Request(total=1), Request(total=1, whole_first=True)):
        answer = place(state, request)
        assert isinstance(answer, Infeasible)
        assert answer.reason is Reason.EXCEEDS_GPU


@pytest.mark.parametrize("policy", Policy)
def test_only_allowed_gpus_are_taken(policy: Policy) -> None:
    only = frozenset({uuid(1), uuid(3), uuid(5)})
    assert as_pairs(place(MIXED, Request(gpus=2, slices=8, only=only), policy)) == [[1, 8], [3, 8]]
    rest = Request(slices=8, only=only - {uuid(1), uuid(3)})
    assert as_pairs(place(MIXED, rest, policy)) == [[5, 8]]
    assert as_pairs(place(MIXED, Request(only=T4 - {uuid(0)}, gpus=3), policy)) == [
        [1, 16],
        [2, 16],
        [3, 16],
    ]


def test_a_single_gpu_comes_from_the_broken_socket_when_all_pairs_are_intact_or_gone() -> None:
    state = vector_node("pcie8").with_occupant("a", placement((6, 40), (7, 40)))
    assert as_pairs(place(state, Request())) == [[4, 40]]


def test_a_gpu_with_a_holder_is_not_whole_even_if_nothing_is_taken() -> None:
    state = vector_node("pair2").with_occupant("a", placement((0, 0)))
    assert as_pairs(place(state, Request())) == [[1, 16]]


def test_a_whole_gpu_comes_with_all_its_compute_and_a_part_with_what_it_asked() -> None:
    assert place(MIXED, Request(slices=16, only=T4)) == Placement((Share(uuid(0), 16, 100),))
    assert place(MIXED, Request(slices=15, cores=30)) == Placement((Share(uuid(0), 15, 30),))


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (8, [[0, 8]]),
        (16, [[0, 16]]),
        (17, [[4, 17]]),  # a V100 holds it in one piece, so two T4 are no answer
        (32, [[4, 32]]),
        (33, [[4, 17], [5, 16]]),
        (64, [[4, 32], [5, 32]]),
    ],
)
def test_slices_in_all_take_as_few_gpus_as_hold_them(total: int, expected: list[list[int]]) -> None:
    assert as_pairs(place_slices(MIXED, total)) == expected


@pytest.mark.parametrize(
    ("held", "request_", "expected"),
    [
        ([(4, 16), (5, 16)], Request(total=17), [[0, 9], [1, 8]]),
        ([(4, 16), (5, 15)], Request(total=17), [[5, 17]]),
        ([(4, 32), (5, 32)], Request(total=40, whole_first=True), [[0, 16], [1, 16], [2, 8]]),
        ([(4, 32), (5, 32), (0, 6), (1, 7), (2, 6)], Request(total=20), [[0, 10], [2, 10]]),
        ([(4, 32), (5, 32)], Request(total=17, exclusive=True), [[0, 9], [1, 8]]),
        ([(4, 32), (5, 32)], Request(total=17, gpus=1), None),
        ([(4, 32), (5, 32), (0, 1), (1, 1), (2, 1), (3, 9)], Request(total=32, exclusive=True), None),
    ],
)
def test_more_gpus_of_a_model_only_where_none_with_fewer_has_room(
    held: list[tuple[int, int]], request_: Request, expected: list[list[int]] | None
) -> None:
    answer = place(MIXED.with_occupant("a", placement(*held)), request_)
    if expected is None:
        assert isinstance(answer, Infeasible)
        assert answer.reason is Reason.INSUFFICIENT_NOW
    else:
        assert as_pairs(answer) == expected


def test_no_room_names_every_division() -> None:
    answer = place_slices(
        MIXED.with_occupant("a", placement((4, 32), (5, 32), *((i, 8) for i in range(4)))), 17
    )
    assert isinstance(answer, Infeasible)
    assert "17 slices or up to 9 slices on each of 2 GPUs" in answer.detail
    assert "GPU0 8 of 16" in answer.detail and "GPU5 0 of 32" in answer.detail


def test_slices_in_all_spread_over_as_many_gpus_as_asked() -> None:
    assert as_pairs(place_slices(MIXED, 10, Request(gpus=4))) == [[0, 3], [1, 3], [2, 2], [3, 2]]
    assert as_pairs(place_slices(MIXED, 9, Request(gpus=2))) == [[0, 5], [1, 4]]


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (40, [[4, 32], [5, 8]]),
        (32, [[4, 32]]),
        (20, [[4, 20]]),
        (16, [[0, 16]]),
        (3, [[0, 3]]),
    ],
)
def test_whole_gpus_first_and_the_rest_on_one_more(total: int, expected: list[list[int]]) -> None:
    answer = place(MIXED, Request(total=total, whole_first=True, cores=30))
    assert as_pairs(answer) == expected
    assert isinstance(answer, Placement)
    assert [share.cores for share in answer.shares] == [
        100 if slices == (16 if index < 4 else 32) else 30 for index, slices in expected
    ]


def test_the_rest_after_whole_gpus_is_taken_from_a_fragment() -> None:
    state = MIXED.with_occupant("a", placement((2, 5)))
    answer = place(state, Request(total=40, whole_first=True, only=T4))
    assert as_pairs(answer) == [[0, 16], [1, 16], [2, 8]]


def test_the_odd_slice_goes_where_it_fits() -> None:
    """GPU0 has room for the smaller part only; GPU1 and GPU2 could both take the larger."""
    gpus = [make_gpu(index, 8) for index in range(3)]
    state = node_state(gpus).with_occupant("a", placement((0, 4)))
    assert as_pairs(place_slices(state, 9, Request(gpus=2))) == [[0, 4], [1, 5]]
    tight = state.with_occupant("b", placement((1, 4)))
    assert as_pairs(place_slices(tight, 9, Request(gpus=2))) == [[0, 4], [2, 5]]
    full = state.with_occupant("b", placement((1, 4), (2, 4)))
    answer = place_slices(full, 9, Request(gpus=2))
    assert isinstance(answer, Infeasible)
    assert answer.reason is Reason.INSUFFICIENT_NOW


def test_binpack_takes_the_fullest_and_spread_the_emptiest() -> None:
    gpus = [make_gpu(index) for index in range(4)]
    levels = [[0, 10, 50, 50], [10, 0, 50, 50], [50, 50, 0, 10], [50, 50, 10, 0]]
    state = NodeState.build(gpus, Topology.build(levels))
    state = state.with_occupant("a", placement((0, 8))).with_occupant("b", placement((2, 12)))
    for size, packed, spread in ((4, 2, 1), (8, 0, 1)):
        assert as_pairs(place_slices(state, size, policy=Policy.BINPACK)) == [[packed, size]]
        assert as_pairs(place_slices(state, size, policy=Policy.SPREAD)) == [[spread, size]]
    pair = Request(gpus=2, slices=4)
    assert as_pairs(place(state, pair, Policy.BINPACK)) == [[0, 4], [2, 4]]
    assert as_pairs(place(state, pair, Policy.SPREAD)) == [[1, 4], [3, 4]]


def test_spread_compares_what_is_left_by_share_of_the_gpu_and_avoids_busy_neighbours() -> None:
    state = MIXED.with_occupant("a", placement((4, 12))).with_occupant("b", placement((5, 12)))
    assert as_pairs(place_slices(state, 8, policy=Policy.SPREAD)) == [[0, 8]]
    state = state.with_occupant("c", placement((0, 16)))
    assert as_pairs(place_slices(state, 8, policy=Policy.SPREAD)) == [[2, 8]]


def test_best_effort_thinks_of_the_gpus_it_leaves() -> None:
    """Four GPUs in a row, the middle pair joined best: taking it leaves the outer two without a link."""
    links = [[0, 2, 0, 0], [2, 0, 3, 0], [0, 3, 0, 2], [0, 0, 2, 0]]
    levels = [[LinkLevel.NODE] * 4 for _ in range(4)]
    state = NodeState.build([make_gpu(index) for index in range(4)], Topology.build(levels, links))
    two = Request(gpus=2)
    assert as_pairs(place(state, two)) == as_pairs(place(state, two, Policy.MAX_SUM)) == [[1, 16], [2, 16]]
    assert as_pairs(place(state, two, Policy.BEST_EFFORT)) == [[0, 16], [1, 16]]


def test_max_sum_weighs_the_sum_and_gaia_the_worst_link() -> None:
    state = vector_node("skew8")
    four = Request(gpus=4)
    assert [gpu for gpu, _ in as_pairs(place(state, four))] == [4, 5, 6, 7]
    assert [gpu for gpu, _ in as_pairs(place(state, four, Policy.MAX_SUM))] == [0, 1, 2, 3]


def test_best_effort_gives_up_on_a_huge_mesh_and_takes_the_best_set() -> None:
    """Sixteen GPUs without any symmetry: more divisions than are worth trying."""
    links = [[(i * j + i + j) % 5 if i != j else 0 for j in range(16)] for i in range(16)]
    levels = [[LinkLevel.NODE] * 16 for _ in range(16)]
    state = NodeState.build([make_gpu(index) for index in range(16)], Topology.build(levels, links))
    six = Request(gpus=6)
    assert place(state, six, Policy.BEST_EFFORT) == place(state, six, Policy.MAX_SUM)
