# SPDX-License-Identifier: Apache-2.0
"""What is kept from call to call gives the answers of a state that keeps nothing."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.state import ClusterState
from tests.fakes.clusters import bound, container, demand, facts, pod
from tests.unit.gigaslice.core.cluster.test_choose_properties import CLASSES, a_class

NAMES = [f"n{number}" for number in range(5)]
PODS = (
    pod("one", container(slices=6)),
    pod("whole", container(gpus=1)),
    pod("pair", container(gpus=2)),
    pod("class", container(classes={"any": 1})),
    pod("two", container("a", slices=6), container("b", slices=6)),
)


def answers(state: ClusterState, asked: PodDemand, names: list[str]) -> object:
    fitting, refused = state.filter(asked, names)
    cache = state._cache(asked)
    ranked = sorted(fitting, key=lambda name: (cache.key(name), name))
    assert fitting == [name for name in names if name in set(fitting)]
    for among in (fitting, names, fitting):
        assert state.best(asked, among, 2) == ranked[:2]
    assert sorted([*fitting, *refused]) == sorted(names)
    return fitting, refused, ranked


def anew(state: ClusterState, asked: PodDemand, names: list[str]) -> object:
    """The answers from what there is alone."""
    kept, state._caches = state._caches, OrderedDict()
    try:
        for record in state._nodes.values():
            record.room = None
        return answers(state, asked, names)
    finally:
        state._caches = kept


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, str, int, int]:
    what = draw(
        st.sampled_from(["ask", "ask", "ask", "node", "gone", "pod", "end", "reserve", "release", "class"])
    )
    return what, draw(st.sampled_from(NAMES)), draw(st.integers(0, 4)), draw(st.integers(0, 1))


def change(state: ClusterState, what: str, name: str, number: int, gpu: int) -> None:
    if what == "node":
        state.put_node(facts(name, number % 2 + 2))
    elif what == "gone":
        state.drop_node(name)
    elif what == "pod":
        state.put_pod(bound(f"uid-{number}", name, (gpu, 3 * number + 1)))
    elif what == "end":
        state.drop_pod(f"uid-{number}")
    elif what == "reserve":
        asked = demand(state, PODS[0])
        chosen = state.choose(asked, name)
        if isinstance(chosen, Assignment):
            state.reserve(f"new-{number}", name, chosen, asked)
    elif what == "release":
        state.release(f"new-{number}")
    elif gpu:
        state.put_class(replace(a_class("b"), name="any"))
    else:
        state.put_class(a_class("any"))


@given(st.lists(steps(), min_size=5, max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_nothing_that_is_kept_is_old(done: list[tuple[str, str, int, int]], rng: object) -> None:
    state = ClusterState()
    for name in CLASSES:
        state.put_class(a_class(name))
    for name in NAMES[:3]:
        state.put_node(facts(name, 2))
    for what, name, number, gpu in done:
        if what != "ask":
            change(state, what, name, number, gpu)
            continue
        names = NAMES[: number + 1]
        rng.shuffle(names)  # type: ignore[attr-defined]
        asked = demand(state, PODS[number])
        assert answers(state, asked, names) == anew(state, asked, names)


def test_many_nodes_that_change_at_once() -> None:
    state = ClusterState()
    names = [f"n{number:03}" for number in range(200)]
    for name in names:
        state.put_node(facts(name))
    asked = demand(state, PODS[0])
    assert state.best(asked, names, 3) == names[:3]
    for number, name in enumerate(names):
        state.put_pod(bound(f"uid-{number}", name, (0, number % 10 + 1)))
    assert answers(state, asked, names) == anew(state, asked, names)


def test_what_is_gone_is_forgotten() -> None:
    state = ClusterState()
    asked = demand(state, PODS[0])
    for number in range(50):
        state.put_node(facts(f"n{number}"))
        assert state.filter(asked, [f"n{number}"]) == ([f"n{number}"], {})
        assert state.best(asked, [f"n{number}"], 1) == [f"n{number}"]
        state.drop_node(f"n{number}")
    state.filter(asked, [])
    (cache,) = state._caches.values()
    assert not cache._refusals and not cache._placed and not cache._order
