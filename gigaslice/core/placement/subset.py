# SPDX-License-Identifier: Apache-2.0
"""The cheapest set of several GPUs, exactly and fast: what Link and multi-slice requests both come down to.

The order is lexicographic: extra weight before the links, worst link (a collective runs at its slowest), sum
of links, extra weight after the links, subtrees left partly broken, lowest GPUs. Trying every set would be
right and slow (12,870 sets for 8 of 16 GPUs), so there are two ways to the same answer:

* on a uniform tree the cost of a set depends only on how many GPUs each subtree gives, so the best choice
for every
  count is built from the leaves up; every component of the order adds up over disjoint sets, which is what
  makes the best of the parts the best of the whole;
* on a mesh, GPUs that are exchangeable are counted, not named, and partial sets that cannot win are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gigaslice.core.placement.tree import Inner, Tree, bits


@dataclass(frozen=True, slots=True)
class Weights:
    """Extra weight per GPU, compared before and after the links.

    Together they must fix how many whole GPUs a set has: two sets of equal weights break the same number.
    """

    before: Sequence[int]
    after: Sequence[int]


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for: the best set of `count` of the `candidates`.

    whole: the whole GPUs, for counting broken subtrees. by_worst: compare the worst link before the sum.
    """

    tree: Tree
    whole: int
    candidates: int
    count: int
    weights: Weights
    by_worst: bool = True


def cheapest(search: Search) -> int | None:
    """Return the best set, or None if there are too few candidates."""
    if search.count < 1 or search.candidates.bit_count() < search.count:
        return None
    if search.count == 1:
        return 1 << min(bits(search.candidates), key=lambda gpu: _single_key(search, gpu))
    return _on_tree(search) if search.tree.uniform else _Mesh(search).best()


def _single_key(search: Search, gpu: int) -> tuple[int, int, int, int]:
    weights, left = search.weights, search.whole & ~(1 << gpu)
    return weights.before[gpu], weights.after[gpu], search.tree.partial(left), gpu


# before, links, after, subtrees partly broken below, lowest GPUs (negated), the set itself
_Entry = tuple[int, int, int, int, int, int]
_NOTHING: _Entry = (0, 0, 0, 0, 0, 0)


def _on_tree(search: Search) -> int | None:
    tree, weights, count = search.tree, search.weights, search.count
    size = len(tree.cost)
    tables: dict[int, list[_Entry]] = {}
    for gpu in range(size):
        tables[1 << gpu] = [_NOTHING]
        if search.candidates >> gpu & 1:
            single = (weights.before[gpu], 0, weights.after[gpu], 0, -1 << (size - 1 - gpu), 1 << gpu)
            tables[1 << gpu].append(single)
    best: tuple[tuple[int, ...], int] | None = None
    for node in tree.inner:
        table = tables[node.mask] = _node_table(node, tables, search.whole, count)
        if len(table) <= count or not (search.by_worst or node is tree.inner[-1]):
            continue
        before, links, after, _, lowest, taken = table[count]
        worst = node.cost or 0 if search.by_worst else 0
        key = (before, worst, links, after, tree.partial(search.whole & ~taken), lowest)
        if best is None or key < best[0]:
            best = (key, taken)
    return best[1] if best else None


def _node_table(node: Inner, tables: dict[int, list[_Entry]], whole: int, count: int) -> list[_Entry]:
    """Return the best entry for 0, 1, … GPUs under a node, from the tables of its children."""
    table = [_NOTHING]
    for child in node.children:
        table = _combine(
            table, tables[child.mask if isinstance(child, Inner) else 1 << child], node.cost or 0, count
        )
    whole_below = whole & node.mask
    for number, entry in enumerate(table):
        before, links, after, partial, lowest, taken = entry
        if 0 != whole_below & ~taken != node.mask:
            table[number] = (before, links, after, partial + 1, lowest, taken)
    return table


def _combine(left: list[_Entry], right: list[_Entry], cost: int, count: int) -> list[_Entry]:
    combined: list[_Entry | None] = [None] * min(count + 1, len(left) + len(right) - 1)
    for i, left_entry in enumerate(left):
        for j, other in enumerate(right[: len(combined) - i]):
            entry = (
                left_entry[0] + other[0],
                left_entry[1] + other[1] + cost * i * j,
                left_entry[2] + other[2],
                left_entry[3] + other[3],
                left_entry[4] + other[4],
                left_entry[5] | other[5],
            )
            present = combined[i + j]
            if present is None or entry < present:
                combined[i + j] = entry
    return [entry for entry in combined if entry is not None]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A set in the making, and the start of its key."""

    gpus: tuple[int, ...] = ()
    before: int = 0
    worst: int = 0
    links: int = 0


class _Mesh:
    """Depth-first search over how many GPUs each group of exchangeable GPUs gives."""

    def __init__(self, search: Search) -> None:
        self._search = search
        tree, weights = search.tree, search.weights
        groups: dict[int, list[int]] = {}
        for gpu in bits(search.candidates):
            groups.setdefault(tree.twins[gpu], []).append(gpu)
        self._groups = [
            sorted(gpus, key=lambda gpu: (weights.before[gpu], weights.after[gpu], gpu))
            for gpus in groups.values()
        ]
        # near[GPU][n]: the least that links to n other candidates can cost
        self._near = {
            gpu: list(accumulate(sorted(tree.cost[gpu][other] for other in others), initial=0))
            for gpu in bits(search.candidates)
            for others in [bits(search.candidates & ~(1 << gpu))]
        }
        self._best: tuple[tuple[int, ...], int] | None = None

    def best(self) -> int | None:
        self._descend(0, _Begun())
        return self._best[1] if self._best else None

    def _descend(self, group: int, begun: _Begun) -> None:
        missing = self._search.count - len(begun.gpus)
        if missing == 0:
            self._offer(begun)
            return
        open_gpus = [gpu for gpus in self._groups[group:] for gpu in gpus]
        if len(open_gpus) < missing or self._hopeless(begun, open_gpus, missing):
            return
        steps = [begun]
        for gpu in self._groups[group][:missing]:
            steps.append(self._with_gpu(steps[-1], gpu))
        for step in reversed(steps):  # many of one group first: a good set early drops more later
            self._descend(group + 1, step)

    def _with_gpu(self, begun: _Begun, gpu: int) -> _Begun:
        costs = [self._search.tree.cost[gpu][other] for other in begun.gpus]
        return _Begun(
            (*begun.gpus, gpu),
            begun.before + self._search.weights.before[gpu],
            max((begun.worst, *costs)) if self._search.by_worst else 0,
            begun.links + sum(costs),
        )

    def _hopeless(self, begun: _Begun, open_gpus: list[int], missing: int) -> bool:
        """Tell whether even the kindest completion is worse than the best known set."""
        if self._best is None:
            return False
        rows = self._search.tree.cost
        costs = [[rows[gpu][other] for other in begun.gpus] for gpu in open_gpus]
        # a link between two GPUs still to come is counted from both ends, all others twice as well
        joins = sorted(
            2 * sum(row) + self._near[gpu][missing - 1] for gpu, row in zip(open_gpus, costs, strict=True)
        )
        worst = begun.worst
        if self._search.by_worst and begun.gpus:
            worst = max(worst, sorted(map(max, costs))[missing - 1])
        weights = sorted(self._search.weights.before[gpu] for gpu in open_gpus)
        kindest = (
            begun.before + sum(weights[:missing]),
            worst,
            begun.links + (sum(joins[:missing]) + 1) // 2,
        )
        return kindest > self._best[0][:3]

    def _offer(self, begun: _Begun) -> None:
        after = sum(self._search.weights.after[gpu] for gpu in begun.gpus)
        key: tuple[int, ...] = (begun.before, begun.worst, begun.links, after)
        if self._best and key > self._best[0][:4]:
            return
        taken = sum(1 << gpu for gpu in begun.gpus)
        key = (*key, self._search.tree.partial(self._search.whole & ~taken), *sorted(begun.gpus))
        if self._best is None or key < self._best[0]:
            self._best = (key, taken)
