# SPDX-License-Identifier: Apache-2.0
"""Pods that were refused, and which of them kube-scheduler should try again. Pure.

kube-scheduler tries a refused pod again when an event may have made room. The same event reaches us by another watch,
sometimes later: a pod that was tried before we had seen it is refused once more, and no further event comes. Other
room appears without any event: a reservation that was given up. And old schedulers do not react to a node's
annotations. So after every change the pods are compared with what there is now; one that would fit, and that
kube-scheduler has not tried since, is named, and one write to its status makes kube-scheduler try it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.refusal import Refusal
from gigaslice.core.model import Pod

__all__ = ["RefusedPods"]

_MOST_NODES = 16  # of one pod, whose names are remembered: above that, all nodes are looked at
_AGAIN_SECONDS = 5.0  # until a pod that was named is named again; doubled each time that it was in vain
_LONGEST_SECONDS = 300.0

Nodes = frozenset[str] | None
Key = tuple[PodDemand, Nodes, int]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """demand: None where the request could not be served by any node. nodes: those it was refused on; None: many."""

    pod: Pod
    demand: PodDemand | None
    nodes: Nodes
    tried: float
    woken: float = -math.inf
    times: int = 0


class RefusedPods:
    """The pods that were refused last time, by UID; the oldest are forgotten when there are more than MOST."""

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._found: OrderedDict[str, _Waiting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, uid: object) -> bool:
        return uid in self._found

    def refused(self, pod: Pod, demand: PodDemand | None, names: Sequence[str], now: float) -> None:
        """Notes that a pod was refused on all of the nodes."""
        nodes = frozenset(names) if len(names) <= _MOST_NODES else None
        self._found.pop(pod.uid, None)
        self._found[pod.uid] = _Waiting(pod, demand, nodes, now)
        while len(self._found) > self._most:
            self._found.popitem(last=False)

    def over(self, uid: str) -> None:
        """Forgets a pod: it fits, or it is gone."""
        self._found.pop(uid, None)

    def read_again(self, demand_of: Callable[[Pod], PodDemand | Refusal]) -> None:
        """Reads every request anew: the classes have changed."""
        for uid, waiting_pod in self._found.items():
            demand = demand_of(waiting_pod.pod)
            self._found[uid] = replace(waiting_pod, demand=demand if isinstance(demand, PodDemand) else None)

    def due(
        self,
        changed: float,
        now: float,
        fits: Callable[[PodDemand, Nodes, int], bool],
        most: int,
        ready: Callable[[Pod], str] = lambda pod: "",
    ) -> list[Pod]:
        """Returns the pods to be tried again, those of the highest priority and of the longest wait first.

        Args:
            changed: When room may have appeared last; pods that were tried later are left out.
            now: The present time.
            fits: Whether a demand fits on any of the nodes, or on any at all where they are None, for a pod of a
                priority.
            most: The most pods that are returned.
            ready: The node on which GPUs are kept for a pod, which count as taken for all others; empty for none.
        """
        answers: dict[Key, bool] = {}
        due_pods = []
        for waiting_pod in self._found.values():
            pause = min(_LONGEST_SECONDS, _AGAIN_SECONDS * 2 ** min(waiting_pod.times, 8))
            if waiting_pod.demand is None or waiting_pod.tried > changed or now - waiting_pod.woken < pause:
                continue
            kept = ready(waiting_pod.pod)
            if kept and (waiting_pod.nodes is None or kept in waiting_pod.nodes):
                due_pods.append(waiting_pod)
                continue
            key = (waiting_pod.demand, waiting_pod.nodes, waiting_pod.pod.priority)
            if key not in answers:
                answers[key] = fits(*key)
            if answers[key]:
                due_pods.append(waiting_pod)
        due_pods.sort(
            key=lambda waiting_pod: (-waiting_pod.pod.priority, waiting_pod.pod.created, waiting_pod.pod.uid)
        )
        for waiting_pod in due_pods[:most]:
            self._found[waiting_pod.pod.uid] = replace(waiting_pod, woken=now, times=waiting_pod.times + 1)
        return [waiting_pod.pod for waiting_pod in due_pods[:most]]
