# SPDX-License-Identifier: Apache-2.0
"""GPUs kept for pods for which kube-scheduler has evicted others. Pure.

Such a pod waits until its victims have ended, and is then tried again. Its node stands in its status meanwhile
(`nominatedNodeName`), and kube-scheduler counts the pod there, but by sums, which say nothing about single GPUs:
another pod could take a part of the GPU that became free. So what the pod would get on that node is chosen by the same
code as at its binding, and reserved. Where only the end of its victims makes room, it is chosen as if they had ended.

As in kube-scheduler, the reservation counts for pods of the same and of lower priority. Of pods with the same node the
one of higher priority comes first, then the older one. What is reserved follows from the content of the cluster alone:
it is chosen anew when anything on the node has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.hardware import NodeRoom
from gigaslice.core.cluster.refusal import Refusal
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Pod

__all__ = ["Nominations"]


class Nominations:
    """The pods that have a node in prospect, and what is reserved for them there.

    Args:
        state: The cluster.
        pods: Every pod that a watch has shown, by UID.
        placed: Whether GPUs are kept for a pod in another way: it has an attempt.
    """

    def __init__(
        self, state: ClusterState, pods: Mapping[str, Pod], placed: Callable[[str], bool] = lambda uid: False
    ) -> None:
        self._state, self._known, self._placed = state, pods, placed
        self._on: dict[str, dict[str, Pod]] = {}  # by node and UID
        self._node_of: dict[str, str] = {}
        self._held: dict[str, Assignment] = {}
        self._waits: set[str] = set()  # those for which pods have to end first
        self._rooms: dict[str, NodeRoom] = {}  # of each node, as they were decided for

    def __bool__(self) -> bool:
        return bool(self._on)

    def put(self, pod: Pod) -> None:
        """Takes a pod as the API server shows it."""
        if pod.node and pod.node in self._on:
            self._rooms.pop(pod.node, None)  # one of the victims may be ending
        if not pod.nominated or pod.node or pod.ending or pod.terminal:
            self.drop(pod.uid)
            return
        if self._node_of.get(pod.uid) != pod.nominated:
            self.drop(pod.uid)
        self._node_of[pod.uid] = pod.nominated
        self._on.setdefault(pod.nominated, {})[pod.uid] = pod
        self._rooms.pop(pod.nominated, None)

    def drop(self, uid: str) -> None:
        """Takes a pod away: it is gone, is bound, or has no node in prospect any more."""
        node = self._node_of.get(uid)
        if node is None:
            return
        self._give_up(uid)
        del self._node_of[uid]
        del self._on[node][uid]
        if not self._on[node]:
            del self._on[node]

    def released(self, uid: str) -> None:
        """Takes note that nothing is reserved for a pod any more."""
        self._held.pop(uid, None)
        self._rooms.pop(self._node_of.get(uid, ""), None)

    def classes_changed(self) -> None:
        """Takes note that a pod may ask for other GPUs than before."""
        self._rooms.clear()

    def hold(self) -> None:
        """Brings what is reserved up to date."""
        for node, pods in self._on.items():
            if self._state.room(node) is not self._rooms.get(node):
                self._decide(node, sorted(pods.values(), key=_order))
                self._rooms[node] = self._state.room(node)

    def lift(self, pod: Pod) -> None:
        """Releases what does not count for a pod, until `hold` is called next."""
        for uid in [uid for uid in self._held if not self._counts(uid, pod)]:
            self._give_up(uid)

    def lift_below(self, priority: int) -> bool:
        """Releases what does not count for most pods of a priority, until `hold` is called; returns whether any."""
        lifted = [uid for uid in self._held if self._on[self._node_of[uid]][uid].priority < priority]
        for uid in lifted:
            self._give_up(uid)
        return bool(lifted)

    def ready(self, pod: Pod) -> str:
        """Returns the node on which GPUs are kept for a pod that are free now; empty where there is none."""
        return self._node_of[pod.uid] if pod.uid in self._held and pod.uid not in self._waits else ""

    def _counts(self, uid: str, pod: Pod) -> bool:
        """Whether what is reserved for UID is kept from POD."""
        node = self._node_of[uid]
        other = self._on[node][uid]
        if self._node_of.get(pod.uid) == node:
            return _order(other) < _order(self._on[node][pod.uid])
        return other.priority >= pod.priority

    def _decide(self, node: str, pods: list[Pod]) -> None:
        for number, pod in enumerate(pods):
            if self._placed(pod.uid):
                continue
            demand = self._state.demand_of(pod)
            later = {later_pod.uid for later_pod in pods[number:] if later_pod.uid in self._held}
            chosen = self._choose(pod, demand, node, later) if isinstance(demand, PodDemand) else None
            if chosen is None:
                self._give_up(pod.uid)
            elif chosen != self._held.get(pod.uid) and isinstance(demand, PodDemand):
                self._state.reserve(pod.uid, node, chosen, demand)
                self._held[pod.uid] = chosen

    def _choose(self, pod: Pod, demand: PodDemand, node: str, later: set[str]) -> Assignment | None:
        """What a pod gets, or would get if those that are ending had ended; None where that is too little."""
        self._waits.discard(pod.uid)
        chosen = self._state.choose(demand, node, without=later)
        if isinstance(chosen, Refusal):
            self._waits.add(pod.uid)
            chosen = self._state.choose(demand, node, without=later | self._ending(node, pod.priority))
        return None if isinstance(chosen, Refusal) else chosen

    def _ending(self, node: str, priority: int) -> set[str]:
        pods = [self._known[uid] for uid in self._state.pods_with_gpus(node) if uid in self._known]
        return {pod.uid for pod in pods if pod.ending and pod.priority < priority}

    def _give_up(self, uid: str) -> None:
        self._waits.discard(uid)
        if self._held.pop(uid, None) is not None:
            self._state.release(uid)
        self._rooms.pop(self._node_of.get(uid, ""), None)


def _order(pod: Pod) -> tuple[int, str, str]:
    return -pod.priority, pod.created, pod.uid
