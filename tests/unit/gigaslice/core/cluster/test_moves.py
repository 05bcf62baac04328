# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

from gigaslice.core.cluster.defragment import finished
from gigaslice.core.cluster.moves import freeing_plans, freeing_steps, may_be_moved
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Pod, Share
from gigaslice.core.views.move_lines import move_lines
from tests.fakes.clusters import CHECKED, bound, container, facts, inventory_gpu, uuid


def held(uid: str, node: str, gpu: int, slices: int, **fields) -> Pod:
    one = bound(uid, node, (gpu, slices), controlled=fields.pop("controlled", True), **fields)
    return replace(one, containers=(container(slices=slices),))


def cluster(*pods: Pod, **more) -> tuple[ClusterState, dict[str, Pod]]:
    """Two nodes of two GPUs of 16 slices."""
    state = ClusterState(CHECKED)
    state.put_node(facts("node-a", **more))
    state.put_node(facts("node-b"))
    for one in pods:
        state.put_pod(one)
    return state, {one.uid: one for one in pods}


def test_a_plan_is_what_the_scheduler_would_do() -> None:
    state, pods = cluster(held("p", "node-a", 0, 4), held("q", "node-b", 1, 10), held("r", "node-b", 0, 14))
    plan = freeing_plans(state, pods)[0]
    assert (plan.node, plan.gpus, plan.size) == ("node-a", (uuid("node-a", 0),), 4 << 30)
    assert plan.moves[0].shares == (Share(uuid("node-b", 1), 4),)
    assert move_lines(state, [plan], pods) == [
        "GPU0 of node-a (A): cordon it, restart team/pod-p (4 GiB, to GPU1 of node-b), uncordon it"
    ]
    # cordoned, restarted: the scheduler's own answer
    cordoned = [inventory_gpu("node-a", 0, unhealthy="cordoned"), inventory_gpu("node-a", 1)]
    state.put_node(facts("node-a", cordoned))
    state.drop_pod("p")
    demand = state.demand_of(replace(pods["p"], node="", annotations={}))
    (best,) = state.best(demand, state.nodes, 1)
    assert best == "node-b"
    assert state.choose(demand, best).containers["main"] == plan.moves[0].shares


def test_pods_that_stay() -> None:
    pod = held("p", "node-a", 0, 4)
    assert may_be_moved(pod)
    assert not may_be_moved(replace(pod, controlled=False))
    assert not may_be_moved(replace(pod, ending=True))
    stays = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    assert not may_be_moved(replace(pod, annotations=stays))
    assert not may_be_moved(replace(pod, annotations={"kubernetes.io/config.mirror": "x"}))
    state, pods = cluster(held("p", "node-a", 0, 4, controlled=False), held("q", "node-b", 1, 10))
    assert [plan.node for plan in freeing_plans(state, pods)] == ["node-b"]
    assert freeing_plans(state, {}) == []


def test_nodes_that_take_no_pods_are_left_alone() -> None:
    for away in ({"schedulable": False}, {"ready": False}):
        state, pods = cluster(held("p", "node-a", 0, 4), held("q", "node-b", 1, 10), **away)
        assert freeing_plans(state, pods) == []


def test_a_gpu_that_is_one_pods_alone_takes_no_other() -> None:
    alone = held("q", "node-b", 1, 10, annotations={"gigaslice.io/exclusive": "true"})
    state, pods = cluster(held("p", "node-a", 0, 4), alone)
    assert freeing_plans(state, pods) == []


def test_of_a_large_cluster_the_cheapest_moves_are_found() -> None:
    state, pods = ClusterState(CHECKED), {}
    for number in range(400):
        name = f"n{number:03}"
        state.put_node(facts(name))
        for one in (held(f"p{number}", name, 0, 3 if number == 399 else 9), held(f"q{number}", name, 1, 12)):
            pods[one.uid] = one
            state.put_pod(one)
    best = freeing_plans(state, pods, most=1)[0]
    assert (best.node, best.size) == ("n399", 3 << 30)


def test_the_search_goes_on_while_the_cluster_changes() -> None:
    def prepared() -> tuple[ClusterState, dict[str, Pod]]:
        return cluster(held("p", "node-a", 0, 4), held("q", "node-b", 1, 10), held("r", "node-b", 0, 14))

    state, pods = prepared()
    steps = sum(1 for _ in freeing_steps(state, pods))
    assert steps > 5
    changes = (
        lambda state: state.drop_node("node-b"),
        lambda state: state.put_node(facts("node-b", 1)),
        lambda state: state.drop_pod("p"),
        lambda state: state.put_node(facts("node-c")),
    )
    for change in changes:
        for at in range(steps):
            state, pods = prepared()
            search = freeing_steps(state, pods)
            for _ in range(at):
                next(search)
            change(state)
            pods.clear()
            for plan in finished(search):
                assert plan.node in ("node-a", "node-b") and plan.moves


def test_a_node_that_has_become_another_takes_no_pods() -> None:
    state, pods = cluster(held("p", "node-a", 0, 4), held("q", "node-b", 1, 10), held("r", "node-b", 0, 14))
    search = freeing_steps(state, pods)
    for _ in range(5):
        next(search)  # all nodes have been looked at
    state.put_node(facts("node-b", 1))
    assert all(move.node == "node-a" for plan in finished(search) for move in plan.moves)
