"""What has been found out about one shape of request on all nodes, kept until a node changes. Pure.

Pods come in rows of one template and a decision changes one node, so almost everything that a filter or a ranking needs
is known from the call before: only nodes that have changed are looked at again. What is left of a call is the list of
names, thousands of them, in any order and any selection, so whatever is done for each is one look-up.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Mapping, Sequence

from gigaslice.cluster.demand import PodDemand
from gigaslice.cluster.hardware import Hardware, NodeKind
from gigaslice.cluster.judge import Judge
from gigaslice.cluster.problem import Masks
from gigaslice.cluster.rank import RankKey
from gigaslice.cluster.refusal import Refusal

__all__ = ["Shape"]

_MANY = 64  # entries of the order that are sorted in rather than inserted one by one

_Entry = tuple[RankKey, str]


class Shape:
    """One demand.

    Args:
        demand: The demand.
        nodes: Those that there are; what is known of others is not kept.
        judge: Why the pod does not fit on a node; None where it does.
        key: The rank of a node that it fits on.
    """

    def __init__(
        self,
        demand: PodDemand,
        nodes: Container[str],
        judge: Callable[[Shape, str], Refusal | None],
        key: Callable[[Shape, str], RankKey],
    ) -> None:
        self.demand = demand
        self.by_kind: dict[NodeKind, Judge] = {}
        """For nodes of which the kind is all that matters."""
        self.judges: dict[tuple[Hardware, Masks], Judge] = {}
        self._nodes, self._judge, self._key = nodes, judge, key
        self._changed: set[str] = set()
        self._verdicts: dict[str, Refusal | None] = {}
        self._unplaced: set[str] = set()
        """Nodes that it fits on, and that have no place in the order yet."""
        self._placed: dict[str, _Entry] = {}
        self._order: list[_Entry] = []
        self._fitting: Sequence[str] = ()
        """What `split` said last: the names of the next `best` are often the same."""

    def changed(self, node: str) -> None:
        """Takes note that a node has changed, has come or has gone."""
        self._changed.add(node)

    def split(self, names: Sequence[str]) -> tuple[list[str], dict[str, Refusal]]:
        """Returns the nodes that the pod fits on, in their order, and why it does not fit on the others."""
        self._renew()
        try:
            found = list(map(self._verdicts.__getitem__, names))
        except KeyError:
            found = list(map(self._known_refusal, names))
        if not any(found):
            self._fitting = fitting = list(names)
            return fitting, {}
        self._fitting = fitting = [
            name for name, refusal in zip(names, found, strict=True) if refusal is None
        ]
        refused = {name: refusal for name, refusal in zip(names, found, strict=True) if refusal is not None}
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
                self._known_refusal(name)
        first = 2 * most
        while True:
            among = self._unplaced.union(name for _, name in self._order[:first])
            there = {name for name in names if name in among}
            if self._unplaced:
                self._place(there & self._unplaced)
            found = [name for _, name in self._order[:first] if name in there][:most]
            if len(found) == most or first >= len(self._order):
                return found
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

    def _known_refusal(self, node: str) -> Refusal | None:
        if node not in self._verdicts:
            found = self._verdicts[node] = self._judge(self, node)
            if found is None:
                self._unplaced.add(node)
        return self._verdicts[node]

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
            if name in self._verdicts:
                del self._verdicts[name]
                self._unplaced.discard(name)
                if name in self._nodes:
                    self._known_refusal(name)
        if len(gone) > _MANY:
            self._order = [entry for entry in self._order if entry[1] in self._placed]
            return
        for entry in gone:
            del self._order[bisect_left(self._order, entry)]

    def _place(self, names: set[str]) -> None:
        """Gives nodes that have none their place in the order."""
        self._unplaced -= names
        entries = [(self._key(self, name), name) for name in names]
        self._placed.update((entry[1], entry) for entry in entries)
        if len(entries) > _MANY:
            self._order += entries
            self._order.sort()
        else:
            for entry in entries:
                insort(self._order, entry)
