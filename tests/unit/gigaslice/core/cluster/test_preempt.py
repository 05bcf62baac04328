# SPDX-License-Identifier: Apache-2.0
"""Evictions against the oracle: as few and as unimportant pods as possible, on the GPUs themselves."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.preempt import victims
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Share
from tests.fakes.clusters import (
    bound,
    container,
    demand,
    facts,
    inventory_gpu,
    pod,
    uuid,
)
from tests.unit.gigaslice.core.cluster import oracle
from tests.unit.gigaslice.core.cluster.oracle import OracleContainer, OracleGpu

EIGHT = pod("new", container(slices=8), priority=10)


def a_state(*pods: tuple[str, int, list[tuple[int, int]]]) -> ClusterState:
    """Node "a" with two GPUs of 16 slices, and pods: UID, priority, shares."""
    state = ClusterState()
    state.put_node(facts("a"))
    for uid, priority, shares in pods:
        state.put_pod(bound(uid, "a", *shares, priority=priority))
    return state


def of(state: ClusterState, priority: int = 10, **more: object) -> tuple[str, ...] | None:
    return victims(state, demand(state, EIGHT), "a", priority, **more)  # type: ignore[arg-type]


def test_the_gpu_counts_and_not_the_sum() -> None:
    state = a_state(("a", 1, [(0, 6)]), ("b", 1, [(1, 6)]), ("c", 9, [(0, 8)]), ("d", 9, [(1, 8)]))
    assert of(state) == ("a",), "6 + 2 free on one GPU; by the count of the node both would stay"


def test_the_less_important_go() -> None:
    state = a_state(("a", 1, [(0, 8)]), ("b", 1, [(0, 8)]), ("c", 2, [(1, 16)]))
    assert of(state) == ("a",)
    state = a_state(("a", 1, [(0, 4)]), ("b", 1, [(0, 4)]), ("c", 1, [(0, 8)]), ("d", 1, [(1, 16)]))
    assert of(state) == ("c",), "one pod is less than two, and 8 slices less than 16"
    state = a_state(("a", 1, [(0, 4)]), ("b", 1, [(0, 4)]), ("c", 9, [(0, 8)]), ("d", 5, [(1, 16)]))
    assert of(state) == ("a", "b"), "two unimportant ones rather than one that is more important"


def test_nobody_goes_in_vain() -> None:
    state = a_state(("a", 1, [(0, 16)]), ("b", 20, [(1, 16)]))
    assert of(state, priority=1) is None
    assert of(state, candidates=["b"]) is None
    assert of(state, candidates=[]) is None
    assert of(state) == ("a",)
    state.drop_pod("a")
    assert of(state) == ()
    assert of(state, required=["other"]) == ("other",)


def test_what_is_not_bound_or_not_known_stays() -> None:
    state = a_state(("b", 20, [(1, 16)]))
    state.reserve("r", "a", Assignment({"main": (Share(uuid("a", 0), 16),)}))
    assert of(state) is None


def test_too_many_sets_still_spare_what_can_be_spared() -> None:
    pods = [(f"p{number:02}", number % 3, [(number % 2, 1)]) for number in range(32)]
    state = a_state(*pods)
    exact = of(state)
    assert exact is not None and len(exact) == 8
    found = of(state, most_tries=3)
    assert found is not None
    assert state.without(found).refusal(demand(state, EIGHT), "a") is None
    assert all(state.without(set(found) - {one}).refusal(demand(state, EIGHT), "a") for one in found)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_the_best_set_is_found(data: st.DataObject) -> None:
    size, count = 4, data.draw(st.integers(1, 3))
    state = ClusterState()
    state.put_node(facts("a", [inventory_gpu("a", gpu, size) for gpu in range(count)]))
    left, pods = [size] * count, dict[str, tuple[int, dict[int, int]]]()
    for number in range(data.draw(st.integers(0, 6))):
        shares = {}
        for gpu in data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2)):
            if left[gpu]:
                shares[gpu] = data.draw(st.integers(1, left[gpu]))
                left[gpu] -= shares[gpu]
        if shares:
            pods[f"p{number}"] = (data.draw(st.integers(0, 3)), shares)
    for uid, (priority, shares) in pods.items():
        state.put_pod(bound(uid, "a", *shares.items(), priority=priority))
    slices = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=2))
    one = pod("new", *(container(f"c{n}", count) for n, count in enumerate(slices)))
    rules = [OracleContainer(count) for count in slices]
    evictable = [uid for uid, (priority, _) in pods.items() if priority < 3]

    def room(out: tuple[str, ...]) -> bool:
        used = [0] * count
        for uid, (_, shares) in pods.items():
            for gpu, held in shares.items():
                used[gpu] += 0 if uid in out else held
        return oracle.feasible([OracleGpu("NVIDIA A", size, one) for one in used], rules)

    def cost(out: tuple[str, ...]) -> tuple[list[int], int]:
        counts = [sum(pods[uid][0] == level for uid in out) for level in (2, 1, 0)]
        return counts, sum(sum(pods[uid][1].values()) for uid in out)

    every = chain.from_iterable(combinations(evictable, number) for number in range(len(evictable) + 1))
    good = [out for out in every if room(out)]
    found = victims(state, demand(state, replace(one, priority=3)), "a", 3)
    assert (found is None) == (not good)
    if found is not None:
        assert room(found) and cost(found) == min(map(cost, good))
