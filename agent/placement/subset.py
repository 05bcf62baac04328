"""The cheapest set of several cards, exactly and fast: what Link and multi-slice requests both come down to.

The order is lexicographic: extra weight before the links, worst link (a collective runs at its slowest), sum
of links, extra weight after the links, subtrees left partly broken, lowest cards. Trying every set would be
right and slow (12,870 sets for 8 of 16 cards), so there are two ways to the same answer:

* on a uniform tree the cost of a set depends only on how many cards each subtree gives, so the best choice
for every
  count is built from the leaves up; every component of the order adds up over disjoint sets, which is what
  makes the best of the parts the best of the whole;
* on a mesh, cards that are exchangeable are counted, not named, and partial sets that cannot win are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from agent.placement.tree import Inner, Tree, bits


@dataclass(frozen=True, slots=True)
class Weights:
    """Extra weight per card, compared before and after the links.

    Together they must fix how many whole cards a set has: two sets of equal weights break the same number.
    """

    before: Sequence[int]
    after: Sequence[int]


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for: the best set of `count` of the `candidates`.

    whole: the whole cards, for counting broken subtrees. by_worst: compare the worst link before the sum.
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
        return 1 << min(bits(search.candidates), key=lambda card: _single_key(search, card))
    return _on_tree(search) if search.tree.uniform else _Mesh(search).best()


def _single_key(search: Search, card: int) -> tuple[int, int, int, int]:
    weights, left = search.weights, search.whole & ~(1 << card)
    return weights.before[card], weights.after[card], search.tree.partial(left), card


# before, links, after, subtrees partly broken below, lowest cards (negated), the set itself
_Entry = tuple[int, int, int, int, int, int]
_NOTHING: _Entry = (0, 0, 0, 0, 0, 0)


def _on_tree(search: Search) -> int | None:
    tree, weights, count = search.tree, search.weights, search.count
    size = len(tree.cost)
    tables: dict[int, list[_Entry]] = {}
    for card in range(size):
        tables[1 << card] = [_NOTHING]
        if search.candidates >> card & 1:
            single = (weights.before[card], 0, weights.after[card], 0, -1 << (size - 1 - card), 1 << card)
            tables[1 << card].append(single)
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
    """Return the best entry for 0, 1, … cards under a node, from the tables of its children."""
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
    made: list[_Entry | None] = [None] * min(count + 1, len(left) + len(right) - 1)
    for i, one in enumerate(left):
        for j, other in enumerate(right[: len(made) - i]):
            entry = (
                one[0] + other[0],
                one[1] + other[1] + cost * i * j,
                one[2] + other[2],
                one[3] + other[3],
                one[4] + other[4],
                one[5] | other[5],
            )
            known = made[i + j]
            if known is None or entry < known:
                made[i + j] = entry
    return [entry for entry in made if entry is not None]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A set in the making, and the start of its key."""

    cards: tuple[int, ...] = ()
    before: int = 0
    worst: int = 0
    links: int = 0


class _Mesh:
    """Depth-first search over how many cards each group of exchangeable cards gives."""

    def __init__(self, search: Search) -> None:
        self._search = search
        tree, weights = search.tree, search.weights
        groups: dict[int, list[int]] = {}
        for card in bits(search.candidates):
            groups.setdefault(tree.twins[card], []).append(card)
        self._groups = [
            sorted(cards, key=lambda card: (weights.before[card], weights.after[card], card))
            for cards in groups.values()
        ]
        # near[card][n]: the least that links to n other candidates can cost
        self._near = {
            card: list(accumulate(sorted(tree.cost[card][other] for other in others), initial=0))
            for card in bits(search.candidates)
            for others in [bits(search.candidates & ~(1 << card))]
        }
        self._best: tuple[tuple[int, ...], int] | None = None

    def best(self) -> int | None:
        self._descend(0, _Begun())
        return self._best[1] if self._best else None

    def _descend(self, group: int, begun: _Begun) -> None:
        missing = self._search.count - len(begun.cards)
        if missing == 0:
            self._offer(begun)
            return
        open_cards = [card for cards in self._groups[group:] for card in cards]
        if len(open_cards) < missing or self._hopeless(begun, open_cards, missing):
            return
        steps = [begun]
        for card in self._groups[group][:missing]:
            steps.append(self._with_card(steps[-1], card))
        for step in reversed(steps):  # many of one group first: a good set early drops more later
            self._descend(group + 1, step)

    def _with_card(self, begun: _Begun, card: int) -> _Begun:
        costs = [self._search.tree.cost[card][other] for other in begun.cards]
        return _Begun(
            (*begun.cards, card),
            begun.before + self._search.weights.before[card],
            max((begun.worst, *costs)) if self._search.by_worst else 0,
            begun.links + sum(costs),
        )

    def _hopeless(self, begun: _Begun, open_cards: list[int], missing: int) -> bool:
        """Tell whether even the kindest completion is worse than the best known set."""
        if self._best is None:
            return False
        rows = self._search.tree.cost
        costs = [[rows[card][other] for other in begun.cards] for card in open_cards]
        # a link between two cards still to come is counted from both ends, all others twice as well
        joins = sorted(
            2 * sum(row) + self._near[card][missing - 1] for card, row in zip(open_cards, costs, strict=True)
        )
        worst = begun.worst
        if self._search.by_worst and begun.cards:
            worst = max(worst, sorted(map(max, costs))[missing - 1])
        weights = sorted(self._search.weights.before[card] for card in open_cards)
        kindest = (
            begun.before + sum(weights[:missing]),
            worst,
            begun.links + (sum(joins[:missing]) + 1) // 2,
        )
        return kindest > self._best[0][:3]

    def _offer(self, begun: _Begun) -> None:
        after = sum(self._search.weights.after[card] for card in begun.cards)
        key: tuple[int, ...] = (begun.before, begun.worst, begun.links, after)
        if self._best and key > self._best[0][:4]:
            return
        taken = sum(1 << card for card in begun.cards)
        key = (*key, self._search.tree.partial(self._search.whole & ~taken), *sorted(begun.cards))
        if self._best is None or key < self._best[0]:
            self._best = (key, taken)
