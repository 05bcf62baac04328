# SPDX-License-Identifier: Apache-2.0
"""Placement decisions under pytest-benchmark, on partly used nodes of 8 and 16 GPUs with NVSwitch and with PCIe."""

from __future__ import annotations

import random

import pytest

from gigaslice.core.model import NodeState, Placement, Request
from gigaslice.core.placement import Policy, pairs, place
from tests.fakes.gpus import make_gpu, node_state, pairs_topology

SLICES = 141


def node(gpus: int, nvlinks: int, held: int) -> NodeState:
    """Two sockets; HELD random one-GPU containers on it."""
    found = [
        make_gpu(index, SLICES, "NVIDIA H200", uuid=f"GPU-{index:08x}-0000-4000-8000-000000000000")
        for index in range(gpus)
    ]
    state = node_state(found, pairs_topology(gpus, nvlinks=nvlinks))
    rng = random.Random(gpus)
    for job in range(held):
        placed = place(state, Request(gpus=1, slices=rng.randint(1, 60)))
        if isinstance(placed, Placement):
            state = state.with_occupant(f"job{job}", placed)
    return state


def decided(benchmark, state: NodeState, request: Request, policy: Policy) -> object:
    """A decision that nothing is remembered of, two hundred times."""

    def forget() -> None:
        pairs._best_effort.cache_clear()

    return benchmark.pedantic(place, (state, request, policy), setup=forget, rounds=200, warmup_rounds=5)


@pytest.mark.parametrize("policy", Policy, ids=lambda policy: policy.value)
@pytest.mark.parametrize("nvlinks", [0, 18], ids=["pcie", "nvswitch"])
@pytest.mark.parametrize("held", [0, 12], ids=["idle", "used"])
@pytest.mark.parametrize("wanted", [2, 4, 8])
def test_of_16_gpus(benchmark, wanted: int, held: int, nvlinks: int, policy: Policy) -> None:
    """WANTED GPUs, with 20 slices of each: the largest number of candidates."""
    request = Request(gpus=wanted, slices=20)
    assert isinstance(decided(benchmark, node(16, nvlinks, held), request, policy), Placement)


@pytest.mark.parametrize("gpus", [8, 16])
def test_slices(benchmark, gpus: int) -> None:
    """Eight slices of one GPU of a node that holds twelve containers."""
    state = node(gpus, 18, held=12)
    assert isinstance(benchmark(place, state, Request(gpus=1, slices=8)), Placement)
