# SPDX-License-Identifier: Apache-2.0
"""The resource-access-cost tree of one pool (Gaia Scheduler paper, III-B), built from the pair matrix.

Everything here is static: costs come from topology alone, never from what is in use, so one tree serves every
decision on a node and is kept in a small cache. GPUs are numbered 0..n-1 inside the pool; sets of GPUs are
bit masks (bit i = GPU i), which makes "how many inner nodes does this break" a few machine words.

What is left on the GPUs is `gigaslice.core.placement.pool_state`; which GPUs to take is decided elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from gigaslice.core.model import LinkLevel, Topology

LINK_COST = 100
"""What one NVLink is worth, in the unit of LinkLevel: any NVLink beats any PCIe path."""


Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Inner:
    """An inner node: the GPUs of its children are joined at `kind` ("PIX", "NVL+NODE").

    children: inner nodes and GPUs, by lowest GPU. mask: all GPUs below. cost: of a pair from two different
    children, or None if such pairs differ (meshes).
    """

    kind: str
    children: tuple["Inner | int", ...]
    mask: int
    cost: int | None


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree of one pool, with the costs it was built from.

    members: position of each GPU in `NodeState.gpus`. cost: of a pair, its level plus 100 per NVLink it has
    less than the best pair of the pool; on PCIe alone exactly the NVML level. access_cost: of a GPU, the sum
    of its costs to all others, busy ones included. inner: all inner nodes, children before parents, so the
    root is last; empty for a single GPU. parent: mask of the node each GPU hangs on (0 for a single GPU).
    uniform: every inner node has one cost, never below that of a node under it, so the cost of a set follows
    from the tree. twins: for each GPU the lowest GPU it could be exchanged with.
    """

    members: tuple[int, ...]
    cost: Matrix
    access_cost: tuple[int, ...]
    inner: tuple[Inner, ...]
    parent: tuple[int, ...]
    uniform: bool
    twins: tuple[int, ...]

    def bottleneck(self, gpus: int) -> int:
        """Return B: the cost of the worst pair in a set, 0 below two GPUs."""
        return max((self.cost[i][j] for i, j in combinations(bits(gpus), 2)), default=0)

    def total(self, gpus: int) -> int:
        """Return P: the summed cost of all pairs in a set."""
        return sum(self.cost[i][j] for i, j in combinations(bits(gpus), 2))

    def partial(self, whole: int) -> int:
        """Return how many inner nodes have some but not all of their GPUs in `whole`, the GPUs left idle.

        Small means that damage is concentrated; it only ever breaks ties.
        """
        return sum(1 for node in self.inner if 0 != whole & node.mask != node.mask)


def bits(mask: int) -> list[int]:
    """Return the GPUs of a set, ascending."""
    gpus = []
    while mask:
        low = mask & -mask
        gpus.append(low.bit_length() - 1)
        mask ^= low
    return gpus


@lru_cache(maxsize=64)
def build_tree(topology: Topology, members: tuple[int, ...]) -> Tree:
    """Build the tree of the GPUs `members`.

    PCIe levels are ultrametric, so merging the nearest GPUs first gives one tree whatever the order. The
    distance of a pair is its level, with NVLink islands before everything else: any pair of an island is
    nearer than any other pair, while PCIe still structures the GPUs inside.
    """
    size = len(members)
    levels = [[int(topology.levels[a][b]) for b in members] for a in members]
    links = [[topology.nvlinks[a][b] for b in members] for a in members]
    most = max((count for row in links for count in row), default=0)
    cost = tuple(
        tuple(0 if i == j else levels[i][j] + LINK_COST * (most - links[i][j]) for j in range(size))
        for i in range(size)
    )
    island = islands(links)

    distance = [
        [(0 if island[i] == island[j] else 1, levels[i][j]) for j in range(size)] for i in range(size)
    ]
    inner = _merge(distance, cost)
    parent = tuple(next((node.mask for node in inner if node.mask >> gpu & 1), 0) for gpu in range(size))
    return Tree(
        members=members,
        cost=cost,
        access_cost=tuple(sum(row) for row in cost),
        inner=inner,
        parent=parent,
        uniform=_is_uniform(inner),
        twins=_twins(cost),
    )


def islands(links: Sequence[Sequence[int]]) -> list[int]:
    """Return an island number per GPU: a clique of NVLinks with one common count shares a number.

    Bridged pairs, boards and NVSwitch are islands; the cube mesh of a DGX-1 is none.
    """
    size = len(links)
    reach = [1 << gpu | sum(1 << j for j in range(size) if links[gpu][j]) for gpu in range(size)]
    island = list(range(size))
    for gpu in range(size):
        group = bits(reach[gpu])
        counts = {links[i][j] for i, j in combinations(group, 2)}
        if all(reach[other] == reach[gpu] for other in group) and len(counts) == 1:
            island[gpu] = group[0]
    return island


def _merge(distance: list[list[tuple[int, int]]], cost: Matrix) -> tuple[Inner, ...]:
    """Join clusters at every distance in ascending order; each join of two or more makes one inner node."""
    size = len(distance)
    clusters: dict[int, Inner | int] = {1 << gpu: gpu for gpu in range(size)}
    inner: list[Inner] = []
    pairs = list(combinations(range(size), 2))
    for step in sorted({distance[i][j] for i, j in pairs}):
        joins: dict[int, list[int]] = {
            mask: [mask] for mask in clusters
        }  # joined mask -> masks of its clusters
        for i, j in pairs:
            ends = [mask for mask in joins if mask & (1 << i | 1 << j)]
            if distance[i][j] == step and len(ends) == 2:
                joins[ends[0] | ends[1]] = joins.pop(ends[0]) + joins.pop(ends[1])
        for mask, parts in joins.items():
            if len(parts) > 1:
                node = _inner(step, mask, sorted(parts, key=lambda part: part & -part), clusters, cost)
                for part in parts:
                    del clusters[part]
                clusters[mask] = node
                inner.append(node)
    return tuple(inner)


def _inner(
    step: tuple[int, int], mask: int, parts: list[int], clusters: dict[int, Inner | int], cost: Matrix
) -> Inner:
    across = {cost[i][j] for part, other in combinations(parts, 2) for i in bits(part) for j in bits(other)}
    word = LinkLevel(step[1]).word
    return Inner(
        kind=word if step[0] else f"NVL+{word}",
        children=tuple(clusters[part] for part in parts),
        mask=mask,
        cost=across.pop() if len(across) == 1 else None,
    )


def _is_uniform(inner: tuple[Inner, ...]) -> bool:
    for node in inner:
        below = [child.cost for child in node.children if isinstance(child, Inner)]
        if node.cost is None or any(cost is None or cost > node.cost for cost in below):
            return False
    return True


def _twins(cost: Matrix) -> tuple[int, ...]:
    """Return per GPU the lowest GPU it could be exchanged with: their costs to all others are the same.

    Such GPUs hang on the same parent, because whatever is nearest to one is as near to the other.
    """
    size = len(cost)

    def same(i: int, j: int) -> bool:
        others = (k for k in range(size) if k not in (i, j))
        return all(cost[i][k] == cost[j][k] for k in others)

    return tuple(next(i for i in range(gpu + 1) if i == gpu or same(i, gpu)) for gpu in range(size))
