# SPDX-License-Identifier: Apache-2.0
"""Sets of pods whose end makes room, against every set there is, each tried in a cluster without these pods."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.ending_pods import ending_pods
from gigaslice.core.cluster.holding import HeldShare, Holding, PodConsumer
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Occupant, Pod, Share
from tests.fakes.clusters import CHECKED, bound, container, demand, facts, inventory_gpu, pod, uuid

SIZE = 6


def node(*pods: tuple[str, list[tuple[int, ...]]], gpus: int = 2) -> ClusterState:
    """Node "a" with GPUs of 6 slices, and pods: UID, shares."""
    state = ClusterState(CHECKED)
    state.put_node(facts("a", [inventory_gpu("a", gpu, SIZE) for gpu in range(gpus)]))
    for uid, shares in pods:
        state.put_pod(bound(uid, "a", *shares))
    return state


def of(state: ClusterState, waiting: Pod, **more: int) -> list[tuple[str, ...]]:
    sets = ending_pods(state, demand(state, waiting), state.nodes, **more)
    return [tuple(sorted(ending.uids)) for ending in sets]


def test_one_pod_is_less_than_two_and_a_small_one_less_than_a_large_one() -> None:
    state = node(("a", [(0, 2)]), ("b", [(0, 3)]), ("c", [(1, 4)]), ("d", [(1, 2)]))
    assert of(state, pod("new", container(slices=3))) == [("a",)], "1 + 2 are 3"
    assert of(state, pod("new", container(slices=4))) == [("b",)], "1 + 3 are 4, and c has 4 itself"
    assert of(state, pod("new", container(gpus=1))) == [("a", "b")], "5 slices rather than 6"
    assert of(state, pod("new", container(gpus=2))) == [("a", "b", "c", "d")]


def test_a_set_tells_what_its_pods_have() -> None:
    state = node(("a", [(0, 6), (1, 2)]), ("b", [(1, 3)]))
    (ending,) = ending_pods(state, demand(state, pod("new", container(gpus=2))), ["a"])
    assert [(one.name, one.shares) for one in ending.pods] == [
        ("team/pod-a", ((0, 6), (1, 2))),
        ("team/pod-b", ((1, 3),)),
    ]
    assert ending.uids == ("a", "b")


def test_a_pod_on_two_gpus_counts_once() -> None:
    state = node(("a", [(0, 3), (1, 3)]), ("b", [(0, 3)]), ("c", [(1, 2)]), ("d", [(1, 1)]))
    assert of(state, pod("new", container("x", 3), container("y", 3))) == [("a",)]


def test_a_share_of_compute_counts_beside_the_memory() -> None:
    state = node(("a", [(0, 4, 0)]), ("b", [(0, 1, 50)]), ("c", [(0, 1, 10)]), gpus=1)
    shares = {"annotations": {"cores": "60"}}
    assert of(state, pod("new", container(slices=1), **shares)) == [("b",)], (
        "90 % are left then, and 50 % without c"
    )
    shares = {"annotations": {"cores": "95"}}
    assert of(state, pod("new", container(slices=1), **shares)) == [("b", "c")], "a has no compute to give"


def test_what_is_shared_is_free_when_the_last_has_ended() -> None:
    state = node(("c", [(0, 3)]), ("d", [(0, 1)]), gpus=1)
    claim = Holding(
        "claim", (HeldShare(uuid("a", 0), 2),), (PodConsumer("a", "t", "a"), PodConsumer("b", "t", "b"))
    )
    state.put_holding("a", claim)
    assert of(state, pod("new", container(slices=2))) == [("c",)]
    assert of(state, pod("new", container(gpus=1))) == [("a", "b", "c", "d")]
    state.drop_pod("c")
    assert of(state, pod("new", container(slices=5))) == [("a", "b")], "d frees 1, and 4 are not enough"


def test_whoever_cannot_be_named_stays() -> None:
    state = ClusterState()
    held = (Occupant("uid-of-a-foreign-pod", (Share(uuid("a", 0), 16),)),)
    state.put_node(facts("a", 1, held=held))
    state.put_node(facts("b", 1))
    state.reserve("r", "b", Assignment({"main": (Share(uuid("b", 0), 16),)}))
    assert of(state, pod("new", container(slices=8))) == []


def test_one_set_for_each_node_the_fewest_pods_first() -> None:
    state = ClusterState()
    for name, held in (("a", [8, 8]), ("b", [12]), ("c", [4, 4, 8]), ("d", [16]), ("e", [5, 11])):
        state.put_node(facts(name, 1))
        for number, slices in enumerate(held):
            state.put_pod(bound(f"{name}{number}", name, (0, slices)))
    assert of(state, pod("new", container(gpus=1))) == [("b0",), ("d0",), ("a0", "a1")]
    assert of(state, pod("new", container(gpus=1)), most=9)[2:] == [
        ("a0", "a1"),
        ("e0", "e1"),
        ("c0", "c1", "c2"),
    ]


def test_too_many_sets_still_spare_what_can_be_spared() -> None:
    pods = [(f"p{number:02}", [(number % 2, 1)]) for number in range(12)]
    state = node(*pods)
    waiting = pod("new", container(slices=4))
    (exact,) = of(state, waiting)
    assert len(exact) == 4
    (rough,) = of(state, waiting, tries=1)
    wanted = demand(state, waiting)
    assert state.without(rough).refusal(wanted, "a") is None
    assert all(state.without(set(rough) - {uid}).refusal(wanted, "a") for uid in rough)


def test_sets_are_named_on_as_many_nodes_when_the_effort_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigaslice.core.cluster.ending_pods._MOST_EFFORT", 0)
    state = ClusterState()
    for name in "abcd":
        state.put_node(facts(name, 1))
        for number in range(4):
            state.put_pod(bound(f"{name}{number}", name, (0, 4)))
    waiting = pod("new", container(slices=7))
    sets = of(state, waiting)
    assert [len(uids) for uids in sets] == [2, 2, 2]
    for uids in sets:
        assert state.without(uids).refusal(demand(state, waiting), uids[0][0]) is None


@dataclass
class Draw:
    """A small cluster: GPUs of each node, pods, and claims that pods share."""

    gpus: dict[str, int]
    host: int
    pods: list[Pod] = field(default_factory=list)
    claims: list[tuple[str, Holding]] = field(default_factory=list)

    def state(self, out: Collection[str] = ()) -> ClusterState:
        """The cluster as it is when some pods have ended, made anew."""
        state = ClusterState(CHECKED)
        lent = {"host_bytes": self.host << 30} if self.host else {}
        for name, count in self.gpus.items():
            state.put_node(facts(name, [inventory_gpu(name, gpu, SIZE, **lent) for gpu in range(count)]))
        for one in self.pods:
            if one.uid not in out:
                state.put_pod(one)
        for name, claim in self.claims:
            if any(user.uid not in out for user in claim.consumers):
                state.put_holding(name, claim)
        return state

    def slices(self) -> dict[str, dict[str, int]]:
        """By node and UID."""
        state, slices = self.state(), dict[str, dict[str, int]]()
        for name in self.gpus:
            slices[name] = {}
            for holder in (holder for gpu in state.holders(name) for holder in gpu.holders):
                for user in holder.holding.consumers:
                    slices[name][user.uid] = slices[name].get(user.uid, 0) + holder.slices
        return slices


@st.composite
def clusters(draw: st.DrawFn) -> Draw:
    names = ["a", "b"][: draw(st.integers(1, 2))]
    found = Draw({name: draw(st.integers(1, 3)) for name in names}, draw(st.sampled_from([0, 0, 0, 3])))
    for name in names:
        left = [[SIZE, 100] for _ in range(found.gpus[name])]
        for number in range(draw(st.integers(0, 5))):
            shares = draw(some_shares(left))
            if not shares:
                continue
            if draw(st.integers(0, 4)) == 0:
                users = draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True))
                held = tuple(HeldShare(uuid(name, gpu), slices, cores) for gpu, slices, cores in shares)
                by = tuple(PodConsumer(f"{name}-{user}", "t", f"{name}-{user}") for user in users)
                found.claims.append((name, Holding(f"claim-{name}{number}", held, by)))
                continue
            words = {"exclusive": "true"} if draw(st.integers(0, 5)) == 0 else {}
            words |= {"oversubscribe": "true"} if found.host and draw(st.booleans()) else {}
            found.pods.append(bound(f"{name}{number}", name, *shares, annotations=_prefixed(words)))
    return found


@st.composite
def some_shares(draw: st.DrawFn, left: list[list[int]]) -> list[tuple[int, int, int]]:
    """Shares of one or two GPUs, as far as there is something left of them."""
    shares = []
    for gpu in sorted(draw(st.sets(st.integers(0, len(left) - 1), min_size=1, max_size=2))):
        free, free_cores = left[gpu]
        if free:
            slices = draw(st.integers(1, free))
            cores = draw(st.sampled_from([core for core in (0, 0, 30, 60) if core <= free_cores]))
            shares.append((gpu, slices, cores))
            left[gpu] = [free - slices, free_cores - cores]
    return shares


@given(clusters(), st.data())
@settings(max_examples=250, deadline=None)
def test_the_cheapest_sets_are_found(cluster: Draw, data: st.DataObject) -> None:
    full, slices = cluster.state(), cluster.slices()
    waiting = pod("new", *_containers(data), annotations=_annotations(data))
    wanted = full.demand_of(waiting)
    if not isinstance(wanted, PodDemand):
        return
    refused = [name for name in full.nodes if full.refusal(wanted, name) is not None]
    best = list[tuple[int, int, str]]()
    for name in refused:
        uids = sorted(slices[name])
        every = chain.from_iterable(combinations(uids, count) for count in range(1, len(uids) + 1))
        prices = [
            (len(out), sum(slices[name][uid] for uid in out), name)
            for out in every
            if cluster.state(out).refusal(wanted, name) is None
        ]
        best += [min(prices)] if prices else []
    found = ending_pods(full, wanted, refused)
    assert [ending.order for ending in found] == sorted(best)[:3]
    for ending in found:
        assert cluster.state(ending.uids).refusal(wanted, ending.node) is None


def _prefixed(annotations: dict[str, str]) -> dict[str, str]:
    return {f"gigaslice.io/{key}": text for key, text in annotations.items()}


def _containers(data: st.DataObject) -> list:
    if data.draw(st.integers(0, 3)) == 0:
        return [container(gpus=data.draw(st.integers(1, 3)))]
    count = data.draw(st.integers(1, 2))
    return [container(f"c{number}", data.draw(st.integers(1, 9))) for number in range(count)]


def _annotations(data: st.DataObject) -> dict[str, str]:
    found = {}
    if data.draw(st.integers(0, 3)) == 0:
        found["cores"] = str(data.draw(st.sampled_from([20, 50, 80])))
    if data.draw(st.integers(0, 5)) == 0:
        found["exclusive"] = "true"
    if data.draw(st.integers(0, 5)) == 0:
        found["gpus"] = "2"
    if data.draw(st.integers(0, 3)) == 0:
        found["oversubscribe"] = "true"
    return found
