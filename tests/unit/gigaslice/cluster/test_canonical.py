"""One room stands for others only where no pod can tell them apart, and containers in turn are those of placement."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from gigaslice.cluster import judge as judge_module
from gigaslice.cluster.canonical import Canonical
from gigaslice.cluster.choose import choose_gpus
from gigaslice.cluster.demand import PodDemand
from gigaslice.cluster.hardware import NodeRoom, Tally
from gigaslice.cluster.in_turn import InTurn
from gigaslice.cluster.judge import Judge
from gigaslice.cluster.problem import Problem
from gigaslice.cluster.rank import rank_key
from gigaslice.cluster.verdict import why_not
from gigaslice.placement import Policy
from tests.unit.gigaslice.cluster.oracle import OracleContainer, OracleGpu
from tests.unit.gigaslice.cluster.test_choose_properties import a_node, a_pod, containers, gpus
from tests.unit.gigaslice.cluster.test_shortcuts import alike

Asked = list[tuple[OracleContainer, dict[str, int]]]


@st.composite
def simple(draw: st.DrawFn) -> Asked:
    """Containers of the forms that are placed in turn."""
    found = []
    for number in range(draw(st.integers(2, 4))):
        lends = number < 2 and draw(st.integers(0, 3)) == 0
        slices = draw(st.sampled_from([0, 1, 1, 2, 2, 3, 4]))
        found.append(
            (OracleContainer(slices, gpus=0 if slices else draw(st.integers(1, 2)), lends=lends), {})
        )
    return found


@st.composite
def pods(draw: st.DrawFn) -> Asked:
    return [draw(containers(number)) for number in range(draw(st.integers(1, 3)))]


def situation(found: list[OracleGpu], asked: Asked, **annotations: str) -> tuple[Problem, NodeRoom, int]:
    state = a_node(found)
    demand = state.demand_of(a_pod(asked, **annotations))
    if not isinstance(demand, PodDemand):
        reject()
    record = state._nodes["n"]
    return state._problem(demand, record), record.current_room(), record.unhealthy


@given(st.one_of(gpus(most=4), alike()), st.one_of(pods(), simple()), st.booleans())
@settings(max_examples=250, deadline=None)
def test_a_pod_cannot_tell_them_apart(found: list[OracleGpu], asked: Asked, together: bool) -> None:
    assume(not together or all(not counts and not one.whole_first for one, counts in asked))
    problem, room, unhealthy = situation(found, asked, **({"same-gpu": "true"} if together else {}))
    expected = why_not(problem, room, unhealthy)
    if problem.never is None:
        canonical = Canonical(problem)
        assert why_not(problem, canonical(room), unhealthy) is expected
        assert canonical(canonical(room)) == canonical(room)
    refusal = Judge(problem, Policy.GAIA, spread=False).refusal(room, Tally.of(room), unhealthy)
    assert (refusal.reason if refusal else None) is expected


@given(alike(), simple())
@settings(max_examples=250, deadline=None)
def test_containers_in_turn_are_where_placement_puts_them(found: list[OracleGpu], asked: Asked) -> None:
    problem, room, _ = situation(found, asked)
    assume(problem.never is None)
    turns, chosen = InTurn.of(problem), choose_gpus(problem, room)
    assert turns is not None
    key = turns.key(room, Tally.of(room))
    assert chosen is not None or key is None
    if chosen is not None:
        assert key in (None, rank_key(problem, room, chosen))


def test_nodes_that_all_differ_share_few_searches() -> None:
    two: Asked = [(OracleContainer(2), {}), (OracleContainer(2), {})]
    rooms = [
        [OracleGpu("NVIDIA A", 40, (number * at) % 37 + 1) for at in range(1, 9)] for number in range(30)
    ]
    problem, room, _ = situation(rooms[0], two)
    judge = Judge(problem, Policy.GAIA, spread=False)
    with patch.object(judge_module, "why_not", wraps=why_not) as searched:
        for found in rooms:
            room = tuple(one._replace(free=40 - gpu.used) for one, gpu in zip(room, found, strict=True))
            judge.refusal(room, Tally.of(room), 0)
    assert searched.call_count <= 3


def test_the_usual_pods_of_several_containers_take_no_placement() -> None:
    found = [OracleGpu("NVIDIA A", 4, used) for used in (0, 0, 0, 1, 2, 3, 4, 0)]
    one, whole, lends = OracleContainer(2), OracleContainer(gpus=2), OracleContainer(2, lends=True)
    for asked in ([one, one], [whole, one], [lends, one], [one, whole, one]):
        problem, room, _ = situation(found, [(container, {}) for container in asked])
        turns = InTurn.of(problem)
        assert turns is not None and turns.key(room, Tally.of(room)) is not None
