# SPDX-License-Identifier: Apache-2.0
"""Scores of GPU pairs and the best-effort choice over them (table 3 of the Inspur paper; NVIDIA's allocator).

Best-effort is not greedy: it divides all available GPUs into sets of the given size, looks for the division
with the greatest total, and gives away the best set of it, so that taking {2,3} now does not cost later pairs
of a DGX-1 their double links. GPUs that are exchangeable are counted, not named: NVSwitch machines have
hardly any divisions.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter, le, mul, sub

from gigaslice.core.model import LinkLevel, Topology
from gigaslice.core.placement.subset import Search, Weights, cheapest
from gigaslice.core.placement.tree import bits, build_tree

LINK_SCORE = 100
"""Score of one NVLink: 100 per link without a cap, so any link beats any PCIe path."""

_SAME_BOARD_SCORE = 60

_MOST_SETS = 2000
"""Sets tried before giving up: enough for any 9 GPUs and for all machines with NVSwitch, some 10 ms of work."""

_Counts = tuple[int, ...]


def pair_score(topology: Topology, gpu: int, other: int) -> int:
    """Return the score of a pair of GPUs, 0 for a GPU with itself.

    10 (across sockets) to 60 (same board) for the PCIe path, plus 100 per NVLink. The paper's table lists the
    two as alternatives; they add up, so that sets stay on one socket even where NVLinks are everywhere.
    """
    if gpu == other:
        return 0
    level: LinkLevel = topology.levels[gpu][other]
    return _SAME_BOARD_SCORE - level + LINK_SCORE * topology.nvlinks[gpu][other]


def best_effort(
    topology: Topology, available: Sequence[int], must_include: Sequence[int], size: int
) -> tuple[int, ...] | None:
    """Return the `size` GPUs to prefer, or None where no such choice exists.

    GPUs are positions in the topology. The available GPUs are divided into sets of `size` and one of what
    is left over; a division counts only if one full set has all of `must_include`; the greatest total wins,
    then the greatest set of it that qualifies, then the lowest GPUs. Where there are more divisions than are
    worth a pause (irregular meshes of many GPUs) the set with the greatest score of its own is taken instead.
    """
    pool, must = tuple(sorted(set(available))), tuple(sorted(set(must_include)))
    if not 0 < size <= len(pool) or len(must) > size or not set(must) <= set(pool):
        return None
    return _best_effort(topology, pool, must, size)


@lru_cache(maxsize=64)  # the kubelet asks twice for each container, and pods of one kind come in rows
def _best_effort(
    topology: Topology, pool: tuple[int, ...], must: tuple[int, ...], size: int
) -> tuple[int, ...] | None:
    division = _Division(topology, pool, must, size)
    best: tuple[int, int] = (0, 0)
    winners: list[_Counts] = []
    try:
        everything = division.all_gpus
        for counts, score, most in division.promising(everything, (size,), division.forced, division.forced):
            if winners and most < -2 * best[0]:
                break  # and so are all that follow
            key = (-score - division.best_total(_minus(everything, counts)), -score)
            if not winners or key < best:
                best, winners = key, []
            if key == best:
                winners.append(counts)
    except _TooManySetsError:
        return _greatest_sum(topology, pool, must, size)
    return min((division.lowest_gpus(counts) for counts in winners), default=None)


def _greatest_sum(
    topology: Topology, pool: Sequence[int], must: Sequence[int], size: int
) -> tuple[int, ...] | None:
    """Return the set with the greatest score: the least cost, since a cost is a constant less a score."""
    tree = build_tree(topology, tuple(pool))
    optional = tuple(int(gpu not in must) for gpu in pool)
    weights = Weights(optional, (0,) * len(pool))
    everything = (1 << len(pool)) - 1
    gpus = cheapest(Search(tree, 0, everything, size, weights, by_worst=False))
    return None if gpus is None else tuple(pool[gpu] for gpu in bits(gpus))


class _TooManySetsError(Exception):
    """The search was given up; never leaves this module."""


class _Division:
    """Divisions of a set of GPUs, where a set is written as how many GPUs it has of each group of twins."""

    def __init__(self, topology: Topology, pool: Sequence[int], must: Sequence[int], size: int) -> None:
        scores = _scores(topology)
        self._groups = _groups(scores, pool, must)
        self._size = size
        self._totals: dict[_Counts, int] = {}
        self._tried = 0
        first = [group[0] for group in self._groups]
        self._between = [[scores[a][b] for b in first] for a in first]
        self._within = [scores[group[0]][group[1]] if len(group) > 1 else 0 for group in self._groups]
        ranked = [sorted((scores[gpu][other] for other in pool), reverse=True) for gpu in first]
        rest = len(pool) % size  # GPUs of the set that is left over, which reach fewer others
        self._reach = [sum(row[: size - 1]) for row in ranked]
        self._slack = rest * min(sum(row[max(0, rest - 1) : size - 1]) for row in ranked)
        self.all_gpus: _Counts = tuple(len(group) for group in self._groups)
        self.forced: _Counts = tuple(int(group[0] in must) for group in self._groups)
        self._alike = self._exchangeable_groups()
        self._kind = {group: number for number, kin in enumerate(self._alike) for group in kin}
        self._kins = [(kin, itemgetter(*kin)) for kin in self._alike if len(kin) > 1]

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
        for kin, of_kin in self._kins:
            for group, count in zip(kin, sorted(of_kin(left)), strict=True):
                counts[group] = count
        return tuple(counts)

    def lowest_gpus(self, counts: _Counts) -> tuple[int, ...]:
        """Return the lowest GPUs among all sets that these counts stand for."""
        chosen: list[int] = []
        for members in self._exchangeable(self.forced):
            sizes = sorted((counts[group] for group in members), reverse=True)
            taken = dict.fromkeys(members, 0)
            owned = ((gpu, group) for group in members for gpu in self._groups[group])
            for gpu, group in sorted(owned):
                taken[group] += 1
                if all(map(le, sorted(taken.values(), reverse=True), sizes)):
                    chosen.append(gpu)
                else:
                    taken[group] -= 1
        return tuple(sorted(chosen))

    def _exchangeable(self, alike: _Counts) -> list[list[int]]:
        """Return the groups in classes whose members stand for one another as long as all GPUs are there."""
        classes: dict[tuple[int, int, int], list[int]] = {}
        for group, n in enumerate(self.all_gpus):
            classes.setdefault((self._kind[group], n, alike[group]), []).append(group)
        return list(classes.values())

    def best_total(self, left: _Counts) -> int:
        """Return the greatest total of all divisions of what is left."""
        total = self._totals.get(left)
        if total is None:
            canonical = self._canonical(left)
            total = self._totals.get(canonical)
            if total is None:
                total = self._totals[canonical] = self._divide(canonical)
            self._totals[left] = total
        return total

    def _divide(self, left: _Counts) -> int:
        count = sum(left)
        if count == 0:
            return 0
        forced = [0] * len(left)
        forced[next(group for group, n in enumerate(left) if n)] = (
            1  # one GPU goes somewhere: try each set for it
        )
        sizes = {size for size in (self._size, count % self._size) if 0 < size <= count}
        best: int | None = None
        for counts, score, most in self.promising(left, tuple(sizes), tuple(forced), left):
            if best is not None and most <= 2 * best:
                break  # and so are all that follow
            total = score + self.best_total(_minus(left, counts))
            best = total if best is None else max(best, total)
        return best or 0

    def promising(
        self, left: _Counts, sizes: Sequence[int], at_least: _Counts, alike: _Counts
    ) -> list[tuple[_Counts, int, int]]:
        """Return the sets of these sizes with their scores and twice what a division with them can total at most.

        The greatest such total comes first. It is the set's own score, and for each GPU that is left half of its best
        scores with as many others as can be in a set with it.
        """
        rated = []
        for size in sizes:
            less = self._slack if (sum(left) - size) % self._size else 0
            rated += [
                (counts, score, 2 * score + sum(map(mul, _minus(left, counts), self._reach)) - less)
                for counts, score in self.sets(left, size, at_least, alike)
            ]
        rated.sort(key=itemgetter(2), reverse=True)
        return rated

    def sets(self, left: _Counts, size: int, at_least: _Counts, alike: _Counts) -> list[tuple[_Counts, int]]:
        """Return the sets of `size` GPUs out of `left` that have `at_least` these, with their scores.

        Of sets that differ only in which of several exchangeable groups gives how many, the one in which earlier groups
        give more stands for all. Groups are exchangeable only where they are equal in `alike`.
        """
        groups = [group for group, n in enumerate(left) if n]
        room = [*accumulate((left[group] for group in reversed(groups)), initial=0)][::-1]
        owed = [*accumulate((at_least[group] for group in reversed(groups)), initial=0)][::-1]
        twin = self._earlier_twins(left, groups, alike)
        counts = [0] * len(left)
        chosen: list[tuple[int, int]] = []  # group and how many, of those that give any
        sets_of_class: list[tuple[_Counts, int]] = []

        def extend(start: int, missing: int, score: int) -> None:
            if missing == 0:
                self._tried += 1
                if self._tried > _MOST_SETS:
                    raise _TooManySetsError
                sets_of_class.append((tuple(counts), score))
                return
            for place in range(start, len(groups)):
                if room[place] < missing:
                    return
                group = groups[place]
                high = min(left[group], missing - owed[place + 1])
                if group in twin:
                    high = min(high, counts[twin[group]])
                low = max(1, at_least[group], missing - room[place + 1])
                if high >= low:
                    row, within = self._between[group], self._within[group]
                    join = sum([n * row[other] for other, n in chosen])
                    for n in range(low, high + 1):
                        counts[group] = n
                        chosen.append((group, n))
                        extend(place + 1, missing - n, score + n * join + n * (n - 1) // 2 * within)
                        chosen.pop()
                    counts[group] = 0
                if at_least[group]:
                    return  # it cannot be left out

        extend(0, size, 0)
        return sets_of_class

    def _earlier_twins(self, left: _Counts, groups: Sequence[int], alike: _Counts) -> dict[int, int]:
        """Return for each group the one before it that is exchangeable with it and has as many GPUs left."""
        latest: dict[tuple[int, int, int], int] = {}
        twins = {}
        for group in groups:
            kind = (self._kind[group], left[group], alike[group])
            if kind in latest:
                twins[group] = latest[kind]
            latest[kind] = group
        return twins


def _minus(left: _Counts, counts: _Counts) -> _Counts:
    return tuple(map(sub, left, counts))


@lru_cache(maxsize=8)  # of a node there is one, until its hardware changes
def _scores(topology: Topology) -> tuple[tuple[int, ...], ...]:
    gpus = range(len(topology.levels))
    return tuple(tuple(pair_score(topology, first, other) for other in gpus) for first in gpus)


def _groups(scores: Sequence[Sequence[int]], pool: Sequence[int], must: Sequence[int]) -> list[list[int]]:
    """Group GPUs that score alike with all others; a GPU that must be included stands alone."""
    rows = {gpu: [scores[gpu][other] for other in pool] for gpu in pool}
    place = {gpu: number for number, gpu in enumerate(pool)}

    def alike(first: int, other: int) -> bool:
        mine, its = rows[first].copy(), rows[other].copy()
        for gpu in (first, other):
            mine[place[gpu]] = its[place[gpu]] = 0
        return mine == its

    groups: list[list[int]] = []
    for gpu in pool:
        for group in groups:
            if gpu not in must and group[0] not in must and alike(gpu, group[0]):
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    return groups
