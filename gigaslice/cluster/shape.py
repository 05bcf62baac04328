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
        self._known: dict[str, Refusal | None] = {}
        self._placed: dict[str, tuple[RankKey, str]] = {}
        self._order: list[tuple[RankKey, str]] = []

    def forget(self, node: str) -> None:
        """Takes out what is known about a node that has changed."""
        self._known.pop(node, None)
        entry = self._placed.pop(node, None)
        if entry is not None:
            del self._order[bisect_left(self._order, entry)]
        for memory in (self.verdicts, self.keys):
            if len(memory) > _MOST_REMEMBERED:
                memory.clear()

    def refusal(self, node: str) -> Refusal | None:
        """Returns why the pod does not fit on a node; None where it does."""
        try:
            return self._known[node]
        except KeyError:
            found = self._known[node] = self._judge(node)
            return found

    def ranked(self, names: Sequence[str]) -> list[str]:
        """Returns those of the nodes that the pod fits on, the best first."""
        wanted = set(names)
        for name in wanted - self._placed.keys():
            if self.refusal(name) is None:
                entry = self._placed[name] = (self._key(name), name)
                insort(self._order, entry)
        return [name for _, name in self._order if name in wanted]
