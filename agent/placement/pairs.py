"""Scores of GPU pairs and the best-effort choice over them (table 3 of the Inspur paper; NVIDIA's allocator).

Best-effort is not greedy: it divides all available cards into sets of the wanted size, looks for the division
with the greatest total, and gives away the best set of it, so that taking {2,3} now does not cost later pairs
of a DGX-1 their double links. Cards that are exchangeable are counted, not named: NVSwitch machines have
hardly any divisions.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from agent.model import LinkLevel, Topology
from agent.placement.subset import Search, Weights, cheapest
from agent.placement.tree import bits, build_tree

LINK_SCORE = 100
"""Score of one NVLink: 100 per link without a cap, so any link beats any PCIe path."""

_SAME_BOARD_SCORE = 60

_MOST_SETS = 2000
"""Sets tried before giving up: enough for any 9 cards and for all machines with NVSwitch, some 30 ms of work."""

_Counts = tuple[int, ...]


def pair_score(topology: Topology, one: int, other: int) -> int:
    """Return the score of a pair of cards, 0 for a card with itself.

    10 (across sockets) to 60 (same board) for the PCIe path, plus 100 per NVLink. The paper's table lists the
    two as alternatives; they add up, so that sets stay on one socket even where NVLinks are everywhere.
    """
    if one == other:
        return 0
    level: LinkLevel = topology.levels[one][other]
    return _SAME_BOARD_SCORE - level + LINK_SCORE * topology.nvlinks[one][other]


def set_score(topology: Topology, cards: Sequence[int]) -> int:
    """Return the summed score of all pairs in a set."""
    return sum(pair_score(topology, one, other) for one, other in combinations(cards, 2))


def best_effort(
    topology: Topology, available: Sequence[int], must_include: Sequence[int], size: int
) -> tuple[int, ...] | None:
    """Return the `size` cards to prefer, or None where no such choice exists.

    Cards are positions in the topology. The available cards are divided into sets of `size` and one of what
    is left over; a division counts only if one full set has all of `must_include`; the greatest total wins,
    then the greatest set of it that qualifies, then the lowest cards. Where there are more divisions than are
    worth a pause (irregular meshes of many cards) the set with the greatest score of its own is taken instead.
    """
    pool, must = sorted(set(available)), sorted(set(must_include))
    if not 0 < size <= len(pool) or len(must) > size or not set(must) <= set(pool):
        return None
    division = _Division(topology, pool, must, size)
    best: tuple[int, int, tuple[int, ...]] | None = None
    try:
        for counts, score in division.sets(division.all_cards, size, division.forced):
            total = score + division.best_total(_minus(division.all_cards, counts))
            key = (-total, -score, division.cards_of(counts))
            if best is None or key < best:
                best = key
    except _TooManySetsError:
        return _greatest_sum(topology, pool, must, size)
    return best[2] if best else None


def _greatest_sum(
    topology: Topology, pool: Sequence[int], must: Sequence[int], size: int
) -> tuple[int, ...] | None:
    """Return the set with the greatest score: the least cost, since a cost is a constant less a score."""
    tree = build_tree(topology, tuple(pool))
    optional = tuple(int(card not in must) for card in pool)
    weights = Weights(optional, (0,) * len(pool))
    everything = (1 << len(pool)) - 1
    cards = cheapest(Search(tree, 0, everything, size, weights, by_worst=False))
    return None if cards is None else tuple(pool[card] for card in bits(cards))


class _TooManySetsError(Exception):
    """The search was given up; never leaves this module."""


class _Division:
    """Divisions of a set of cards, where a set is written as how many cards it has of each group of twins."""

    def __init__(self, topology: Topology, pool: Sequence[int], must: Sequence[int], size: int) -> None:
        self._groups = _groups(topology, pool, must)
        self._size = size
        self._totals: dict[_Counts, int] = {}
        self._tried = 0
        first = [group[0] for group in self._groups]
        self._between = [[pair_score(topology, a, b) for b in first] for a in first]
        self._within = [pair_score(topology, *group[:2]) if len(group) > 1 else 0 for group in self._groups]
        self.all_cards: _Counts = tuple(len(group) for group in self._groups)
        self.forced: _Counts = tuple(int(group[0] in must) for group in self._groups)
        self._alike = self._exchangeable_groups()

    def _exchangeable_groups(self) -> list[list[int]]:
        """Return the groups of twins, grouped again: what is left in two such groups may be swapped."""
        alike: list[list[int]] = []
        for group, within in enumerate(self._within):
            for kin in alike:
                others = (other for other in range(len(self._within)) if other not in (group, kin[0]))
                if self._within[kin[0]] == within and all(
                    self._between[group][other] == self._between[kin[0]][other] for other in others
                ):
                    kin.append(group)
                    break
            else:
                alike.append([group])
        return alike

    def _canonical(self, left: _Counts) -> _Counts:
        """Return the one of all equivalent leftovers under which its total is remembered."""
        counts = list(left)
        for kin in self._alike:
            for group, count in zip(kin, sorted(left[group] for group in kin), strict=True):
                counts[group] = count
        return tuple(counts)

    def cards_of(self, counts: _Counts) -> tuple[int, ...]:
        """Return the lowest cards that make up such a set."""
        return tuple(
            sorted(card for group, n in zip(self._groups, counts, strict=True) for card in group[:n])
        )

    def best_total(self, left: _Counts) -> int:
        """Return the greatest total of all divisions of what is left."""
        left = self._canonical(left)
        known = self._totals.get(left)
        if known is not None:
            return known
        count = sum(left)
        if count == 0:
            return 0
        forced = [0] * len(left)
        forced[next(group for group, n in enumerate(left) if n)] = (
            1  # one card goes somewhere: try each set for it
        )
        sizes = {size for size in (self._size, count % self._size) if 0 < size <= count}
        best = max(
            score + self.best_total(_minus(left, counts))
            for size in sizes
            for counts, score in self.sets(left, size, tuple(forced))
        )
        self._totals[left] = best
        return best

    def sets(self, left: _Counts, size: int, at_least: _Counts) -> Iterator[tuple[_Counts, int]]:
        """Yield every set of `size` cards out of `left` that has `at_least` these, with its score."""
        room = [sum(left[group:]) for group in range(len(left) + 1)]
        owed = [sum(at_least[group:]) for group in range(len(left) + 1)]

        def extend(counts: _Counts, missing: int, score: int) -> Iterator[tuple[_Counts, int]]:
            group = len(counts)
            if group == len(left):
                self._tried += 1
                if self._tried > _MOST_SETS:
                    raise _TooManySetsError
                yield counts, score
                return
            low = max(at_least[group], missing - room[group + 1])
            join = sum(n * self._between[group][other] for other, n in enumerate(counts) if n)
            for n in range(low, min(left[group], missing - owed[group + 1]) + 1):
                gained = n * join + n * (n - 1) // 2 * self._within[group]
                yield from extend((*counts, n), missing - n, score + gained)

        yield from extend((), size, 0)


def _minus(left: _Counts, counts: _Counts) -> _Counts:
    return tuple(have - taken for have, taken in zip(left, counts, strict=True))


def _groups(topology: Topology, pool: Sequence[int], must: Sequence[int]) -> list[list[int]]:
    """Group cards that score alike with everybody else; a card that must be included stands alone."""
    groups: list[list[int]] = []
    for card in pool:
        for group in groups:
            others = (other for other in pool if other not in (card, group[0]))
            if (
                card not in must
                and group[0] not in must
                and all(
                    pair_score(topology, card, other) == pair_score(topology, group[0], other)
                    for other in others
                )
            ):
                group.append(card)
                break
        else:
            groups.append([card])
    return groups
