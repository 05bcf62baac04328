# SPDX-License-Identifier: Apache-2.0
"""Containers in turn are where placement puts them, and what is known without a search is what the search finds."""

from __future__ import annotations

from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from gigaslice.core.cluster.choose import choose_gpus, fits
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.evaluator import PodEvaluator
from gigaslice.core.cluster.hardware import NodeRoom
from gigaslice.core.cluster.problem import NodeProblem
from gigaslice.core.cluster.rank import rank_key
from gigaslice.core.cluster.search import Matcher
from gigaslice.core.cluster.sequential_ranking import ranking_of
from gigaslice.core.placement import Policy
from tests.unit.gigaslice.core.cluster.oracle import OracleContainer, OracleGpu
from tests.unit.gigaslice.core.cluster.test_choose_properties import (
    a_node,
    a_pod,
    containers,
    gpus,
    two_models,
)

Asked = list[tuple[OracleContainer, dict[str, int]]]


@st.composite
def alike(draw: st.DrawFn) -> list[OracleGpu]:
    """A node of GPUs of one kind, as most are."""
    used = draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    return [
        OracleGpu(
            "NVIDIA A", 4, held, draw(st.sampled_from([0, 40])) if held else 0, draw(st.integers(0, 9)) == 0
        )
        for held in used
    ]


@st.composite
def simple(draw: st.DrawFn, fewest: int = 1) -> Asked:
    """Containers of the forms that are placed in turn."""
    asked: Asked = []
    number = draw(st.integers(fewest, 4))
    for at in range(number):
        last = at == number - 1
        lends = not last and at < 2 and draw(st.integers(0, 3)) == 0
        slices = draw(st.sampled_from([0, 1, 1, 2, 2, 3, 4]))
        cores = draw(st.sampled_from([0, 0, 30, 60])) if slices in (1, 2, 3) else 0
        divided = draw(st.sampled_from([None, None, 2])) if last and slices in (2, 4) else None
        asked.append(
            (
                OracleContainer(
                    slices,
                    gpus=0 if slices else draw(st.integers(1, 2)),
                    lends=lends,
                    cores=cores,
                    divided=divided,
                ),
                {},
            )
        )
    return asked


@st.composite
def pods(draw: st.DrawFn) -> Asked:
    return [draw(containers(number)) for number in range(draw(st.integers(1, 3)))]


def situation(node: list[OracleGpu], asked: Asked, **annotations: str) -> tuple[NodeProblem, NodeRoom, int]:
    state = a_node(node)
    demand = state.demand_of(a_pod(asked, **annotations))
    if not isinstance(demand, PodDemand):
        reject()
    record = state._nodes["n"]
    return state._problem(demand, record), record.current_room(), record.unhealthy


@given(alike(), simple())
@settings(max_examples=400, deadline=None)
def test_containers_in_turn_are_where_placement_puts_them(node: list[OracleGpu], asked: Asked) -> None:
    problem, room, _ = situation(node, asked)
    assume(problem.never is None)
    ranking, chosen = ranking_of(problem), choose_gpus(problem, room)
    assert ranking is not None
    key = ranking.key(room)
    if chosen is not None:
        assert key in (None, rank_key(problem, room, chosen))
    if chosen is None or ranking.exact:
        assert (key is None) == (chosen is None)


@given(st.one_of(gpus(most=8), alike(), two_models()), st.one_of(pods(), simple()), st.booleans())
@settings(max_examples=400, deadline=None)
def test_what_is_known_without_a_search_is_what_it_finds(
    node: list[OracleGpu], asked: Asked, together: bool
) -> None:
    assume(not together or all(not counts and not one.whole_first for one, counts in asked))
    problem, room, unhealthy = situation(node, asked, **({"same-gpu": "true"} if together else {}))
    chosen = choose_gpus(problem, room)
    assert fits(problem, room) == (chosen is not None)
    if problem.never is None and not problem.together:
        searched = Matcher(problem.hardware, problem.blocks).solve(0, room)
        assert fits(problem, room) == (searched is not None)
    evaluator = PodEvaluator(problem, Policy.GAIA, spread=False)
    assert (evaluator.refusal(room, unhealthy) is None) == (chosen is not None)
    if chosen is not None:
        assert evaluator.key(room) == rank_key(problem, room, chosen)


def test_the_usual_pods_take_neither_search_nor_placement() -> None:
    node = [OracleGpu("NVIDIA A", 4, used) for used in (0, 0, 0, 0, 1, 2, 3, 4)]
    part, whole, lends = OracleContainer(2), OracleContainer(gpus=2), OracleContainer(2, lends=True)
    usual: list[Asked] = [
        [(OracleContainer(gpus=1), {})],
        [(OracleContainer(gpus=3), {})],
        [(OracleContainer(2, cores=30), {})],
        [(OracleContainer(4, divided=2), {})],
        [(OracleContainer(), {"a": 2})],
        [(OracleContainer(), {"share": 2})],
        *([(one, {}) for one in pod] for pod in ([part], [part, part], [whole, part], [lends, part])),
    ]
    for asked in usual:
        problem, room, _ = situation(node, asked)
        ranking = ranking_of(problem)
        assert ranking is not None and ranking.key(room) is not None, asked


def test_a_pod_of_which_one_container_finds_nothing_takes_no_search() -> None:
    node = [OracleGpu("NVIDIA A", 4, used) for used in (3, 3, 4, 4)]
    problem, room, _ = situation(node, [(OracleContainer(1), {}), (OracleContainer(2), {})])
    ranking = ranking_of(problem)
    assert ranking is not None and ranking.key(room) is None and not ranking.exact
    alone = [ranking_of(one) for one in problem.alone]
    assert [one is not None and one.key(room) is not None for one in alone] == [True, False]
    assert not fits(problem, room)


def test_more_parts_than_gpus_do_not_fit() -> None:
    """Of two classes one GPU each, on a node with one GPU that both match."""
    problem, room, _ = situation(
        [OracleGpu("NVIDIA A", 4, 1)], [(OracleContainer(), {"part": 1, "share": 1})]
    )
    assert not fits(problem, room)
    assert choose_gpus(problem, room) is None
