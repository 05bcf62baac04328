"""What has been found out about one shape of request on all nodes, kept until a node changes. Pure.

Pods come in rows of one template and a decision changes one node, so almost everything that a filter or a ranking needs
is known from the call before. Nodes with the same hardware, room and matching GPUs share one computation.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from gigaslice.cluster.hardware import Hardware, NodeRoom
from gigaslice.cluster.problem import Masks, Problem
from gigaslice.cluster.rank import RankKey
from gigaslice.cluster.refusal import Refusal

__all__ = ["Shape"]

_MOST_REMEMBERED = 20_000


class Shape:
    """One demand. judge: why it does not fit on a node, None where it does. key: the rank of a node that it fits on."""

    def __init__(self, judge: Callable[[str], Refusal | None], key: Callable[[str], RankKey]) -> None:
        self.problems: dict[tuple[Hardware, Masks], Problem] = {}
        self.verdicts: dict[tuple[Problem, NodeRoom, int], Refusal | None] = {}
        self.keys: dict[tuple[Problem, NodeRoom], RankKey] = {}
        self._judge, self._key = judge, key
        self._fits: set[str] = set()
        self._refusals: dict[str, Refusal] = {}
        self._placed: dict[str, tuple[RankKey, str]] = {}
        self._order: list[tuple[RankKey, str]] = []
        self._names: list[str] | None = None

    def forget(self, node: str) -> None:
        """Takes out what is known about a node that has changed."""
        self._fits.discard(node)
        self._refusals.pop(node, None)
        entry = self._placed.pop(node, None)
        if entry is not None:
            del self._order[bisect_left(self._order, entry)]
            self._names = None
        for memory in (self.verdicts, self.keys):
            if len(memory) > _MOST_REMEMBERED:
                memory.clear()

    def refusal(self, node: str) -> Refusal | None:
        """Returns why the pod does not fit on a node; None where it does."""
        if node in self._fits:
            return None
        if node not in self._refusals:
            found = self._judge(node)
            if found is None:
                self._fits.add(node)
                return None
            self._refusals[node] = found
        return self._refusals[node]

    def split(self, names: Sequence[str]) -> tuple[list[str], dict[str, Refusal]]:
        """Returns the nodes that the pod fits on, in their order, and why it does not fit on the others."""
        fits, refusals = self._fits, self._refusals
        fitting = [name for name in names if name in fits]
        if len(fitting) < len(names):
            for name in names:
                if name not in fits and name not in refusals:
                    self.refusal(name)
            fitting = [name for name in names if name in fits]
        return fitting, {name: refusals[name] for name in names if name in refusals}

    def best(self, names: Sequence[str], most: int) -> list[str]:
        """Returns the best MOST of the nodes that the pod fits on, the best first."""
        self._place(names)
        wanted, found = set(names), list[str]()
        for _, name in self._order:
            if name in wanted:
                found.append(name)
                if len(found) >= most:
                    break
        return found

    def _place(self, names: Sequence[str]) -> None:
        placed = self._placed
        missing = [name for name in names if name not in placed]
        for name in missing:
            if name not in placed and self.refusal(name) is None:
                entry = placed[name] = (self._key(name), name)
                insort(self._order, entry)
                self._names = None

    def ranked(self, names: Sequence[str]) -> list[str]:
        """Returns those of the nodes that the pod fits on, the best first."""
        self._place(names)
        placed = self._placed
        if self._names is None:
            self._names = [name for _, name in self._order]
        wanted = set(names)
        if len(wanted) == len(self._names) and wanted.issubset(placed):
            return self._names
        return [name for name in self._names if name in wanted]
