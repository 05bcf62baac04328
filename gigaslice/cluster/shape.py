"""What has been found out about one shape of request on all nodes, kept until a node changes. Pure.

Pods come in rows of one template and a decision changes one node, so almost everything that a filter or a ranking needs
is known from the call before: only nodes that have changed are looked at again. What is left of a call is the list of
names, thousands of them, in any order and any selection, so whatever is done for each is one look-up.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Sequence

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
        self._placed: dict[str, _Entry] = {}
        self._order: list[_Entry] = []

    def changed(self, node: str) -> None:
        """Takes note that a node has changed, has come or has gone."""
        self._changed.add(node)

    def refusal(self, node: str) -> Refusal | None:
        """Returns why the pod does not fit on a node; None where it does."""
        self._renew()
        return self._known_refusal(node)

    def split(self, names: Sequence[str]) -> tuple[list[str], dict[str, Refusal]]:
        """Returns the nodes that the pod fits on, in their order, and why it does not fit on the others."""
        self._renew()
        try:
            found = list(map(self._verdicts.__getitem__, names))
        except KeyError:
            found = list(map(self._known_refusal, names))
        if not any(found):
            return list(names), {}
        fitting = [name for name, refusal in zip(names, found, strict=True) if refusal is None]
        refused = {name: refusal for name, refusal in zip(names, found, strict=True) if refusal is not None}
        return fitting, refused

    def best(self, names: Sequence[str], most: int) -> list[str]:
        """Returns the best MOST of the nodes that the pod fits on, the best first."""
        wanted, found = self._place(names), list[str]()
        for _, name in self._order:
            if name in wanted:
                found.append(name)
                if len(found) >= most:
                    break
        return found

    def ranked(self, names: Sequence[str]) -> list[str]:
        """Returns those of the nodes that the pod fits on, the best first."""
        wanted = self._place(names)
        return [name for _, name in self._order if name in wanted]

    def _known_refusal(self, node: str) -> Refusal | None:
        if node not in self._verdicts:
            self._verdicts[node] = self._judge(self, node)
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
                if name in self._nodes:
                    self._known_refusal(name)
        if len(gone) > _MANY:
            self._order = [entry for entry in self._order if entry[1] in self._placed]
            return
        for entry in gone:
            del self._order[bisect_left(self._order, entry)]

    def _place(self, names: Sequence[str]) -> set[str]:
        """Sees to it that all of the nodes have their place in the order, and returns them as a set."""
        self._renew()
        placed, wanted = self._placed, set(names)
        entries = []
        for name in wanted.difference(placed):
            if self._known_refusal(name) is None:
                entry = placed[name] = (self._key(self, name), name)
                entries.append(entry)
        if len(entries) > _MANY:
            self._order += entries
            self._order.sort()
        else:
            for entry in entries:
                insort(self._order, entry)
        return wanted
