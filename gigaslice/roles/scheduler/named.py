# SPDX-License-Identifier: Apache-2.0
"""The node that was named for each pod, and nodes that were named in vain. Pure.

A pod whose node was named and that comes to be filtered again without a binding between has failed there for a reason
that is not ours: its volume could not be made in that zone, or another plugin refused. The node would be the best one
again, and the next attempt would fail like the last. So nodes that were named in vain come after all others, until the
pod is bound; of them the one that has failed longest ago comes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gigaslice.core.kube.event import remember

__all__ = ["NamedNodes"]

_MOST_PODS = 20_000
_MOST_NODES = 32  # of one pod


class NamedNodes:
    """By the UID of the pod."""

    def __init__(self) -> None:
        self._named: OrderedDict[str, str] = OrderedDict()
        self._in_vain: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def name(self, uid: str, node: str) -> None:
        """Takes note that a node was named."""
        remember(self._named, uid, node, _MOST_PODS)

    def filtered(self, uid: str) -> None:
        """Takes note that a pod comes to be filtered: what was named before was in vain."""
        node = self._named.pop(uid, "")
        if node:
            others = (name for name in self._in_vain.get(uid, ()) if name != node)
            remember(self._in_vain, uid, (*others, node)[-_MOST_NODES:], _MOST_PODS)

    def in_vain(self, uid: str) -> Sequence[str]:
        """Returns the nodes that were named in vain, that of the longest ago first."""
        return self._in_vain.get(uid, ())

    def over(self, uid: str) -> None:
        """Forgets a pod: its binding is being written, or it is gone."""
        self._named.pop(uid, None)
        self._in_vain.pop(uid, None)
