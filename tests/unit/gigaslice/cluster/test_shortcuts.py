"""Shortcuts give the answers of search and placement."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gigaslice.cluster.choose import choose_gpus
from gigaslice.cluster.demand import PodDemand
from gigaslice.cluster.rank import rank_key
from gigaslice.cluster.search import Matcher
from gigaslice.cluster.shortcuts import quick_fits, quick_key
from tests.unit.gigaslice.cluster.test_choose_properties import a_node, a_pod, containers, gpus


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_they_agree(data: st.DataObject) -> None:
    state = a_node(data.draw(gpus(most=8)))
    demand = state.demand_of(a_pod([data.draw(containers(1))]))
    assume(isinstance(demand, PodDemand))
    assert isinstance(demand, PodDemand)
    record = state._nodes["n"]
    problem, room = state._problem(demand, record), record.current_room()
    assume(problem.never is None)
    fits, found = quick_fits(problem, room), choose_gpus(problem, room)
    assert Matcher(problem.hardware, problem.blocks).solve(0, room) is not None or found is None
    assert fits in (None, found is not None)
    if found is not None:
        assert quick_key(problem, room) in (None, rank_key(problem, room, found))


def test_they_are_taken() -> None:
    """The shapes that the figures are about take no search."""
    from tests.unit.gigaslice.cluster.oracle import OracleContainer, OracleGpu

    state = a_node([OracleGpu("NVIDIA A", 4, used) for used in (0, 0, 0, 0, 1, 2, 3, 4)])
    for one, counts in (
        (OracleContainer(2), {}),
        (OracleContainer(gpus=1), {}),
        (OracleContainer(gpus=3), {}),
        (OracleContainer(2, cores=30), {}),
        (OracleContainer(4, divided=2), {}),
        (OracleContainer(), {"a": 2}),
        (OracleContainer(), {"share": 2}),
    ):
        demand = state.demand_of(a_pod([(one, counts)]))
        assert isinstance(demand, PodDemand)
        record = state._nodes["n"]
        problem, room = state._problem(demand, record), record.current_room()
        assert quick_fits(problem, room) is True
        assert quick_key(problem, room) is not None, (one, counts)
