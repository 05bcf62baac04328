# SPDX-License-Identifier: Apache-2.0
"""Which node comes first: the examples of the rules, one by one."""

from __future__ import annotations

from gigaslice.core.cluster.refusal import RefusalReason
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Topology
from tests.fakes.clusters import (
    CHECKED,
    bound,
    container,
    demand,
    facts,
    inventory_gpu,
    pod,
)


def a_cluster(*, spread: bool = False, **nodes: list[tuple[int, int]]) -> ClusterState:
    """Nodes of four GPUs of 16 slices, in two pairs; per node what is used, as (GPU, slices)."""
    state = ClusterState(CHECKED, spread=spread)
    for name, used in nodes.items():
        state.put_node(facts(name, 4))
        for number, share in enumerate(used):
            state.put_pod(bound(f"{name}-{number}", name, share))
    return state


def order(state: ClusterState, slices: int = 0, gpus: int = 0, **annotations: str) -> str:
    asked = demand(state, pod("new", container(slices=slices, gpus=gpus), annotations=annotations))
    return "".join(state.best(asked, state.nodes, len(state.nodes)))


def test_a_gpu_in_use_before_an_idle_one_and_the_closest_remainder_first() -> None:
    state = a_cluster(a=[], b=[(0, 2)], c=[(0, 8)], d=[(0, 9)])
    assert order(state, slices=8) == "cbda", "d has no room there, and fewer idle GPUs than a"
    assert order(a_cluster(a=[], b=[(0, 2)], c=[(0, 8)], spread=True), slices=8) == "abc"


def test_a_whole_gpu_where_a_pair_is_broken_already() -> None:
    state = a_cluster(a=[], b=[(0, 8)], c=[(0, 16)], d=[(0, 16), (1, 16)])
    assert order(state, gpus=1) == "cbda", "sibling full, sibling in use, fewest idle, all idle"


def test_several_gpus_where_they_are_close() -> None:
    state = a_cluster(a=[(0, 1), (2, 1)], b=[(0, 1), (1, 1)], c=[], d=[(0, 1), (1, 1), (2, 1)])
    assert order(state, gpus=2) == "bca"
    state.put_node(facts("e", [inventory_gpu("e", gpu) for gpu in range(4)], Topology.build(
        [[0] * 4] * 4, [[0 if i == j else 18 for j in range(4)] for i in range(4)]
    )))  # fmt: skip
    assert order(state, gpus=2) == "ebca", "scores are absolute: NVLinks before anything on PCIe"


def test_of_equal_worst_links_the_node_with_the_fewest_idle_gpus() -> None:
    state = ClusterState(CHECKED)
    far, near = (Topology.build([[0 if i == j else level for j in range(4)] for i in range(4)],
                                [[0 if i == j else links for j in range(4)] for i in range(4)])
                 for level, links in ((50, 0), (50, 4)))  # fmt: skip
    for name, topology in (("a", far), ("b", far), ("c", near)):
        state.put_node(facts(name, 4, topology))
    state.put_pod(bound("1", "b", (3, 16)))
    assert order(state, gpus=3) == "cba", "the worst link first, then the fullest node"


def test_equal_nodes_go_by_name_and_only_fitting_ones_are_ranked() -> None:
    state = a_cluster(b=[], a=[], c=[(gpu, 16) for gpu in range(4)])
    assert order(state, slices=8) == "ab"
    asked = demand(state, pod("new", container(slices=8)))
    assert state.best(asked, ["b"], 9) == ["b"]
    assert state.best(asked, ["c", "nowhere"], 9) == []


def test_a_change_moves_a_node() -> None:
    state = a_cluster(a=[], b=[])
    assert order(state, slices=8) == "ab"
    state.put_pod(bound("1", "b", (0, 4)))
    assert order(state, slices=8) == "ba"
    state.put_pod(bound("2", "a", (0, 8)))
    assert order(state, slices=8) == "ab"
    state.drop_pod("2")
    assert order(state, slices=8) == "ba"


def test_refusals_are_constant_and_name_no_amount() -> None:
    for reason in RefusalReason:
        text = reason.refusal.text
        assert not any(letter.isdigit() for letter in text) and len(text) < 120
    assert len({reason.refusal.text for reason in RefusalReason}) == len(RefusalReason)


def test_the_reasons_of_a_node() -> None:
    state = a_cluster(a=[(0, 8), (1, 8), (2, 8), (3, 8)])
    refused = {
        (8, 0, ""): None,
        (9, 0, ""): RefusalReason.NO_ROOM,
        (0, 1, ""): RefusalReason.NO_GPU,
        (0, 5, ""): RefusalReason.TOO_FEW,
        (17, 0, "gpus=1"): RefusalReason.TOO_SMALL,
        (8, 0, "gpu-type=B200"): RefusalReason.NO_MATCH,
        (8, 0, "exclusive=true"): RefusalReason.NO_GPU,
    }
    for (slices, gpus, annotation), reason in refused.items():
        said = dict([annotation.split("=")]) if annotation else {}
        asked = demand(state, pod("new", container(slices=slices, gpus=gpus), annotations=said))
        found = state.refusal(asked, "a")
        assert (found and found.reason) == reason, (slices, gpus, annotation)
    state.put_pod(bound("compute", "a", (0, 1, 90), (1, 1, 90), (2, 1, 90), (3, 1, 90)))
    asked = demand(state, pod("new", container(slices=2), annotations={"cores": "20"}))
    found = state.refusal(asked, "a")
    assert found is not None and found.reason is RefusalReason.NO_COMPUTE
    state.put_node(facts("a", [inventory_gpu("a", gpu, unhealthy="Xid 79") for gpu in range(4)]))
    found = state.refusal(asked, "a")
    assert found is not None and found.reason is RefusalReason.UNHEALTHY
    state.put_node(facts("a", 4, whole_resource=""))
    found = state.refusal(demand(state, pod("new", container(gpus=1))), "a")
    assert found is not None and found.reason is RefusalReason.NO_RESOURCE


def test_a_report_says_why_not_of_each_gpu() -> None:
    state = a_cluster(a=[(0, 10), (1, 16)])
    state.put_node(
        facts("a", [inventory_gpu("a", gpu, unhealthy="Xid 79" if gpu == 2 else "") for gpu in range(3)])
    )
    (report,) = state.report(demand(state, pod("new", container(slices=8))))
    assert report.refusal is not None and report.refusal.reason is RefusalReason.NO_ROOM
    assert [gpu.refusal_reason for gpu in report.gpus] == [
        "6 of 16 slices free, 8 asked for on one GPU",
        "0 of 16 slices free, 8 asked for on one GPU",
        "Xid 79",
    ]
    assert [(gpu.free, gpu.holders) for gpu in report.gpus] == [(6, ("a-0",)), (0, ("a-1",)), (16, ())]
    assert report.would_help
