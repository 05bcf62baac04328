# SPDX-License-Identifier: Apache-2.0
"""A normalised room stands for others only where no pod can tell them apart, and then the search sees few of them."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gigaslice.core.cluster import evaluator as evaluator_module
from gigaslice.core.cluster.evaluator import PodEvaluator
from gigaslice.core.cluster.hardware import GpuRoom
from gigaslice.core.cluster.refusal import RefusalReason
from gigaslice.core.cluster.refusal_reason import refusal_reason
from gigaslice.core.cluster.room_normalizer import RoomNormalizer
from gigaslice.core.cluster.search import Matcher
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.placement import Policy
from tests.fakes.clusters import bound, container, demand, facts, inventory_gpu, pod
from tests.fakes.gpus import GIB
from tests.unit.gigaslice.core.cluster.oracle import OracleContainer, OracleGpu
from tests.unit.gigaslice.core.cluster.test_choose_properties import gpus, two_models
from tests.unit.gigaslice.core.cluster.test_sequential_ranking import Asked, alike, pods, simple, situation


@st.composite
def crowds(draw: st.DrawFn) -> Asked:
    """Containers that fit alone more often than together."""
    sizes = st.sampled_from(
        [OracleContainer(1), OracleContainer(2), OracleContainer(3), OracleContainer(gpus=1)]
    )
    shares = st.sampled_from([OracleContainer(1, cores=30), OracleContainer(1, cores=60)])
    return [(draw(st.one_of(sizes, shares)), {}) for _ in range(draw(st.integers(2, 5)))]


@given(st.one_of(gpus(most=6), alike(), two_models()), st.one_of(pods(), simple(2), crowds()), st.booleans())
@settings(max_examples=600, deadline=None)
def test_a_pod_cannot_tell_a_normalized_room_apart(
    node: list[OracleGpu], asked: Asked, together: bool
) -> None:
    assume(not together or all(not counts and not rules.whole_first for rules, counts in asked))
    problem, room, unhealthy = situation(node, asked, **({"same-gpu": "true"} if together else {}))
    assume(problem.never is None)
    normalizer = RoomNormalizer(problem)
    normalized = normalizer.normalized(room)
    assert normalizer.normalized(normalized) == normalized
    expected = refusal_reason(problem, room, unhealthy)
    assert refusal_reason(problem, normalized, unhealthy) is expected
    if not together:
        searched, found_in_both = (
            Matcher(problem.hardware, problem.blocks).solve(0, each) is not None
            for each in (room, normalized)
        )
        assert searched == found_in_both
    refusal = PodEvaluator(problem, Policy.GAIA, spread=False).refusal(room, unhealthy)
    assert (refusal.reason if refusal else None) is expected


def test_what_no_sum_of_parts_uses_is_left_out() -> None:
    node = [OracleGpu("NVIDIA A", 40, used) for used in (39, 27, 33, 0, 20)]
    problem, room, _ = situation(node, [(OracleContainer(8), {}), (OracleContainer(4), {})])
    parts = [gpu.free for gpu in RoomNormalizer(problem).normalized(room)]
    assert parts == [40, 12, 0, 0, 0], "the idle GPU, and of 20, 13, 7 and 1 left the one of the most"


def test_compute_is_kept_where_a_container_asks_for_it() -> None:
    """The GPU with the least memory left is the only one that has compute left."""
    node = [OracleGpu("NVIDIA A", 4, 1, 90), OracleGpu("NVIDIA A", 4, 1, 90), OracleGpu("NVIDIA A", 4, 3, 20)]
    problem, room, _ = situation(node, [(OracleContainer(1, cores=60), {})])
    normalized = RoomNormalizer(problem).normalized(room)
    assert GpuRoom(1, 1, 60, foreign=True) in normalized
    assert refusal_reason(problem, normalized) is None


@pytest.mark.parametrize("asked", [
    [(OracleContainer(22), {})] * 6,
    [(OracleContainer(gpus=1), {})] * 9,
])  # fmt: skip
def test_nodes_that_all_differ_share_few_searches(asked: Asked) -> None:
    nodes = [
        [OracleGpu("NVIDIA A", 40, (number * at) % 37 + 1 if at < 6 else 0) for at in range(1, 9)]
        for number in range(1, 30)
    ]
    problem, room, _ = situation(nodes[0], asked)
    evaluator = PodEvaluator(problem, Policy.GAIA, spread=False)
    with patch.object(evaluator_module, "refusal_reason", wraps=refusal_reason) as searched:
        for node in nodes:
            room = tuple(GpuRoom(40 - gpu.used, 40 - gpu.used, 100, foreign=gpu.used > 0) for gpu in node)
            evaluator.refusal(room, 0)
    assert 0 < searched.call_count <= 6


def test_lent_host_memory_is_not_normalized() -> None:
    """A GPU whose own memory is full has no room for a container that may not use host memory."""
    state = ClusterState()
    state.put_node(
        facts(
            "n",
            [inventory_gpu("n", number, 8, memory_bytes=4 * GIB, host_bytes=4 * GIB) for number in range(2)],
        )
    )
    for number in range(2):
        state.put_pod(bound(f"other-{number}", "n", (number, 3)))
    _, refused = state.filter(
        demand(state, pod("new", container("a", 1), container("b", 1), container("c", 1))), ["n"]
    )
    assert refused["n"].reason is RefusalReason.TOGETHER
