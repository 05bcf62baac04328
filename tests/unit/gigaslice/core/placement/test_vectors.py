# SPDX-License-Identifier: Apache-2.0
"""Every worked example of vectors.json: the figures and tables of the papers, and one case per rule of placement."""

from typing import Any

import pytest

from gigaslice.core.allocation.start_decision import start_shortfall
from gigaslice.core.allocation.table import Allocation, AllocationOptions, AllocationTable, holds_of
from gigaslice.core.deviceplugin.origin import DevicePluginOrigin
from gigaslice.core.limits.live_limits import limits_now
from gigaslice.core.model import Infeasible, NodeState, Placement, Request
from gigaslice.core.placement import best_effort, pair_score
from gigaslice.core.placement.pool_state import PoolState, set_up
from gigaslice.core.placement.tree import Inner, bits, build_tree
from tests.unit.gigaslice.core.placement.nodes import (
    VECTORS,
    as_pairs,
    placement,
    uuid,
    vector_answer,
    vector_node,
)


def _names(cases: list[dict[str, Any]]) -> list[str]:
    return [case.get("id") or case["topology"] for case in cases]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=_names(VECTORS["cases"]))
def test_case(case: dict[str, Any]) -> None:
    state = vector_node(case["topology"])
    elastic = {step["job"]: step["req"] for step in case["steps"] if step.get("req", {}).get("elastic")}
    for step in case["steps"]:
        if step["op"] == "limits":
            _check_limits(state, elastic, step["expect"])
        else:
            state = STEPS[step["op"]](state, step)


def _alloc(state: NodeState, step: dict[str, Any]) -> NodeState:
    answer = vector_answer(state, step["req"])
    if "infeasible" in step:
        assert isinstance(answer, Infeasible)
        assert answer.reason.value == step["infeasible"]
        return state
    assert as_pairs(answer) == step["expect"]
    assert isinstance(answer, Placement)
    return state.with_occupant(step["job"], answer)


def _preset(state: NodeState, step: dict[str, Any]) -> NodeState:
    return state.with_occupant(step["job"], placement(*step["alloc"]))


def _check_state(state: NodeState, step: dict[str, Any]) -> NodeState:
    (pool_state,) = set_up(state, Request())
    seen = {
        "free": list(pool_state.free),
        "whole": bits(pool_state.whole),
        "fragment_count": pool_state.fragment.bit_count(),
        "cheapest": _cheapest(pool_state),
        "holders": {str(i): list(jobs) for i, jobs in enumerate(state.usage().holders)},
    }
    for key in step.keys() - {"op", "holders"}:
        assert seen[key] == step[key], key
    for gpu, jobs in step.get("holders", {}).items():
        assert seen["holders"][gpu] == jobs
    return state


def _cheapest(pool_state: PoolState) -> list[int]:
    costs = pool_state.tree.access_cost
    return [gpu for gpu, cost in enumerate(costs) if cost == min(costs)]


def _check_limits(state: NodeState, elastic: dict[str, Any], expected: dict[str, Any]) -> None:
    """What the limits pages of the jobs say, as the node agent works it out from its allocation table."""
    table = AllocationTable()
    for number, one in enumerate(state.occupants, start=1):
        holds = holds_of(Placement(one.shares), state.gpus)
        request = elastic.get(one.name)
        options = AllocationOptions(elastic=bool(request), max_slices=(request or {}).get("max"))
        table = table.with_allocation(
            Allocation(one.name, number, 0.0, holds, "", DevicePluginOrigin(), policy=options)
        )
    limits = {
        job: [
            [state.position(gpu), memory // state.gpu(gpu).slice_bytes] for gpu, (memory, _) in of_job.items()
        ]
        for job, of_job in limits_now(table, state.gpus, {}).items()
    }
    assert limits == expected


def _check_start(state: NodeState, step: dict[str, Any]) -> NodeState:
    others: dict[str, int] = {}
    for job, slices in step["usage"].items():
        (share,) = state.occupant(job).shares
        others[share.gpu] = state.gpu(share.gpu).bytes_of(slices)
    shares = state.occupant(step["job"]).shares
    assert (start_shortfall(state, shares, others) == ()) is step["expect"]
    return state


STEPS = {
    "alloc": _alloc,
    "preset": _preset,
    "release": lambda state, step: state.without(step["job"]),
    "unhealthy": lambda state, step: state.with_health(uuid(step["gpu"]), healthy=False),
    "healthy": lambda state, step: state.with_health(uuid(step["gpu"]), healthy=True),
    "state": _check_state,
    "start": _check_start,
}


@pytest.mark.parametrize("case", VECTORS["trees"], ids=_names(VECTORS["trees"]))
def test_tree(case: dict[str, Any]) -> None:
    state = vector_node(case["topology"])
    (pool,) = [pool for pool in state.pools() if pool.model == case.get("model", pool.model)]
    tree = build_tree(state.topology, pool.members)
    assert list(tree.access_cost) == case["access_cost"]
    assert _nested(tree.inner[-1]) == case["tree"]
    if "slices" in case:
        assert [gpu.slices for gpu in state.gpus] == case["slices"]


def _nested(node: Inner | int) -> Any:
    return node if isinstance(node, int) else [node.kind, *map(_nested, node.children)]


@pytest.mark.parametrize("case", VECTORS["pair_scores"])
def test_pair_score(case: dict[str, Any]) -> None:
    one, other = case["pair"]
    topology = vector_node(case["topology"]).topology
    assert pair_score(topology, one, other) == pair_score(topology, other, one) == case["score"]


@pytest.mark.parametrize("case", VECTORS["best_effort"], ids=_names(VECTORS["best_effort"]))
def test_best_effort(case: dict[str, Any]) -> None:
    topology = vector_node(case["topology"]).topology
    chosen = best_effort(topology, case["available"], case["must_include"], case["size"])
    assert (None if chosen is None else list(chosen)) == case["expect"]


PAPER_TABLES = {
    "I, one GPU": ("paper-exp1-one", {2, 3}),
    "I, two GPUs": ("paper-exp1-two", {(2, 3)}),
    "II": ("paper-exp2", {2}),
    "III": ("paper-exp3", {3}),
    "IV": ("paper-exp4", {(0, 1)}),
}


@pytest.mark.parametrize("table", PAPER_TABLES)
def test_tables_of_the_gaia_paper(table: str) -> None:
    """The answer is one that the paper's 500 runs gave, and every GPU they never gave is not in it."""
    name, seen = PAPER_TABLES[table]
    case = next(case for case in VECTORS["cases"] if case["id"] == name)
    state = vector_node(case["topology"])
    for step in case["steps"]:
        if step["op"] == "preset":
            state = _preset(state, step)
        elif step["op"] == "alloc":
            answer = vector_answer(state, step["req"])
            gpus = tuple(gpu for gpu, _ in as_pairs(answer))
            assert (gpus[0] if len(gpus) == 1 else gpus) in seen
            assert isinstance(answer, Placement)
            state = state.with_occupant(step["job"], answer)
