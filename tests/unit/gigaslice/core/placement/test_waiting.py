# SPDX-License-Identifier: Apache-2.0
"""Where a request waits, and what it is told it waits for."""

from gigaslice.core.model import Infeasible, NodeState, Placement, Reason, Request, Share
from gigaslice.core.placement import Missing, Waiting, place_waiting
from tests.fakes.gpus import node_state
from tests.unit.gigaslice.core.placement.nodes import GIB, as_pairs, make_gpu, placement, uuid, vector_node


def node(*used: int, slices: int = 16) -> NodeState:
    """A node of equal GPUs far apart, each with that many slices in use."""
    return node_state([make_gpu(i, slices) for i in range(len(used))], used=used)


def wait(state: NodeState, request: Request) -> Waiting:
    answer = place_waiting(state, request)
    assert isinstance(answer, Waiting)
    return answer


def test_what_fits_does_not_wait() -> None:
    assert wait(node(8, 15), Request(slices=8)) == Waiting(placement((0, 8)), ())


def test_what_never_fits_is_refused() -> None:
    answer = place_waiting(node(0, 0), Request(slices=17))
    assert isinstance(answer, Infeasible)
    assert answer.reason is Reason.EXCEEDS_GPU


def test_it_waits_where_the_least_is_missing() -> None:
    assert wait(node(14, 10, 12), Request(slices=8)) == Waiting(
        placement((1, 8)), (Missing(uuid(1), 2, 2 * GIB),)
    )
    whole = wait(node(14, 10, 12), Request(gpus=2))
    assert as_pairs(whole.placement) == [[1, 16], [2, 16]]
    assert [(lack.gpu, lack.slices) for lack in whole.missing] == [(uuid(1), 10), (uuid(2), 12)]


def test_those_who_wait_already_count() -> None:
    state = node(16, 15)
    gpus = []
    for number in range(3):
        answer = wait(state, Request(slices=8))
        gpus.append(as_pairs(answer.placement)[0][0])
        state = state.with_occupant(f"waits{number}", answer.placement, overcommit=True)
    assert gpus == [1, 0, 1]


def test_an_unhealthy_gpu_is_the_last_resort() -> None:
    state = node(0, 16).with_health(uuid(0), healthy=False)
    assert as_pairs(wait(state, Request(slices=8)).placement) == [[1, 8]]
    alone = wait(state, Request(slices=8, only=frozenset({uuid(0)})))
    assert alone.missing == (Missing(uuid(0), 0, 0, unhealthy=True),)


def test_missing_compute_counts_after_missing_memory() -> None:
    state = node(0, 0, 0)
    for index, (slices, cores) in enumerate([(4, 90), (4, 70), (9, 10)]):
        state = state.with_occupant(f"job{index}", Placement((Share(uuid(index), slices, cores),)))
    answer = wait(state, Request(slices=8, cores=50))
    assert answer == Waiting(Placement((Share(uuid(1), 8, 50),)), (Missing(uuid(1), 0, 0, cores=20),))


def test_a_pool_with_less_missing_is_chosen_over_the_first() -> None:
    state = vector_node("mixed6").with_occupant("a", placement(*[(i, 16) for i in range(4)]))
    state = state.with_occupant("b", placement((4, 32), (5, 25)))
    assert as_pairs(wait(state, Request(slices=12)).placement) == [[5, 12]]


def test_what_is_missing_counts_alike_in_pools_of_any_size() -> None:
    """Three slices of a pool of one GPU are more than one slice of a pool of five."""
    gpus = [make_gpu(0, 8, "lone"), *(make_gpu(index, 16, "many") for index in range(1, 6))]
    state = node_state(gpus).with_occupant("a", placement((0, 3)))
    state = state.with_occupant("b", placement(*((index, 9) for index in range(1, 6))))
    assert wait(state, Request(slices=8)).missing == (Missing(uuid(1), 1, GIB),)


def test_more_gpus_are_waited_for_only_where_less_is_missing() -> None:
    gpus = [make_gpu(0, 80, "large"), *(make_gpu(index, 16, "small") for index in range(1, 4))]
    idle = node_state(gpus)
    held = {
        (70, 4, 4, 4): [[1, 15], [2, 15]],  # 6 slices instead of 20
        (56, 4, 4, 4): [[0, 30]],
        (56, 4, 4, 5): [[0, 30]],
        (55, 4, 4, 5): [[0, 30]],
    }
    for used, expected in held.items():
        state = idle.with_occupant("a", placement(*enumerate(used)))
        assert as_pairs(wait(state, Request(total=30)).placement) == expected, used
    unhealthy = idle.with_occupant("a", placement(*enumerate((80, 16, 16, 16)))).with_health(uuid(0), False)
    assert as_pairs(wait(unhealthy, Request(total=30)).placement) == [[1, 15], [2, 15]]


def test_the_larger_parts_wait_where_more_is_left() -> None:
    nine = wait(node(14, 12, 16), Request(total=9, gpus=2))
    assert as_pairs(nine.placement) == [[0, 4], [1, 5]]
    assert [(lack.gpu, lack.slices) for lack in nine.missing] == [(uuid(0), 2), (uuid(1), 1)]
    shaped = wait(node(12, 4, 16), Request(total=24, whole_first=True))
    assert as_pairs(shaped.placement) == [[0, 8], [1, 16]]
    assert [lack.slices for lack in shaped.missing] == [4, 4]
