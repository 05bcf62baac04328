# SPDX-License-Identifier: Apache-2.0
"""First fit over the published order chooses as placement does."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.model import NodeState, Occupant, Placement, Request, Share, Topology
from gigaslice.core.placement import Policy, place
from gigaslice.core.placement.first_fit import chooses_alike, first_fit_order
from tests.fakes.gpus import make_gpu, pairs_topology, uuid

MODELS = (("NVIDIA L4", 4), ("NVIDIA L4", 4), ("NVIDIA A100", 6), ("NVIDIA H100", 6))


@st.composite
def nodes(draw: st.DrawFn) -> NodeState:
    """Up to eight GPUs of several models, linked somehow, each idle, partly or fully used, or unhealthy."""
    count = draw(st.integers(1, 8))
    mixed = draw(st.booleans())
    gpus, held = [], []
    for index in range(count):
        model, slices = draw(st.sampled_from(MODELS)) if mixed else MODELS[0]
        gpus.append(make_gpu(index, slices, model, healthy=draw(st.integers(0, 5)) > 0))
        for name in range(draw(st.integers(0, 2))):
            left = slices - sum(
                share.slices for one in held for share in one.shares if share.gpu == uuid(index)
            )
            if left > 0 and draw(st.booleans()):
                held.append(Occupant(f"job{index}.{name}", (Share(uuid(index), draw(st.integers(1, left))),)))
    links = (
        {(i, j): draw(st.sampled_from((0, 0, 2, 4))) for j in range(count) for i in range(j)}
        if draw(st.booleans())
        else {}
    )
    topology = pairs_topology(count, nvlinks=lambda i, j: links.get((min(i, j), max(i, j)), 0))
    return NodeState.build(gpus, topology, held)


def fits(node: NodeState, gpu: str, slices: int | None) -> bool:
    """SLICES of it, or all of it."""
    size = node.gpu(gpu).slices if slices is None else slices
    return 0 < size <= node.free(gpu)


def first_fit(node: NodeState, policy: Policy, slices: int | None) -> str | None:
    return next((gpu for gpu in first_fit_order(node, policy) if fits(node, gpu, slices)), None)


def chosen(node: NodeState, policy: Policy, slices: int | None) -> str | None:
    placed = place(node, Request(gpus=1, slices=slices), policy)
    return placed.shares[0].gpu if isinstance(placed, Placement) else None


@given(nodes(), st.sampled_from(Policy))
def test_an_order_has_every_gpu_once(node: NodeState, policy: Policy):
    order = first_fit_order(node, policy)
    assert sorted(order) == sorted(gpu.uuid for gpu in node.gpus)
    left = [node.free(gpu) > 0 for gpu in order]
    assert left == sorted(left, reverse=True), "those with nothing left are last"


@given(nodes(), st.sampled_from(Policy))
def test_whole_gpus(node: NodeState, policy: Policy):
    assert first_fit(node, policy, None) == chosen(node, policy, None)


@given(nodes(), st.sampled_from(Policy), st.integers(1, 6))
def test_parts_that_a_fragment_has_room_for(node: NodeState, policy: Policy, slices: int):
    usage = node.usage()
    fragments = {gpu.uuid for gpu, taken in zip(node.gpus, usage.slices, strict=True) if taken}
    placed = chosen(node, policy, slices)
    if placed in fragments or policy in (Policy.BINPACK, Policy.SPREAD):
        assert first_fit(node, policy, slices) == placed
    else:  # a whole GPU has to be opened, or none fits
        gpu = first_fit(node, policy, slices)
        assert (gpu is None) == (placed is None)
        assert gpu not in fragments


@given(nodes(), st.sampled_from(Policy), st.lists(st.integers(1, 6), max_size=6))
def test_a_burst_never_takes_more_than_there_is(node: NodeState, policy: Policy, sizes: list[int]):
    """An order that is out of date chooses otherwise, and that is all."""
    order, free = first_fit_order(node, policy), {gpu.uuid: node.free(gpu.uuid) for gpu in node.gpus}
    for size in sizes:
        gpu = next((gpu for gpu in order if free[gpu] >= size), None)
        if gpu is not None:
            free[gpu] -= size
    assert all(left >= 0 for left in free.values())


def test_fragments_first_and_the_fullest_of_them():
    gpus = [make_gpu(index, 24) for index in range(4)]
    held = [
        Occupant("a", (Share(uuid(1), 20),)),
        Occupant("b", (Share(uuid(2), 3),)),
        Occupant("c", (Share(uuid(3), 13),)),
    ]
    node = NodeState.build(gpus, Topology.flat(4), held)
    assert first_fit_order(node) == (uuid(1), uuid(3), uuid(2), uuid(0))


def test_a_whole_gpu_beside_a_broken_one_is_taken_first():
    gpus = [make_gpu(index, 4) for index in range(4)]
    node = NodeState.build(gpus, pairs_topology(4), [Occupant("a", (Share(uuid(3), 4),))])
    assert first_fit_order(node) == (uuid(2), uuid(0), uuid(1), uuid(3))
    healthy = replace(node, occupants=())
    assert first_fit_order(healthy) == (uuid(0), uuid(1), uuid(2), uuid(3))


@given(
    st.permutations(range(5)), st.permutations(range(5)), st.lists(st.integers(0, 4), min_size=5, max_size=5)
)
def test_orders_that_choose_alike(order: list[int], other: list[int], free: list[int]):
    left = {str(gpu): count for gpu, count in enumerate(free)}

    def choice(gpus: list[int], size: int) -> int | None:
        return next((gpu for gpu in gpus if free[gpu] >= size), None)

    alike = all(choice(order, size) == choice(other, size) for size in range(1, 5))
    assert chooses_alike([*map(str, order)], [*map(str, other)], left) == alike
