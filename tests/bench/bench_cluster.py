# SPDX-License-Identifier: Apache-2.0
"""The cluster's state at 5,000 nodes of 8 GPUs with 50,000 pods: filter, rank and memory.

Times are of the processor, which other work on the machine does not change much. The goal is a p99 of 5 ms for filter
and rank together while pods are bound between the calls, and 400 MiB for the whole service; the state alone should stay
far below.
"""

from __future__ import annotations

import gc
import random
from functools import lru_cache
from itertools import count
from pathlib import Path
from statistics import quantiles
from time import process_time

import orjson
import pytest

from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.classes.selector import parse_selector
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.names import ASSIGNMENT, CLASS_PREFIX, GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.core.cluster.state import ClusterState, NodeFacts
from gigaslice.core.model import Pod, PodContainer, Share
from tests.fakes.clusters import inventory_gpu, node_inventory
from tests.fakes.gpus import pairs_topology

NODES, GPUS, PODS = 5000, 8, 50_000
SCORED = 32  # names in a reply to prioritize
GIB = 1 << 30
MODELS = (("NVIDIA H100 80GB HBM3", 79, 18), ("NVIDIA A100-SXM4-40GB", 39, 12), ("NVIDIA L40S", 44, 0))
NAMES = [f"node-{number:04}" for number in range(NODES)]
SHAPES: dict[str, tuple[dict[str, str], list[dict[str, int]]]] = {
    "slices": ({}, [{MEMORY_RESOURCE: 8}]),
    "whole": ({}, [{GPU_RESOURCE: 1}]),
    "links": ({}, [{GPU_RESOURCE: 4}]),
    "spread": ({}, [{MEMORY_RESOURCE: 40}]),
    "class": ({}, [{CLASS_PREFIX + "h100": 2}]),
    "share": ({"gigaslice.io/cores": "30"}, [{MEMORY_RESOURCE: 8}]),
    "two": ({}, [{MEMORY_RESOURCE: 8}, {MEMORY_RESOURCE: 4}]),
}
"""Annotations, and what each container asks for."""
CROWDS = {
    "six large parts": [{MEMORY_RESOURCE: 38}] * 6,
    "nine whole GPUs": [{GPU_RESOURCE: 1}] * 9,
    "nine parts of a GPU's size": [{MEMORY_RESOURCE: 39}] * 9,
}
"""Containers that each fit alone on most nodes, and on few or none together: the most costly answer is a refusal."""
FIRST_CALL_SECONDS = 2  # the chart's httpTimeout

_numbers = count()


def inventory(name: str, kind: int) -> str:
    model, slices, links = MODELS[kind]
    gpus = [
        inventory_gpu(
            name, index, slices, uuid=f"GPU-{name}-{index:04x}-4000-8000-000000000000", model=model,
            numa_node=index // 4, pci_bus_id=f"00000000:{index:02X}:00.0",
            properties={"architecture": "Hopper", "computeCapability": "9.0", "driver": "570.86.15"},
        )
        for index in range(GPUS)
    ]  # fmt: skip
    return node_inventory(gpus, pairs_topology(GPUS, nvlinks=links)).encode()


def bound(node: str, gpu: int, slices: int) -> Pod:
    uid = f"{next(_numbers):08x}-0000-4000-8000-000000000000"
    share = Share(f"GPU-{node}-{gpu:04x}-4000-8000-000000000000", slices)
    return Pod(
        "team", f"job-{uid[:8]}", uid, {ASSIGNMENT: Assignment({"main": (share,)}).encode()},
        (PodContainer("main", requests={MEMORY_RESOURCE: slices}),), "Running", node=node,
    )  # fmt: skip


def resident() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / (1 << 20)


@lru_cache(maxsize=1)
def cluster() -> tuple[ClusterState, float, float]:
    """A full cluster of random states, its size in MiB, and the seconds that it took to read."""
    rng = random.Random(7)
    texts = [inventory(name, number % len(MODELS)) for number, name in enumerate(NAMES)]
    free = [[MODELS[number % len(MODELS)][1]] * GPUS for number in range(NODES)]
    pods = []
    while len(pods) < PODS:
        node, gpu = rng.randrange(NODES), rng.randrange(GPUS)
        slices = min(rng.choice((2, 4, 8, 10, 16, 24, 40)), free[node][gpu])
        if slices:
            free[node][gpu] -= slices
            pods.append(bound(NAMES[node], gpu, slices))
    gc.collect()
    state = ClusterState()
    selector = parse_selector({"matchLabels": {"model": MODELS[0][0]}})
    state.put_class(ResourceClass("h100", selector))
    before, start = resident(), process_time()
    for name, text in zip(NAMES, texts, strict=True):
        state.put_node(NodeFacts(name, text))
    for pod in pods:
        state.put_pod(pod)
    state.filter(demand(state, "slices"), NAMES)
    seconds = process_time() - start
    gc.collect()
    gc.freeze()  # as the service does once it is in sync
    return state, resident() - before, seconds


def demand(state: ClusterState, shape: str) -> PodDemand:
    annotations, requests = SHAPES[shape] if shape in SHAPES else ({}, CROWDS[shape])
    containers = tuple(PodContainer(f"c{number}", requests=row) for number, row in enumerate(requests))
    asked = state.demand_of(Pod("team", "new", "new", annotations, containers))
    assert isinstance(asked, PodDemand)
    return asked


def decide(state: ClusterState, asked: PodDemand) -> tuple[str, float]:
    """What a filter and a scoring do, with names as they come off the wire: new objects, in any order."""
    names = orjson.loads(orjson.dumps(random.sample(NAMES, NODES)))
    start = process_time()
    fitting, _ = state.filter(asked, names)
    between = process_time()
    names = orjson.loads(orjson.dumps(fitting))
    again = process_time()
    best = state.best(asked, names, SCORED)[0]
    return best, process_time() - again + between - start


def test_memory() -> None:
    _, size, seconds = cluster()
    print(f"\n{NODES} nodes x {GPUS} GPUs, {PODS} pods: {size:.0f} MiB, read in {seconds:.1f} s")
    assert size < 250


@pytest.mark.parametrize("shape", SHAPES)
def test_a_new_shape(shape: str) -> None:
    """The first call for a shape: every node is looked at."""
    state, _, _ = cluster()
    asked = demand(state, shape)
    state._caches.clear()
    winner, seconds = decide(state, asked)
    assert winner
    print(f"\n{shape}: first filter + rank {seconds * 1e3:.0f} ms")
    assert seconds < FIRST_CALL_SECONDS


@pytest.mark.parametrize("crowd", CROWDS)
def test_a_new_crowd(crowd: str) -> None:
    """The first filter for containers that do not fit together."""
    state, _, _ = cluster()
    asked = demand(state, crowd)
    state._caches.clear()
    start = process_time()
    fitting, refused = state.filter(asked, NAMES)
    seconds = process_time() - start
    assert len(refused) > NODES / 2
    print(f"\n{crowd}: first filter {seconds * 1e3:.0f} ms, {len(fitting)} nodes fit")
    assert seconds < FIRST_CALL_SECONDS


@pytest.mark.parametrize("shape", SHAPES)
def test_a_known_shape(shape: str) -> None:
    """A burst: each pod is reserved and then seen bound, so that two or three nodes change between two calls."""
    state, _, _ = cluster()
    asked = demand(state, shape)
    decide(state, asked)
    rng, times, placed = random.Random(1), [], list[str]()
    for number in range(400):
        winner, seconds = decide(state, asked)
        times.append(seconds * 1e3)
        found = state.choose(asked, winner)
        assert isinstance(found, Assignment)
        uid = f"burst-{shape}-{number}"
        state.reserve(uid, winner, found, asked)
        placed.append(uid)
        if len(placed) > 100:
            state.release(placed.pop(rng.randrange(len(placed))))
    for uid in placed:
        state.release(uid)
    cuts = quantiles(times, n=100)
    print(f"\n{shape}: filter + rank p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms, most {max(times):.2f} ms")
    assert cuts[98] < 25, "five times the goal: the machine may be busy"
