# SPDX-License-Identifier: Apache-2.0
"""The oracle states the rule again without the placement code: the pods of a GPU go, in some order, where the least is
left of a partly used GPU, and never to a GPU that was free before.
"""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest

from gigaslice.core.cluster.defragment import FreeingPlan, MovablePod, plans
from gigaslice.core.model import NodeState, Occupant, Placement, Request, Share
from gigaslice.core.placement import place
from tests.fakes.gpus import make_gpu, pairs_topology

GIB = 1 << 30


def node(name: str, *held: dict[str, int], slices: int = 12) -> NodeState:
    """A node with one GPU for each of HELD, which says the slices by pod; GPUs 0 and 1, 2 and 3 … share a switch."""
    size = len(held)
    gpus = [make_gpu(index, slices, uuid=f"{name}-{index}") for index in range(size)]
    shares: dict[str, list[Share]] = {}
    for index, pods in enumerate(held):
        for pod, count in pods.items():
            shares.setdefault(pod, []).append(Share(f"{name}-{index}", count))
    occupants = [Occupant(pod, tuple(one)) for pod, one in shares.items()]
    return NodeState.build(gpus, pairs_topology(size, sockets=size), occupants)


def anywhere(nodes: dict[str, NodeState], *fixed: str) -> dict[str, MovablePod]:
    return {
        one.name: MovablePod(one.name, name)
        for name, state in nodes.items()
        for one in state.occupants
        if one.name not in fixed
    }


def by_gaia(nodes: dict[str, NodeState]):
    """What a pod holds is what it asks for: so many GPUs with so many slices each."""
    held = {one.name: one.shares for state in nodes.values() for one in state.occupants}

    def placed(name: str, state: NodeState, pod: MovablePod) -> tuple[Share, ...] | None:
        del name
        shares = held[pod.name]
        found = place(state, Request(gpus=len(shares), slices=shares[0].slices))
        return found.shares if isinstance(found, Placement) else None

    return placed


def found(nodes: dict[str, NodeState], *fixed: str, **more) -> list[FreeingPlan]:
    return plans(nodes, anywhere(nodes, *fixed), by_gaia(nodes), **more)


def test_the_fewest_bytes_are_moved_first() -> None:
    nodes = {"a": node("a", {"p": 6}, {"q": 5}), "b": node("b", {"r": 2}, {})}
    first, *others = found(nodes)
    assert first == FreeingPlan("b", ("b-0",), first.moves, 2 * GIB)
    (move,) = first.moves
    assert (move.pod.name, move.node, move.shares) == ("r", "a", (Share("a-0", 2),))  # 6 free there, 7 on a-1
    assert [plan.size for plan in (first, *others)] == sorted(plan.size for plan in (first, *others))


def test_no_whole_gpu_is_opened_for_another() -> None:
    assert found({"a": node("a", {"p": 8}, {"q": 8}, {}), "b": node("b", {}, {})}) == []


def test_a_pod_that_cannot_be_restarted_stays() -> None:
    nodes = {"a": node("a", {"p": 6}, {"q": 5})}
    assert [plan.gpus for plan in found(nodes)] == [("a-1",), ("a-0",)]
    assert [plan.gpus for plan in found(nodes, "q")] == [("a-0",)]


def test_an_unhealthy_gpu_is_neither_freed_nor_filled() -> None:
    nodes = {"a": node("a", {"p": 6}, {"q": 5}).with_health("a-0", healthy=False)}
    assert found(nodes) == []


def test_the_pods_of_one_gpu_may_go_to_several() -> None:
    nodes = {"a": node("a", {"p": 4, "q": 3}, {"x": 8}, {"y": 9})}
    plan = next(one for one in found(nodes) if one.gpus == ("a-0",))
    assert {move.pod.name: move.shares for move in plan.moves} == {
        "p": (Share("a-1", 4),),
        "q": (Share("a-2", 3),),
    }


def test_a_pair_is_freed_together_and_only_a_near_one() -> None:
    nodes = {"a": node("a", {"p": 2}, {}, {"q": 6}, {"r": 6})}
    pair = found(nodes, gpus=2)
    assert [plan.gpus for plan in pair] == [("a-0", "a-1")]
    assert pair[0].size == 2 * GIB
    assert all(share.gpu in ("a-2", "a-3") for move in pair[0].moves for share in move.shares)


def test_a_pod_on_two_gpus_moves_with_all_that_it_holds() -> None:
    nodes = {"a": node("a", {"p": 4}, {"p": 4}), "b": node("b", {"q": 8}, {"r": 7})}
    plan = next(one for one in found(nodes) if one.node == "a")
    assert plan.size == 8 * GIB
    assert plan.moves[0].shares == (Share("b-0", 4), Share("b-1", 4))


def test_the_number_of_tries_and_of_plans_is_bounded() -> None:
    nodes = {f"n{number}": node(f"n{number}", {f"p{number}": 5}, {f"q{number}": 6}) for number in range(9)}
    calls = 0
    place_there = by_gaia(nodes)

    def counted(name: str, state: NodeState, pod: MovablePod) -> tuple[Share, ...] | None:
        nonlocal calls
        calls += 1
        return place_there(name, state, pod)

    assert len(plans(nodes, anywhere(nodes), counted, most=2)) == 2
    assert calls <= 2 * len(nodes)
    assert plans(nodes, anywhere(nodes), counted, tries=0) == []


def oracle(nodes: dict[str, NodeState], movable: dict[str, MovablePod]) -> set[str]:
    """The GPUs that can be freed; every pod is on one GPU."""
    size = {one.name: one.shares[0].slices for state in nodes.values() for one in state.occupants}
    where = {one.name: one.shares[0].gpu for state in nodes.values() for one in state.occupants}
    free, uuids = {}, [gpu.uuid for state in nodes.values() for gpu in state.gpus]
    for uuid in uuids:
        free[uuid] = 12 - sum(size[pod] for pod, gpu in where.items() if gpu == uuid)
    freed = set()
    for uuid in uuids:
        pods = sorted(pod for pod, gpu in where.items() if gpu == uuid)
        if not pods or any(pod not in movable for pod in pods):
            continue
        for order in permutations(pods):
            left = {gpu: free[gpu] for gpu in uuids if gpu != uuid and gpu in where.values()}
            for pod in order:
                fitting = [gpu for gpu in left if left[gpu] >= size[pod]]
                if not fitting:
                    break
                left[min(fitting, key=lambda gpu: left[gpu])] -= size[pod]
            else:
                freed.add(uuid)
                break
    return freed


def packable(nodes: dict[str, NodeState], uuid: str) -> bool:
    """Whether the pods of a GPU fit on partly used ones in any way at all."""
    pods = [
        (one.name, one.shares[0].slices)
        for state in nodes.values()
        for one in state.occupants
        if one.shares[0].gpu == uuid
    ]
    used = {}
    for state in nodes.values():
        for one in state.occupants:
            used[one.shares[0].gpu] = used.get(one.shares[0].gpu, 0) + one.shares[0].slices
    used.pop(uuid, None)
    for choice in product(used, repeat=len(pods)):
        left = {gpu: 12 - used[gpu] for gpu in used}
        for (_, size), gpu in zip(pods, choice, strict=True):
            left[gpu] -= size
        if min(left.values(), default=0) >= 0:
            return True
    return False


@pytest.mark.parametrize("seed", range(150))
def test_all_that_can_be_freed_is_found_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    nodes, number = {}, 0
    for name in "abc"[: rng.randint(1, 3)]:
        held = []
        for _ in range(rng.randint(1, 3)):
            pods, left = {}, 12
            while rng.random() < 0.7 and left and len(pods) < 3:
                pods[f"p{number}"] = rng.randint(1, min(left, 7))
                left -= pods[f"p{number}"]
                number += 1
            held.append(pods)
        nodes[name] = node(name, *held)
    fixed = [f"p{one}" for one in range(number) if rng.random() < 0.1]
    result = found(nodes, *fixed, most=99, tries=999)
    assert {plan.gpus[0] for plan in result} == oracle(nodes, anywhere(nodes, *fixed))
    for plan in result:
        assert packable(nodes, plan.gpus[0])
        _follow(nodes, plan)


def _follow(nodes: dict[str, NodeState], plan: FreeingPlan) -> None:
    """Does what a plan says: each move must fit, the GPU is free in the end, and no GPU that was free is used."""
    after = dict(nodes)
    whole = {gpu.uuid for state in nodes.values() for gpu in state.gpus if state.free(gpu.uuid) == gpu.slices}
    for move in plan.moves:
        after[move.pod.node] = after[move.pod.node].without(move.pod.name)
        after[move.node] = after[move.node].with_occupant(move.pod.name, Placement(move.shares))
    free = {gpu.uuid for state in after.values() for gpu in state.gpus if state.free(gpu.uuid) == gpu.slices}
    assert free >= whole | set(plan.gpus)
    assert plan.size == sum(move.size for move in plan.moves)
