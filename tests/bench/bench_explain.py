# SPDX-License-Identifier: Apache-2.0
"""`gigaslice explain` and the picture of a cluster of 5,000 nodes with 8 GPUs, when everything has been read."""

from __future__ import annotations

import random

import pytest

from gigaslice.core.cluster.ending_pods import ending_pods
from gigaslice.core.cluster.inventory import InventoryGpu, NodeInventory
from gigaslice.core.cluster.names import GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.core.cluster.state import ClusterState, NodeFacts
from gigaslice.core.model import Occupant, Pod, PodContainer, Share
from gigaslice.core.views.collect import picture
from gigaslice.core.views.explain import PodSituation, explain
from gigaslice.core.views.page import PageQuery, render
from tests.fakes.clusters import bound, facts, inventory_gpu
from tests.fakes.gpus import make_gpu, pairs_topology

NODES, GPUS, SLICES, GIB = 5000, 8, 80, 1 << 30


@pytest.fixture(scope="module")
def state() -> ClusterState:
    """Nodes with two pods on every GPU, of which the agents say what they hold."""
    rng, found = random.Random(1), ClusterState()
    topology = pairs_topology(GPUS, sockets=GPUS)
    for number in range(NODES):
        name = f"node-{number:04}"
        gpus = [
            make_gpu(index, SLICES, "NVIDIA A100-SXM4-80GB", uuid=f"GPU-{number:04}-{index}")
            for index in range(GPUS)
        ]
        held = [
            Occupant(f"pod-{number}-{index}-{one}", (Share(gpu.uuid, rng.randint(20, 40)),))
            for index, gpu in enumerate(gpus)
            for one in range(2)
        ]
        inventory = NodeInventory(tuple(map(InventoryGpu, gpus)), topology, tuple(held))
        found.put_node(NodeFacts(name, inventory.encode(), schedulable=number % 100 != 0))
    return found


SHAPES = {
    "slices": ({}, [{MEMORY_RESOURCE: 60}]),
    "whole": ({}, [{GPU_RESOURCE: 1}]),
    "share": ({"gigaslice.io/cores": "30"}, [{MEMORY_RESOURCE: 60}]),
    "two": ({}, [{MEMORY_RESOURCE: 30}, {MEMORY_RESOURCE: 50}]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_explain(benchmark, state: ClusterState, shape: str) -> None:
    """A pod of which nothing is remembered, and which fits nowhere."""
    annotations, requests = SHAPES[shape]
    containers = tuple(PodContainer(f"c{at}", requests=asked) for at, asked in enumerate(requests))
    pod = Pod("team", "waits", "waits", annotations, containers)

    def forget() -> None:
        state._caches.clear()

    found = benchmark.pedantic(explain, (state, pod), setup=forget, rounds=10, warmup_rounds=1)
    assert found.situation is PodSituation.WAITING


def test_explain_again(benchmark, state: ClusterState) -> None:
    """The next pod of its kind."""
    pod = Pod("team", "waits", "waits", {}, (PodContainer("main", requests={MEMORY_RESOURCE: 60}),))
    assert benchmark(explain, state, pod).situation is PodSituation.WAITING


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pods", [2, 6, 12])
def test_ending_pods(benchmark, pods: int, shape: str) -> None:
    """Which pods would have to end, on forty full nodes with so many pods on every GPU."""
    rng, state = random.Random(1), ClusterState()
    for number in range(40):
        name = f"node-{number:02}"
        state.put_node(facts(name, [inventory_gpu(name, gpu, SLICES) for gpu in range(GPUS)]))
        for gpu in range(GPUS):
            left = SLICES - rng.randint(0, 3)
            for one in range(pods):
                slices = min(left - (pods - 1 - one), rng.randint(1, 2 * SLICES // pods))
                slices = left if one == pods - 1 else slices
                left -= slices
                state.put_pod(bound(f"{name}-{gpu}-{one}", name, (gpu, slices, 5)))
    annotations, requests = SHAPES[shape]
    containers = tuple(PodContainer(f"c{at}", requests=asked) for at, asked in enumerate(requests))
    demand = state.demand_of(Pod("team", "waits", "waits", annotations, containers))
    assert len(benchmark.pedantic(ending_pods, (state, demand, state.nodes), rounds=5)) == 3


def test_picture(benchmark, state: ClusterState) -> None:
    """All nodes, as the page takes them before it is written."""
    assert len(benchmark.pedantic(picture, (state,), rounds=3).nodes) == NODES


def test_page(benchmark, state: ClusterState) -> None:
    """The page of them, filtered."""
    view = picture(state)
    assert "node-1234" in benchmark.pedantic(render, (view, PageQuery("node-1234")), rounds=3)
