"""Shortcuts give the answers of search and placement."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gigaslice.cluster.canonical import Canonical
from gigaslice.cluster.choose import choose_gpus
from gigaslice.cluster.demand import PodDemand
from gigaslice.cluster.hardware import Tally
from gigaslice.cluster.rank import rank_key
from gigaslice.cluster.search import Matcher
from gigaslice.cluster.shortcuts import Counting, quick_fits, quick_key
from tests.unit.gigaslice.cluster.oracle import OracleContainer, OracleGpu
from tests.unit.gigaslice.cluster.test_choose_properties import (
    a_node,
    a_pod,
    containers,
    gpus,
    two_models,
)


@st.composite
def alike(draw: st.DrawFn) -> list[OracleGpu]:
    """A node of GPUs of one kind, as most are."""
    used = draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    return [
        OracleGpu(
            "NVIDIA A", 4, one, draw(st.sampled_from([0, 40])) if one else 0, draw(st.integers(0, 9)) == 0
        )
        for one in used
    ]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_they_agree(data: st.DataObject) -> None:
    state = a_node(data.draw(st.one_of(gpus(most=8), alike())))
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
    counting, tally = Counting.of(problem), Tally.of(room)
    if counting is not None:
        assert counting.fits(tally) == (found is not None)
        if found is not None:
            assert counting.key(tally) in (None, rank_key(problem, room, found))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_they_agree_where_models_need_different_numbers(data: st.DataObject) -> None:
    state = a_node(data.draw(two_models()))
    slices, cores = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([0, 0, 30]))
    demand = state.demand_of(a_pod([(OracleContainer(slices, cores=cores), {})]))
    assert isinstance(demand, PodDemand)
    record = state._nodes["n"]
    problem, room = state._problem(demand, record), record.current_room()
    assume(problem.never is None)
    found = choose_gpus(problem, room)
    assert quick_fits(problem, room) == (found is not None)
    if found is not None:
        quick = quick_key(problem, room)
        assert quick in (None, rank_key(problem, room, found))
        if len({unit.slices for units in problem.blocks[0].alternatives for unit in units}) == 1:
            assert quick is not None
        canonical = Canonical(problem)(room)
        assert choose_gpus(problem, canonical) is not None


def test_they_are_taken() -> None:
    """The shapes that the figures are about take no search."""
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
        counting = Counting.of(problem)
        assert (counting is None) == bool(one.cores)
        parts_of_several = one.divided or "share" in counts
        assert counting is None or (counting.key(Tally.of(room)) is None) == bool(parts_of_several)


def test_more_parts_than_gpus_do_not_fit() -> None:
    """Of two classes one GPU each, on a node with one GPU that both match."""
    state = a_node([OracleGpu("NVIDIA A", 4, 1)])
    demand = state.demand_of(a_pod([(OracleContainer(), {"part": 1, "share": 1})]))
    assert isinstance(demand, PodDemand)
    record = state._nodes["n"]
    problem, room = state._problem(demand, record), record.current_room()
    counting = Counting.of(problem)
    assert counting is not None and not counting.fits(Tally.of(room))
    assert choose_gpus(problem, room) is None


def test_a_gpu_for_oneself_is_counted() -> None:
    state = a_node([OracleGpu("NVIDIA A", 4, used) for used in (0, 0, 1, 2, 3, 4)])
    for one in (OracleContainer(2, exclusive=True), OracleContainer(4, divided=2, exclusive=True, cores=30)):
        demand = state.demand_of(a_pod([(one, {})]))
        assert isinstance(demand, PodDemand)
        record = state._nodes["n"]
        counting = Counting.of(state._problem(demand, record))
        assert counting is not None and counting.key(record.current_tally()) is not None
