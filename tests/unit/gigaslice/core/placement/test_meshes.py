# SPDX-License-Identifier: Apache-2.0
"""Topologies that no PCIe tree explains, where the shape of the tree and the cost of a set part ways."""

from gigaslice.core.model import NodeState, Request, Topology
from gigaslice.core.placement import place
from gigaslice.core.placement.tree import Inner, build_tree
from tests.unit.gigaslice.core.placement import oracle
from tests.unit.gigaslice.core.placement.nodes import as_pairs, make_gpu, placement

Pairs = dict[tuple[int, int], int]


def mesh(size: int, levels: Pairs, links: Pairs, other_level: int) -> NodeState:
    """Return an idle node from the pairs that differ from `other_level` and no NVLinks."""
    level_rows = [[levels.get((min(i, j), max(i, j)), other_level) for j in range(size)] for i in range(size)]
    link_rows = [[links.get((min(i, j), max(i, j)), 0) for j in range(size)] for i in range(size)]
    return NodeState.build([make_gpu(i) for i in range(size)], Topology.build(level_rows, link_rows))


def nested(node: Inner | int) -> object:
    return node if isinstance(node, int) else [node.kind, *map(nested, node.children)]


def tree_of(state: NodeState) -> object:
    return nested(build_tree(state.topology, tuple(range(len(state.gpus)))).inner[-1])


def test_a_clique_of_unequal_links_is_no_island() -> None:
    equal = mesh(4, {}, {(0, 1): 2, (0, 2): 2, (1, 2): 2}, 30)
    assert tree_of(equal) == ["PHB", ["NVL+PHB", 0, 1, 2], 3]
    unequal = mesh(4, {}, {(0, 1): 1, (0, 2): 2, (1, 2): 2}, 30)
    assert tree_of(unequal) == ["PHB", 0, 1, 2, 3]


def test_a_chain_of_links_is_no_island() -> None:
    assert tree_of(mesh(3, {}, {(0, 1): 2, (1, 2): 2}, 30)) == ["PHB", 0, 1, 2]


def test_a_near_pair_can_cost_more_than_a_far_one() -> None:
    """Every node of this tree has one cost, but the inner ones cost more: the worst link is not at the top."""
    far = {(i, j): 2 for i in (0, 1) for j in (2, 3, 4)}
    inside = {(2, 3): 1, (2, 4): 1, (3, 4): 1}
    state = mesh(5, {(0, 1): 20, (2, 3): 40, (2, 4): 40, (3, 4): 40}, far | inside, 50)
    assert tree_of(state) == ["SYS", ["PXB", 0, 1], ["NODE", 2, 3, 4]]
    four = Request(gpus=4)
    assert [gpu for gpu, _ in as_pairs(place(state, four))] == [0, 2, 3, 4]
    assert oracle.place(state, four) == dict.fromkeys((0, 2, 3, 4), 16)


def test_the_worst_link_to_the_extra_gpu_counts_before_their_sum() -> None:
    """GPUs 0 and 1 are 10 and 50 from the fragment on GPU 4, GPUs 2 and 3 are 30 and 40."""
    levels = {(0, 1): 10, (2, 3): 10, (0, 4): 10, (1, 4): 50, (2, 4): 30, (3, 4): 40}
    state = mesh(5, levels, {}, 50).with_occupant("a", placement((4, 8)))
    request = Request(total=40, whole_first=True)
    assert as_pairs(place(state, request)) == [[2, 16], [3, 16], [4, 8]]
    assert oracle.place(state, request) == {2: 16, 3: 16, 4: 8}
