# SPDX-License-Identifier: Apache-2.0
"""The answers for one demand on all nodes, kept until a node changes. Pure.

Pods come in rows of one template and a decision changes one node, so almost everything that a filter or a ranking needs
is known from the call before. Only nodes that have changed are evaluated again. What is left of a call is the list of
names, thousands of them, in any order and any selection, so whatever is done for each is one look-up.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence

from gigaslice.core.cluster.class_masks import ClassMasks
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.evaluator import PodEvaluator
from gigaslice.core.cluster.hardware import Hardware, NodeKind, NodeRoom
from gigaslice.core.cluster.node_record import NodeRecord
from gigaslice.core.cluster.problem import Masks, NodeProblem, build_problem
from gigaslice.core.cluster.rank import RankKey
from gigaslice.core.cluster.refusal import Refusal, RefusalReason
from gigaslice.core.placement import Policy

__all__ = ["DemandCache"]

_MANY = 64  # entries of the order that are sorted in rather than inserted one by one

_Entry = tuple[RankKey, str]


class DemandCache:
    """The answers for one demand.

    Args:
        demand: The demand.
        nodes: Those that there are; nothing is kept of others.
        masks: Which of their GPUs are of a class.
        policy: How GPUs are chosen on a node.
        spread: Whether the emptiest node comes first rather than the fullest.
    """

    def __init__(
        self,
        demand: PodDemand,
        nodes: Mapping[str, NodeRecord],
        masks: ClassMasks,
        policy: Policy,
        *,
        spread: bool,
    ) -> None:
        self.demand = demand
        self._nodes, self._masks = nodes, masks
        self._policy, self._spread = policy, spread
        self._by_kind: dict[NodeKind, PodEvaluator] = {}
        """For nodes of which the kind is all that matters."""
        self._evaluators: dict[tuple[Hardware, Masks], PodEvaluator] = {}
        self._changed: set[str] = set()
        self._refusals: dict[str, Refusal | None] = {}
        self._unplaced: set[str] = set()
        """Nodes that it fits on, and that have no place in the order yet."""
        self._placed: dict[str, _Entry] = {}
        self._order: list[_Entry] = []
        self._fitting: Sequence[str] = ()
        """What `split` said last: the names of the next `best` are often the same."""

    def problem(self, record: NodeRecord) -> NodeProblem:
        """Returns the demand on a node whose GPUs are known."""
        return self._evaluator(record).problem

    def refusal(self, node: str, without: Collection[str] = ()) -> Refusal | None:
        """Returns why the pod does not fit on a node as it is; None where it does.

        Args:
            node: Where.
            without: UIDs of pods to be left out of account.
        """
        if not self.demand.any:
            return None
        record = self._nodes.get(node)
        if record is None:
            return RefusalReason.NO_INVENTORY.refusal
        if record.problem is not None:
            return record.problem.refusal
        if record.unread and record.closed(without):
            return RefusalReason.UNREADABLE_POD.refusal
        room = record.room_without(without) if without else record.current_room()
        return self._evaluator(record).refusal(room, record.unhealthy)

    def refusal_in(self, room: NodeRoom, node: str) -> Refusal | None:
        """Returns why the pod would not fit if so much were left on a node whose GPUs are known."""
        record = self._nodes[node]
        return self._evaluator(record).refusal(room, record.unhealthy)

    def key(self, node: str) -> RankKey:
        """Returns the rank of a node that the pod fits on."""
        record = self._nodes.get(node)
        if record is None or record.problem is not None:
            return ()
        return self._evaluator(record).key(record.current_room())

    def changed(self, node: str) -> None:
        """Takes note that a node has changed, has come or has gone."""
        self._changed.add(node)

    def split(self, names: Sequence[str]) -> tuple[list[str], dict[str, Refusal]]:
        """Returns the nodes that the pod fits on, in their order, and why it does not fit on the others."""
        self._renew()
        try:
            refusals = list(map(self._refusals.__getitem__, names))
        except KeyError:
            refusals = list(map(self._kept_refusal, names))
        if not any(refusals):
            self._fitting = fitting = list(names)
            return fitting, {}
        refused = {
            name: refusal for name, refusal in zip(names, refusals, strict=True) if refusal is not None
        }
        self._fitting = fitting = [name for name in names if name not in refused]
        return fitting, refused

    def best(self, names: Sequence[str], most: int) -> list[str]:
        """Returns the best MOST of the nodes that the pod fits on, the best first.

        The names are many, and only few of the order's first matter: so those few are looked for among the names.

        Args:
            names: The nodes in question.
            most: So many at most.
        """
        self._renew()
        if names is not self._fitting and names != self._fitting:
            for name in names:
                self._kept_refusal(name)
        first = 2 * most
        while True:
            among = self._unplaced.union(name for _, name in self._order[:first])
            there = {name for name in names if name in among}
            if self._unplaced:
                self._place(there & self._unplaced)
            best = [name for _, name in self._order[:first] if name in there][:most]
            if len(best) == most or first >= len(self._order):
                return best
            first *= 8

    def preferred(self, names: Sequence[str], most: int, favour: Mapping[str, float]) -> list[str]:
        """Returns the best MOST of the nodes that the pod fits on where some nodes are favoured, the best first.

        Args:
            names: The nodes in question.
            most: Of those to be returned.
            favour: By node, what is added to its standing: the share of the nodes that are not better than it, 1 for
                the best ones. Nodes that are equally good have the same.
        """
        best = self.best(names, most)
        asked = favour.keys() & set(names)
        self._place(asked & self._unplaced)
        favoured = [name for name in asked if name in self._placed]
        favoured.sort(key=lambda name: (-favour[name], self._placed[name]))
        total = len(self._order)

        def joint(name: str) -> float:
            better = bisect_left(self._order, (self._placed[name][0],))
            return float(1.0 - better / total + favour.get(name, 0.0))

        candidates = dict.fromkeys((*best, *favoured[:most]))
        return sorted(candidates, key=lambda name: (-joint(name), self._placed[name]))[:most]

    def _kept_refusal(self, node: str) -> Refusal | None:
        if node not in self._refusals:
            refusal = self._refusals[node] = self.refusal(node)
            if refusal is None:
                self._unplaced.add(node)
        return self._refusals[node]

    def _renew(self) -> None:
        """Judges those nodes again that have changed, as far as they had been judged."""
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        gone = []
        for name in changed:
            entry = self._placed.pop(name, None)
            if entry is not None:
                gone.append(entry)
            if name in self._refusals:
                del self._refusals[name]
                self._unplaced.discard(name)
                if name in self._nodes:
                    self._kept_refusal(name)
        if len(gone) > _MANY:
            self._order = [entry for entry in self._order if entry[1] in self._placed]
            return
        for entry in gone:
            del self._order[bisect_left(self._order, entry)]

    def _place(self, names: set[str]) -> None:
        """Gives nodes that have none their place in the order."""
        self._unplaced -= names
        entries = [(self.key(name), name) for name in names]
        self._placed.update((entry[1], entry) for entry in entries)
        if len(entries) > _MANY:
            self._order += entries
            self._order.sort()
        else:
            for entry in entries:
                insort(self._order, entry)

    def _evaluator(self, record: NodeRecord) -> PodEvaluator:
        kind = record.kind
        if kind is None:
            raise AssertionError(record.facts.name)
        evaluator = self._by_kind.get(kind)
        if evaluator is not None:
            return evaluator
        masks: Masks = tuple(
            (
                record.allowed(container.options),
                tuple(self._masks.mask(record, units.name) for units in container.classes),
            )
            for container in self.demand.containers
        )
        evaluator = self._evaluators.get((kind.hardware, masks))
        if evaluator is None:
            problem = build_problem(kind.hardware, self.demand, masks)
            evaluator = PodEvaluator(problem, self._policy, spread=self._spread)
            self._evaluators[kind.hardware, masks] = evaluator
        if not any(container.options.names_gpus for container in self.demand.containers) and all(
            self._masks.same_on_kind(name) for name in self.demand.classes
        ):
            self._by_kind[kind] = evaluator
        return evaluator
