# SPDX-License-Identifier: Apache-2.0
"""Random nodes against brute force, and what must hold on any node."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigaslice.core.model import (
    Infeasible,
    NodeState,
    Placement,
    Request,
    Share,
    Topology,
)
from gigaslice.core.placement import Policy, Waiting, best_effort, pair_score, place, place_waiting
from gigaslice.core.placement.subset import Search, Weights, cheapest
from gigaslice.core.placement.tree import build_tree
from tests.unit.gigaslice.core.placement import oracle
from tests.unit.gigaslice.core.placement.nodes import make_gpu, place_slices, units_request, uuid

LEVELS = [10, 20, 30, 40, 50]
LINKS_FIRST = {Policy.GAIA: False, Policy.MAX_SUM: True}


@st.composite
def topologies(draw: st.DrawFn, size: int) -> Topology:
    """A PCIe tree, then no NVLinks, a switch, islands, or an irregular mesh on top."""
    paths = [draw(st.tuples(*[st.integers(0, 1)] * 3)) for _ in range(size)]
    steps = sorted(draw(st.lists(st.sampled_from(LEVELS), min_size=4, max_size=4)), reverse=True)

    def level(i: int, j: int) -> int:
        common = next((n for n in range(3) if paths[i][n] != paths[j][n]), 3)
        return steps[common]

    links = [[0] * size for _ in range(size)]
    style = draw(st.sampled_from(["none", "switch", "islands", "mesh"]))
    island = [draw(st.integers(0, 2)) for _ in range(size)]
    for i, j in combinations(range(size), 2):
        count = {"none": 0, "switch": 6, "islands": 2 * (island[i] == island[j])}.get(style)
        links[i][j] = links[j][i] = draw(st.integers(0, 2)) if count is None else count
    return Topology.build([[level(i, j) for j in range(size)] for i in range(size)], links)


@st.composite
def nodes(draw: st.DrawFn, max_size: int = 7, pools: int = 2) -> NodeState:
    """A node with GPUs of one or two models, some of them unhealthy, some of them in use."""
    size = draw(st.integers(1, max_size))
    topology = draw(topologies(size))
    kinds = [("small", 4), ("large", 6)][: draw(st.integers(1, pools))]
    gpus = []
    for index in range(size):
        model, slices = draw(st.sampled_from(kinds))
        gpus.append(make_gpu(index, slices, model, healthy=draw(st.integers(0, 9)) > 0))
    state = NodeState.build(gpus, topology)
    for gpu in gpus:
        used = draw(st.integers(0, gpu.slices)) if draw(st.booleans()) else 0
        if used:
            share = Share(gpu.uuid, used, draw(st.sampled_from([0, 30, 80])))
            state = state.with_occupant(f"job{gpu.index}", Placement((share,)))
    return state


@st.composite
def requests(draw: st.DrawFn) -> Request:
    some = st.frozensets(st.integers(0, 7).map(uuid), min_size=1)
    only = draw(st.one_of(st.just(frozenset[str]()), st.just(frozenset[str]()), some))
    cores = draw(st.sampled_from([0, 0, 20, 70]))
    if draw(st.integers(0, 2)) == 0:
        units = Fraction(draw(st.integers(1, 16)), draw(st.integers(1, 4)))
        size = draw(st.sampled_from([4, 6]))
        return units_request(units, size, whole_first=draw(st.booleans()), only=only, cores=cores)
    slices = draw(st.one_of(st.none(), st.integers(0, 7)))
    return Request(gpus=draw(st.integers(0, 5)), slices=slices, only=only, cores=cores)


def by_index(state: NodeState, answer: Placement) -> dict[int, int]:
    return {state.position(share.gpu): share.slices for share in answer.shares}


def name(state: NodeState, answer: Placement | Infeasible) -> oracle.Answer:
    return answer.reason.value if isinstance(answer, Infeasible) else by_index(state, answer)


@settings(max_examples=300)
@given(nodes(), requests(), st.sampled_from([*LINKS_FIRST]))
def test_place_is_what_brute_force_finds(state: NodeState, request: Request, policy: Policy) -> None:
    links_first = LINKS_FIRST[policy]
    assert name(state, place(state, request, policy)) == oracle.place(state, request, links_first=links_first)


@pytest.mark.parametrize("seed", range(12))
def test_full_nodes_of_many_shapes_against_brute_force(seed: int) -> None:
    """Many GPUs, many ties, mostly sensible requests: what the shrinking generator above rarely builds."""
    random = Random(seed)
    for _ in range(250):
        state, request, policy = (
            _crowded_node(random),
            _sensible_request(random),
            random.choice([*LINKS_FIRST]),
        )
        expected = oracle.place(state, request, links_first=LINKS_FIRST[policy])
        assert name(state, place(state, request, policy)) == expected, (state, request, policy)


def _crowded_node(random: Random) -> NodeState:
    size = random.choice([4, 5, 6, 6, 7])
    paths = [[random.randrange(2) for _ in range(3)] for _ in range(size)]
    steps = sorted(random.choices(LEVELS, k=4), reverse=True)
    levels, links = [[0] * size for _ in range(size)], [[0] * size for _ in range(size)]
    style = random.choice(["none", "none", "switch", "islands", "sparse", "dense"])
    island = [random.randrange(3) for _ in range(size)]
    for i, j in combinations(range(size), 2):
        split = next((n for n in range(3) if paths[i][n] != paths[j][n]), 3)
        levels[i][j] = levels[j][i] = steps[split]
        bridge = random.choice([1, 2, 2]) if style == "dense" else random.choice([0, 0, 2])
        count = {"none": 0, "switch": 6, "islands": 2 * (island[i] == island[j])}.get(style, bridge)
        links[i][j] = links[j][i] = count
    pools = random.choice([1, 1, 2])
    gpus = []
    for index in range(size):
        model, slices = random.choice([("small", 4), ("large", 6)][:pools])
        gpus.append(make_gpu(index, slices, model, healthy=random.random() > 0.08))
    state, busy = NodeState.build(gpus, Topology.build(levels, links)), random.choice([0.2, 0.5, 0.9])
    for gpu in gpus:
        if random.random() < busy:
            share = Share(gpu.uuid, random.randint(1, gpu.slices), random.choice([0, 0, 40]))
            state = state.with_occupant(f"job{gpu.index}", Placement((share,)))
    return state


def _sensible_request(random: Random) -> Request:
    cores = random.choice([0, 0, 0, 50])
    if random.random() < 0.35:
        units = Fraction(random.choice([1, 2, 3, 5, 5, 7, 9]), random.choice([1, 2, 2, 3]))
        whole_first = random.choice([False, True, True])
        return units_request(units, random.choice([4, 4, 6]), whole_first=whole_first, cores=cores)
    if random.random() < 0.3:
        return Request(total=random.choice([3, 4, 6, 6, 8, 12, 24]), cores=cores)
    gpus, slices = random.choice([1, 1, 2, 2, 3, 3, 4]), random.choice([None, 1, 1, 2, 3, 4])
    return Request(gpus=gpus, slices=slices, cores=cores)


@settings(max_examples=200)
@given(st.data())
def test_tree_is_what_single_linkage_finds(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    topology = data.draw(topologies(size))
    state = NodeState.build([make_gpu(index) for index in range(size)], topology)
    (gpus,) = oracle.pools(state)
    tree = build_tree(topology, tuple(range(size)))
    assert {node.mask for node in tree.inner} == {sum(1 << i for i in node) for node in gpus.nodes}
    assert list(tree.access_cost) == [gpus.access(i) for i in range(size)]


@settings(max_examples=150)
@given(st.data())
def test_best_effort_is_what_writing_out_all_divisions_finds(data: st.DataObject) -> None:
    topology = data.draw(topologies(data.draw(st.integers(1, 7))))
    gpus = st.lists(st.integers(0, topology.size - 1), unique=True)
    available, must = data.draw(gpus), data.draw(st.one_of(st.just([]), gpus))
    size = data.draw(st.integers(0, 8))
    expected = oracle.best_effort(lambda i, j: pair_score(topology, i, j), available, must, size)
    assert best_effort(topology, available, must, size) == expected


@settings(max_examples=150)
@given(nodes(), requests(), st.sampled_from(Policy))
def test_a_placement_fits_and_its_release_is_an_undo(
    state: NodeState, request: Request, policy: Policy
) -> None:
    answer = place(state, request, policy)
    feasible = not isinstance(oracle.place(state, request), str)
    assert isinstance(answer, Placement) is feasible
    if isinstance(answer, Placement):
        after = state.with_occupant("new", answer)
        used = after.usage()
        for gpu, slices, cores in zip(after.gpus, used.slices, used.cores, strict=True):
            assert slices <= gpu.slices
            assert cores <= 100
        assert len(set(answer.uuids)) == len(answer.shares)
        assert len({state.gpu(share.gpu).model for share in answer.shares}) == 1
        assert all(state.gpu(share.gpu).healthy for share in answer.shares)
        assert after.without("new") == state


@settings(max_examples=150)
@given(nodes(), requests(), st.randoms(use_true_random=False), st.sampled_from(Policy))
def test_the_order_of_the_input_changes_nothing(
    state: NodeState, request: Request, random: Random, policy: Policy
) -> None:
    order = list(range(len(state.gpus)))
    jobs = list(state.occupants)
    random.shuffle(order)
    random.shuffle(jobs)
    shuffled = NodeState.build([state.gpus[i] for i in order], state.topology.reordered(order), jobs)
    assert shuffled == state
    assert place(shuffled, request, policy) == place(state, request, policy)


@settings(max_examples=200)
@given(nodes(), st.integers(1, 30), st.one_of(st.none(), st.integers(1, 4)), st.sampled_from(Policy))
def test_slices_in_all_are_exactly_that_many_and_nearly_equal(
    state: NodeState, total: int, gpus: int | None, policy: Policy
) -> None:
    answer = place_slices(state, total, Request(gpus=gpus), policy)
    if isinstance(answer, Placement):
        parts = [share.slices for share in answer.shares]
        assert sum(parts) == total
        assert max(parts) - min(parts) <= 1
        assert len(parts) == (gpus or len(parts))
        state.with_occupant("new", answer)
    if gpus is None:
        there = len(answer.shares) if isinstance(answer, Placement) else None
        assert there == oracle.fewest_now(state, Request(total=total))


@settings(max_examples=200)
@given(nodes(max_size=6), st.integers(1, 4), st.integers(1, 6), st.sampled_from([0, 0, 3, 4, 6, 8, 12, 24]))
def test_waiting_takes_the_gpus_that_lack_the_least(
    state: NodeState, gpus: int, slices: int, total: int
) -> None:
    for gpu in state.gpus:
        state = state.with_health(gpu.uuid, healthy=True)
    request = Request(total=total) if total else Request(gpus=gpus, slices=slices)
    answer, now = place_waiting(state, request), place(state, request)
    if isinstance(now, Placement):
        assert answer == Waiting(now, ())
        return
    if now.permanent:
        assert answer == now
        return
    assert not isinstance(answer, Infeasible)
    assert sum(missing.slices for missing in answer.missing) == oracle.least_over(state, request)
    after = state.with_occupant("new", answer.placement, overcommit=True).usage()
    for missing in answer.missing:
        gpu = state.position(missing.gpu)
        assert missing.slices == max(0, after.slices[gpu] - state.gpus[gpu].slices)
        assert missing.bytes == state.gpus[gpu].bytes_of(missing.slices)


def test_the_two_searches_agree_where_both_apply() -> None:
    """A uniform tree is searched from the leaves up and a mesh in depth; force the second on the first's ground."""
    levels = [[LEVELS[(i ^ j).bit_length()] if i != j else 0 for j in range(8)] for i in range(8)]
    tree = build_tree(Topology.build(levels), tuple(range(8)))
    assert tree.uniform
    for candidates in range(1, 256, 3):
        for count in range(2, 6):
            weights = Weights([gpu % 3 for gpu in range(8)], [-gpu % 2 for gpu in range(8)])
            search = Search(tree, 0xFF, candidates, count, weights)
            assert cheapest(search) == cheapest(replace(search, tree=replace(tree, uniform=False)))
