# SPDX-License-Identifier: Apache-2.0
"""Which pods would have to end so that a pod fits on a node: as few as possible, and of those the smallest. Pure.

Most pods have part of one GPU and nothing else. Of these only the cheapest sets matter that leave one amount or another
of their GPU, so each GPU has a few levels, each at a price, and sums of levels are tried in the order of their prices:
the first that is enough is the best. Pods on several GPUs, and those that share what they hold, have no such order, so
every set of them is tried with the levels beside it.

A price is pods first, then slices. Whoever nobody here may name (reserved, or known by UID alone) stays. Each set is
tried on the room that it leaves, by the code that decides for real. After so many tries on a node a set is taken of
which no pod can be spared, whether or not it is the smallest. Nodes come in the order of a lower bound, so most are
never searched; on nodes with a hundred pods each the rest is not, once enough sets have been looked at.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations

from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.ending_levels import (
    NOBODY,
    NOTHING_HELD,
    EndingNeeds,
    EndingOption,
    Level,
    Load,
    Price,
    most_of,
    price_sum,
    price_total,
    serves_as_much,
)
from gigaslice.core.cluster.hardware import NOTHING, GpuRoom, NodeRoom
from gigaslice.core.cluster.holding import HeldShare, Holding
from gigaslice.core.cluster.node_record import NodeRecord
from gigaslice.core.cluster.problem import NodeProblem
from gigaslice.core.cluster.room_normalizer import RoomNormalizer
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import CORES_PER_GPU
from gigaslice.core.placement.tree import bits

__all__ = ["EndingPod", "EndingPods", "ending_pods"]

_NO_LIMIT: Price = (1 << 30, 0)
_MOST_EFFORT = 15_000
"""Sets that are looked at, over all nodes: a tenth of a second."""


@dataclass(frozen=True, slots=True)
class EndingPod:
    """A pod of a set. shares: the GPUs that it has, by index, with their slices."""

    name: str
    shares: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class EndingPods:
    """Pods of one node whose end would make room there. uids: in the order of the pods."""

    node: str
    pods: tuple[EndingPod, ...]
    uids: tuple[str, ...]

    @property
    def order(self) -> tuple[int, int, str]:
        """The best first: the fewest pods, then the fewest slices."""
        return len(self.pods), sum(slices for pod in self.pods for _, slices in pod.shares), self.node


def ending_pods(
    state: ClusterState, demand: PodDemand, nodes: Iterable[str], *, most: int = 3, tries: int = 400
) -> list[EndingPods]:
    """Returns sets of pods whose end would make room for another one, the best first and one for each node.

    Args:
        state: The cluster.
        demand: What the waiting pod asks for.
        nodes: Where it does not fit, and would if there were room.
        most: So many sets at most.
        tries: So many sets at most are tried on a node before a good one is taken for the best.
    """
    searches: list[tuple[Price, str, _NodeSearch]] = []
    for node in nodes:
        record, problem = state.record(node), state.problem_on(demand, node)
        if record is None or problem is None or problem.never is not None or record.closed():
            continue

        def fits(room: NodeRoom, node: str = node) -> bool:
            return state.refusal_in(room, demand, node) is None

        search = _NodeSearch(record, problem, fits, tries)
        searches.append((search.bound(), node, search))
    best: list[EndingPods] = []
    effort = 0
    for bound, _, search in sorted(searches, key=lambda row: row[:2]):
        limit = best[-1].order[:2] if len(best) == most else _NO_LIMIT
        spent = effort > _MOST_EFFORT
        if bound > limit or (spent and len(best) == most):
            break
        # of sets at the same price the one of the first node counts, whichever is searched first
        uids = search.cheapest((limit[0], limit[1] + 1), rough=spent)
        if uids is not None:
            insort(best, search.named(uids), key=lambda ending: ending.order)
            del best[most:]
        effort += search.effort
    return best


class _SpentError(Exception):
    """There are no tries left; never leaves this module."""


class _NodeSearch:
    """The search on one node. TRIES: so many sets at most are tried."""

    def __init__(
        self, record: NodeRecord, problem: NodeProblem, fits: Callable[[NodeRoom], bool], tries: int
    ) -> None:
        self._record, self._problem, self._fits, self._tries = record, problem, fits, tries
        self.effort = 0
        self._hardware, self._needs = problem.hardware, EndingNeeds.of(problem)
        serving = 0
        for block in problem.blocks:
            for units in block.alternatives:
                for unit in units:
                    serving |= unit.gpus
        self._gpus = [gpu for gpu in bits(serving) if not record.unhealthy >> gpu & 1]
        self._loads = dict.fromkeys(self._gpus, NOTHING_HELD)
        self._of: dict[str, dict[int, Load]] = {}
        """By id of a holding: what it has of the GPUs that serve the pod."""
        self._holdings: dict[str, list[Holding]] = {}
        """By UID of a pod that can be named: what ends with it, alone or with others."""
        for holding in record.holdings():
            loads = self._loads_of(holding)
            if not loads:
                continue
            self._of[holding.id] = loads
            for gpu, load in loads.items():
                self._loads[gpu] = self._loads[gpu].plus(load)
            if not holding.reserved and all(pod.name for pod in holding.consumers):
                for pod in holding.consumers:
                    self._holdings.setdefault(pod.uid, []).append(holding)
        self._prices: dict[str, Price] = {}
        self._single: dict[int, list[EndingOption]] = {gpu: [] for gpu in self._gpus}
        self._others: list[str] = []
        for uid, holdings in self._holdings.items():
            slices = sum(share.slices for holding in holdings for share in self._shares(holding))
            self._prices[uid] = (1, slices)
            loads = self._of[holdings[0].id]
            if len(holdings) == len(loads) == len(holdings[0].consumers) == 1:
                ((gpu, load),) = loads.items()
                self._single[gpu].append(EndingOption((1, slices), load, (uid,)))
            else:
                self._others.append(uid)
        for options in self._single.values():
            options.sort(key=lambda option: (-option.load.slices, option.uids))
        self._others.sort()

    def bound(self) -> Price:
        """Returns a price that no set is cheaper than."""
        if self._others or self._hardware.lends:
            return 1, 0
        prices = sorted(map(self._bound_of, self._gpus))
        return max(price_total(prices[: self._needs.gpus]), (1, 0))

    def cheapest(self, limit: Price, *, rough: bool = False) -> tuple[str, ...] | None:
        """Returns the UIDs of the pods of the cheapest set that costs less than a limit; None where there is none.

        Args:
            limit: The limit.
            rough: Whether any set will do of which no pod can be spared.
        """
        if not self._holdings or not self._fits(self._record.room_without(self._holdings)):
            return None
        spared: tuple[str, ...] | None = None
        if limit > _NO_LIMIT:  # what is dearer than a good set need not be looked at
            spared = self._spared()
            limit = price_total(self._prices[uid] for uid in spared)
        try:
            return spared if rough and spared else self._search(limit) or spared
        except _SpentError:
            spared = spared or self._spared()
            return spared if price_total(self._prices[uid] for uid in spared) <= limit else None

    def named(self, uids: Sequence[str]) -> EndingPods:
        """Returns a set with the names of its pods, those with the most first."""
        pods = []
        for uid in uids:
            shares: dict[int, int] = {}
            for holding in self._holdings[uid]:
                for share in self._shares(holding):
                    index = self._record.gpus[self._record.positions[share.gpu]].gpu.index
                    shares[index] = shares.get(index, 0) + share.slices
            pod = next(pod for pod in self._holdings[uid][0].consumers if pod.uid == uid)
            pods.append((EndingPod(f"{pod.namespace}/{pod.name}", tuple(sorted(shares.items()))), uid))
        pods.sort(key=lambda row: (-sum(slices for _, slices in row[0].shares), row[0].name))
        return EndingPods(
            self._record.facts.name, tuple(pod for pod, _ in pods), tuple(uid for _, uid in pods)
        )

    # --- parts --------------------------------------------------------------------------------------------------

    def _shares(self, holding: Holding) -> Iterator[HeldShare]:
        positions = self._record.positions
        return (share for share in holding.shares if share.gpu in positions)

    def _loads_of(self, holding: Holding) -> dict[int, Load]:
        loads: dict[int, Load] = {}
        for share in self._shares(holding):
            gpu = self._record.positions[share.gpu]
            if gpu in self._loads:
                real = self._hardware.real_slices(gpu, share.slices, share.host)
                loads[gpu] = Load(share.slices, real, share.cores, 1, int(share.exclusive))
        return loads

    def _bound_of(self, gpu: int) -> Price:
        """Returns a price below which a GPU with pods of its own alone is of no use."""
        load, pods = self._loads[gpu], self._single[gpu]
        if not load.holdings:
            return 0, 0
        idle = (load.holdings, load.slices)
        lacking = self._needs.least - max(0, self._hardware.gpus[gpu].slices - load.slices)
        if not self._needs.least:
            return idle
        if lacking <= 0:
            return 0, 0
        freed = 0
        for number, pod in enumerate(pods, start=1):
            freed += pod.load.slices
            if freed >= lacking:
                return min(idle, (number, lacking))
        return idle

    def _search(self, limit: Price) -> tuple[str, ...] | None:
        best: tuple[str, ...] | None = None
        normalizer = None if self._hardware.lends else RoomNormalizer(self._problem)
        options = {gpu: self._options(gpu, limit[0]) for gpu in self._gpus}
        for count in range(len(self._others) + 1):
            if count > limit[0]:  # it sinks with every set
                break
            for others in combinations(self._others, count):
                price = price_total(self._prices[uid] for uid in others)
                if price >= limit:
                    continue
                levels = self._levels(options, others, normalizer)
                if not self._enough(self._room({gpu: most_of(rows) for gpu, rows in levels.items()})):
                    continue
                beside = self._climb(levels, price, limit)
                if beside is not None:
                    limit, best = beside[0], (*others, *beside[1])
        return best

    def _options(self, gpu: int, most: int) -> list[EndingOption]:
        """Returns the sets of pods of one GPU alone that may be worth their price, the cheapest first.

        Args:
            gpu: The GPU.
            most: So many pods at most are worth it.
        """
        pods = self._single[gpu]
        forced, every = NOBODY, NOBODY
        for pod in pods:
            every = every.beside(pod)
            if pod.load.exclusive:
                forced = forced.beside(pod)
        front = [forced]
        if self._needs.least:
            for pod in pods:
                if not pod.load.exclusive:
                    grown = [option.beside(pod) for option in front if option.price[0] < most]
                    self.effort += len(grown)
                    front = self._pareto([*front, *grown], gpu)
        return sorted([NOBODY, *front, every], key=lambda option: option.price)

    def _pareto(self, options: list[EndingOption], gpu: int) -> list[EndingOption]:
        """Returns those that give back more of a GPU than any cheaper one, as far as it is of use."""
        options.sort(key=lambda option: (option.price, option.uids))
        held = self._loads[gpu]
        over = max(
            held.slices - self._hardware.gpus[gpu].slices, held.real - self._hardware.own[gpu].slices, 0
        )
        most, most_cores = self._needs.most + over, self._needs.most_cores
        kept: list[EndingOption] = []
        if self._hardware.lends or most_cores:
            amounts: list[tuple[int, int, int]] = []
            for option in options:
                load = option.load
                amount = (min(load.slices, most), min(load.real, most), min(load.cores, most_cores))
                if not any(a >= amount[0] and b >= amount[1] and c >= amount[2] for a, b, c in amounts):
                    amounts.append(amount)
                    kept.append(option)
            self.effort += len(options) * len(kept) // 40  # comparisons, as far as they are long
            return kept
        largest = -1
        for option in options:
            if option.load.slices > largest:
                kept.append(option)
                largest = option.load.slices
                if largest >= most:
                    break
        return kept

    def _levels(
        self,
        options: dict[int, list[EndingOption]],
        others: Sequence[str],
        normalizer: RoomNormalizer | None,
    ) -> dict[int, list[Level]]:
        """Returns what each GPU can have left once others have ended, each amount once, the cheapest first."""
        loads = dict(self._loads)
        for name, holding in {held.id: held for uid in others for held in self._holdings[uid]}.items():
            if set(holding.uids) <= set(others):
                for gpu, load in self._of[name].items():
                    loads[gpu] = loads[gpu].plus(load, -1)
        levels: dict[int, list[Level]] = {}
        for gpu in self._gpus:
            rows: list[Level] = []
            for option in options[gpu]:
                room = self._gpu_room(gpu, loads[gpu].plus(option.load, -1))
                usable = room if normalizer is None else normalizer.usable(room)
                if not any(serves_as_much(row.usable, usable) for row in rows):
                    rows.append(Level(option.price, room, usable, option.uids))
            levels[gpu] = rows
        return levels

    def _climb(
        self, levels: dict[int, list[Level]], price: Price, limit: Price
    ) -> tuple[Price, tuple[str, ...]] | None:
        """Returns the cheapest levels that are enough, as their price with PRICE and their pods; None from LIMIT on."""
        rows = [levels[gpu] for gpu in self._gpus]
        queue = [(price_sum(price, price_total(row[0].price for row in rows)), (0,) * len(rows), 0)]
        while queue:
            total, chosen, last = heappop(queue)
            if total >= limit:
                return None
            picked = [row[at] for row, at in zip(rows, chosen, strict=True)]
            if self._may_do(picked) and self._enough(
                self._room({gpu: level.room for gpu, level in zip(self._gpus, picked, strict=True)})
            ):
                return total, tuple(uid for level in picked for uid in level.uids)
            raised = sum(map(bool, chosen))
            for at in range(last, len(rows)):  # never a smaller one again, so each sum comes once
                higher = chosen[at] + 1
                if higher < len(rows[at]) and (chosen[at] or raised < self._needs.most_gpus):
                    before, after = rows[at][chosen[at]].price, rows[at][higher].price
                    dearer = (total[0] + after[0] - before[0], total[1] + after[1] - before[1])
                    heappush(queue, (dearer, (*chosen[:at], higher, *chosen[at + 1 :]), at))
        return None

    def _may_do(self, picked: Sequence[Level]) -> bool:
        """Whether it is worth a try: whether there are as many GPUs of use, and slices, as in any answer."""
        free = [level.usable.free for level in picked if level.usable.free]
        return len(free) >= self._needs.gpus and sum(free) >= self._needs.slices

    def _spared(self) -> tuple[str, ...]:
        """Returns a set of which no pod can be spared: all of them, less those that can, the smallest first."""
        out = set(self._holdings)
        for uid in sorted(out, key=lambda uid: (self._prices[uid], uid)):
            if self._fits(self._record.room_without(out - {uid})):
                out.discard(uid)
        return tuple(out)

    def _room(self, rooms: dict[int, GpuRoom]) -> NodeRoom:
        """Returns the room with these GPUs so, and the others as they are."""
        return tuple(rooms.get(gpu, room) for gpu, room in enumerate(self._record.current_room()))

    def _gpu_room(self, gpu: int, load: Load) -> GpuRoom:
        """Returns what a GPU has left, as `NodeRecord.room_without` counts it."""
        if load.exclusive:
            return NOTHING
        return GpuRoom(
            max(0, self._hardware.gpus[gpu].slices - load.slices),
            max(0, self._hardware.own[gpu].slices - load.real),
            max(0, CORES_PER_GPU - load.cores),
            bool(load.holdings),
        )

    def _enough(self, room: NodeRoom) -> bool:
        if not self._tries:
            raise _SpentError
        self._tries -= 1
        self.effort += 1
        return self._fits(room)
