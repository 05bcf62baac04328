# SPDX-License-Identifier: Apache-2.0
"""Choices against the oracle: an assignment is found exactly where there is one, and it keeps every rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gigaslice.core.classes.resource_class import ClassShare, ResourceClass
from gigaslice.core.classes.selector import parse_selector
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.refusal import Refusal
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import (
    ContainerKind,
    NodeState,
    Occupant,
    Placement,
    Pod,
    Share,
    SliceUnit,
    parse_options,
)
from gigaslice.core.placement import Policy, place
from gigaslice.core.units import parse_bytes
from tests.fakes.clusters import CHECKED, bound, container, facts, inventory_gpu, pod, uuid
from tests.fakes.gpus import GIB, pairs_topology
from tests.unit.gigaslice.core.cluster import oracle
from tests.unit.gigaslice.core.cluster.oracle import OracleContainer, OracleGpu

MODELS = ("NVIDIA A", "NVIDIA B")
CLASSES = {
    "a": ["NVIDIA A"],
    "b": ["NVIDIA B"],
    "any": list(MODELS),
    "share": list(MODELS),
    "part": ["NVIDIA A"],
    "busy": ["NVIDIA B"],
}
SHARES = {"share": (2, 0), "part": (1, 0), "busy": (1, 30)}
"""Slices and compute of the classes that are shares of a GPU."""


def a_class(name: str) -> ResourceClass:
    selector = parse_selector(
        {"matchExpressions": [{"key": "model", "operator": "In", "values": CLASSES[name]}]}
    )
    slices, cores = SHARES.get(name, (0, 0))
    share = ClassShare(slices * GIB, cores) if slices else None
    return ResourceClass(name, selector, share)


@st.composite
def gpus(draw: st.DrawFn, most: int = 4) -> list[OracleGpu]:
    found = []
    for _ in range(draw(st.integers(1, most))):
        model, size = draw(st.sampled_from([("NVIDIA A", 4), ("NVIDIA A", 4), ("NVIDIA B", 3)]))
        used = draw(st.integers(0, size))
        cores = draw(st.sampled_from([0, 0, 40])) if used else 0
        found.append(OracleGpu(model, size, used, cores, shut=draw(st.integers(0, 9)) == 0))
    return found


@st.composite
def containers(draw: st.DrawFn, number: int) -> tuple[OracleContainer, dict[str, int]]:
    """A container, and how many units of each class it names."""
    lends = draw(st.booleans()) if number == 0 else False
    way = draw(st.sampled_from(["slices", "slices", "gpus", "classes", "classes"]))
    cores = draw(st.sampled_from([0, 0, 30, 60]))
    exclusive = draw(st.integers(0, 5)) == 0
    if way == "gpus":
        return OracleContainer(gpus=draw(st.integers(1, 2)), exclusive=exclusive, lends=lends), {}
    if way == "classes":
        names = draw(st.sets(st.sampled_from(sorted(CLASSES)), min_size=1, max_size=2))
        counts = {name: draw(st.integers(1, 2)) for name in names}
        return OracleContainer(cores=cores, exclusive=exclusive, lends=lends), counts
    slices = draw(st.integers(1, 9))
    how = draw(st.sampled_from(["", "", "divided", "parts", "whole_first"]))
    if how == "divided":
        assume(slices > 1)
        return (
            OracleContainer(
                slices,
                divided=draw(st.integers(2, min(3, slices))),
                cores=cores,
                exclusive=exclusive,
                lends=lends,
            ),
            {},
        )
    if how == "parts":
        parts = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        return OracleContainer(sum(parts), parts=parts, cores=cores, exclusive=exclusive, lends=lends), {}
    first = how == "whole_first"
    return OracleContainer(slices, whole_first=first, cores=cores, exclusive=exclusive, lends=lends), {}


def a_node(found: list[OracleGpu]) -> ClusterState:
    state = ClusterState(CHECKED)
    for name in CLASSES:
        state.put_class(a_class(name))
    state.put_node(
        facts(
            "n",
            [
                inventory_gpu("n", number, gpu.size, model=gpu.model, unhealthy="Xid 79" if gpu.shut else "")
                for number, gpu in enumerate(found)
            ],
            pairs_topology(len(found)),
        )
    )
    for number, gpu in enumerate(found):
        if gpu.used:
            state.put_pod(bound(f"other-{number}", "n", (number, gpu.used, gpu.cores)))
    return state


def annotations(one: OracleContainer, name: str) -> dict[str, str]:
    said = {
        "gpus": str(one.divided) if one.divided else "",
        "memory": ",".join(map(str, one.parts)),
        "split": "whole-first" if one.whole_first else "",
        "cores": str(one.cores) if one.cores else "",
        "exclusive": "true" if one.exclusive else "",
    }
    return {f"{key}.{name}": text for key, text in said.items() if text}


def a_pod(asked: list[tuple[OracleContainer, dict[str, int]]], **more: str) -> Pod:
    said: dict[str, str] = dict(more)
    made = []
    for number, (one, counts) in enumerate(asked):
        kind = ContainerKind.INIT if one.lends else ContainerKind.APP
        made.append(container(f"c{number}", one.slices, one.gpus, counts, kind))
        said |= annotations(one, f"c{number}")
    return pod("new", *made, annotations=said)


def with_classes(found: list[OracleGpu], one: OracleContainer, counts: dict[str, int]) -> OracleContainer:
    if not counts:
        return one
    members = {
        name: frozenset(number for number, gpu in enumerate(found) if gpu.model in CLASSES[name])
        for name in counts
    }
    rows = tuple((members[name], counts[name], *SHARES.get(name, (0, 0))) for name in sorted(counts))
    return OracleContainer(classes=rows, cores=one.cores, exclusive=one.exclusive, lends=one.lends)


def as_ways(found: Assignment, number: int) -> list[oracle.Ways]:
    return [
        {
            int(share.gpu.rpartition("-")[2]): oracle.Amount(share.slices, share.cores)
            for share in found.containers[f"c{one}"]
        }
        for one in range(number)
    ]


def as_slices(found: Assignment, number: int) -> list[dict[int, int]]:
    return [{gpu: one.slices for gpu, one in way.items()} for way in as_ways(found, number)]


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_an_assignment_is_found_where_there_is_one(data: st.DataObject) -> None:
    found = data.draw(gpus())
    asked = [data.draw(containers(number)) for number in range(data.draw(st.integers(1, 3)))]
    state = a_node(found)
    demand = state.demand_of(a_pod(asked))
    assume(isinstance(demand, PodDemand))
    assert isinstance(demand, PodDemand)
    rules = [with_classes(found, *one) for one in asked]
    answer = state.choose(demand, "n")
    assert isinstance(answer, Assignment) == oracle.feasible(found, rules), answer
    if isinstance(answer, Assignment):
        given = as_ways(answer, len(asked))
        assert oracle.valid(found, rules, given)
        if not rules[0].lends:
            assert len(given[0]) == oracle.fewest(found, rules)
        assert state.filter(demand, ["n"]) == (["n"], {})
        assert state.best(demand, ["n"], 9) == ["n"]
    else:
        assert state.filter(demand, ["n"]) == ([], {"n": answer})


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_containers_that_belong_together(data: st.DataObject) -> None:
    found = data.draw(gpus())
    asked = [
        (
            OracleContainer(
                data.draw(st.integers(1, 4)), divided=1, lends=data.draw(st.booleans()) and number == 0
            ),
            {},
        )
        for number in range(data.draw(st.integers(1, 3)))
    ]
    state = a_node(found)
    demand = state.demand_of(a_pod(asked, **{"same-gpu": "true"}))
    assert isinstance(demand, PodDemand)
    answer = state.choose(demand, "n")
    assert isinstance(answer, Assignment) == oracle.feasible(found, [one for one, _ in asked], together=1)
    if isinstance(answer, Assignment):
        assert len({gpu for way in as_ways(answer, len(asked)) for gpu in way}) == 1
        assert oracle.valid(found, [one for one, _ in asked], as_ways(answer, len(asked)))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_one_container_is_placed_as_its_agent_would(data: st.DataObject) -> None:
    found = data.draw(gpus(most=8))
    one, counts = data.draw(containers(1))
    assume(not counts)
    policy = data.draw(st.sampled_from(Policy))
    asked = a_pod([(one, {})])
    state = a_node(found)
    state.policy = policy
    demand = state.demand_of(asked)
    assume(isinstance(demand, PodDemand))
    assert isinstance(demand, PodDemand)
    options = parse_options(asked.annotations, "c0", SliceUnit(GIB, parse_bytes), CHECKED.rights)
    occupants = [
        Occupant(f"other-{number}", (Share(uuid("n", number), gpu.used, gpu.cores),))
        for number, gpu in enumerate(found)
        if gpu.used
    ]
    inventory = [
        inventory_gpu("n", number, gpu.size, model=gpu.model, unhealthy="Xid 79" if gpu.shut else "").gpu
        for number, gpu in enumerate(found)
    ]
    request = options.request(one.slices)
    if one.gpus:
        request = replace(request, gpus=one.gpus, total=None, slices=None)
    there = place(NodeState.build(inventory, pairs_topology(len(found)), occupants), request, policy)
    here = state.choose(demand, "n")
    if isinstance(there, Placement):
        assert here == Assignment({"c0": there.shares})
    else:
        assert isinstance(here, Refusal)
        assert here.permanent == there.permanent or here.permanent


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_nothing_is_promised_twice(data: st.DataObject) -> None:
    found = [OracleGpu(gpu.model, gpu.size, shut=gpu.shut) for gpu in data.draw(gpus())]
    state = a_node(found)
    alone: dict[int, str] = {}
    holders: dict[int, set[str]] = {}
    for number in range(data.draw(st.integers(1, 8))):
        uid = f"pod-{number}"
        asked = [data.draw(containers(one)) for one in range(data.draw(st.integers(1, 2)))]
        one = a_pod(asked)
        demand = state.demand_of(one)
        if not isinstance(demand, PodDemand):
            continue
        answer = state.choose(demand, "n")
        if not isinstance(answer, Assignment):
            continue
        if data.draw(st.booleans()):
            state.reserve(uid, "n", answer, demand)
        if data.draw(st.booleans()):
            said = {**one.annotations, ASSIGNMENT: answer.encode()}
            state.put_pod(Pod("team", uid, uid, said, one.containers, node="n"))
        elif not state.reserved_on(uid):
            state.reserve(uid, "n", answer, demand)
        for held in state.holders("n"):
            gpu = held.gpu.gpu.index
            assert sum(one.slices for one in held.holders) <= held.gpu.gpu.slices
            assert len({one.holding.id for one in held.holders}) == len(held.holders)
            holders[gpu] = {one.holding.id for one in held.holders}
            assert all(one.cores <= 100 for one in held.holders)
        for (rule, _), name in zip(asked, answer.containers, strict=True):
            for share in answer.containers[name]:
                gpu = int(share.gpu.rpartition("-")[2])
                assert not found[gpu].shut
                if rule.exclusive:
                    alone.setdefault(gpu, uid)
        for gpu, owner in alone.items():
            assert holders[gpu] <= {owner}


@st.composite
def two_models(draw: st.DrawFn) -> list[OracleGpu]:
    """A few large GPUs, mostly full, and more small ones."""
    large = [
        OracleGpu("NVIDIA A", 6, draw(st.sampled_from([0, 2, 5, 6]))) for _ in range(draw(st.integers(1, 2)))
    ]
    small = [OracleGpu("NVIDIA B", 3, draw(st.integers(0, 2))) for _ in range(draw(st.integers(1, 4)))]
    return draw(st.permutations([*large, *small]))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_as_few_gpus_as_have_room(data: st.DataObject) -> None:
    """More GPUs of a smaller model are taken where none with fewer serves, for a container alone and for several."""
    found = data.draw(two_models())
    asked = [
        (
            OracleContainer(
                data.draw(st.integers(1, 9)),
                whole_first=data.draw(st.booleans()),
                cores=data.draw(st.sampled_from([0, 0, 60])),
                exclusive=data.draw(st.integers(0, 4)) == 0,
            ),
            {},
        )
        for _ in range(data.draw(st.integers(1, 2)))
    ]
    state = a_node(found)
    demand = state.demand_of(a_pod(asked))
    assert isinstance(demand, PodDemand)
    rules = [one for one, _ in asked]
    answer = state.choose(demand, "n")
    assert isinstance(answer, Assignment) == oracle.feasible(found, rules), answer
    if isinstance(answer, Assignment):
        given = as_ways(answer, len(asked))
        assert oracle.valid(found, rules, given)
        assert len(given[0]) == oracle.fewest(found, rules)
        assert state.best(demand, ["n"], 1) == ["n"]


@pytest.mark.parametrize("said, expected", [
    ({}, [15, 15]), ({"exclusive": "true"}, [15, 15]), ({"gpus": "2"}, [15, 15]),
    ({"split": "whole-first"}, [14, 16]), ({"gpus": "1"}, None), ({"same-gpu": "true"}, None),
])  # fmt: skip
def test_two_small_gpus_where_the_large_one_is_full(said: dict[str, str], expected: list[int] | None) -> None:
    found = [OracleGpu("NVIDIA H100", 80, 80), *[OracleGpu("NVIDIA V100", 16)] * 5]
    state = a_node(found)
    demand = state.demand_of(pod("new", container(slices=30), annotations=said))
    assert isinstance(demand, PodDemand)
    answer = state.choose(demand, "n")
    if expected is None:
        assert isinstance(answer, Refusal) and not answer.permanent
        return
    assert isinstance(answer, Assignment)
    (shares,) = answer.containers.values()
    assert sorted(share.slices for share in shares) == expected
    assert "0" not in {share.gpu[-1] for share in shares}
    state = a_node([replace(found[0], used=50), *found[1:]])
    large = state.choose(demand, "n")
    assert isinstance(large, Assignment)
    assert ({share.gpu[-1] for share in large.containers["main"]} == {"0"}) == (
        said in ({}, {"split": "whole-first"})
    )


def test_what_could_be_anywhere_leaves_what_others_need() -> None:
    """The first container would get GPU 0 or 1, which are alike, and the second needs both."""
    found = [OracleGpu("NVIDIA A", 4), OracleGpu("NVIDIA A", 4), OracleGpu("NVIDIA B", 4)]
    state = a_node(found)
    demand = state.demand_of(a_pod([(OracleContainer(), {"any": 1}), (OracleContainer(), {"a": 2})]))
    assert isinstance(demand, PodDemand)
    answer = state.choose(demand, "n")
    assert isinstance(answer, Assignment) and as_slices(answer, 2) == [{2: 4}, {0: 4, 1: 4}]
    one = state.demand_of(a_pod([(OracleContainer(), {"any": 1, "a": 2})]))
    assert isinstance(one, PodDemand)
    answer = state.choose(one, "n")
    assert isinstance(answer, Assignment) and as_slices(answer, 1) == [{0: 4, 1: 4, 2: 4}]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_search_gives_up_no_pod_that_people_write(number: int) -> None:
    """Sixteen GPUs of eight slices, and containers that fill them to the last slice in only a few ways."""
    state = ClusterState(CHECKED)
    state.put_node(facts("n", [inventory_gpu("n", gpu, 8) for gpu in range(16)]))
    sizes = [5, 3] * (6 * number)
    one = pod("new", *(container(f"c{index}", size) for index, size in enumerate(sizes[:30])))
    demand = state.demand_of(one)
    assert isinstance(demand, PodDemand)
    answer = state.choose(demand, "n")
    assert isinstance(answer, Assignment)
