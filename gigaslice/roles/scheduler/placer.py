# SPDX-License-Identifier: Apache-2.0
"""What the service answers to kube-scheduler, decided in memory. Pure: no call of the API server, time is an argument.

The scheduler's cycle is serial, its bindings are not: between the filter of a pod and its binding come the filters of
the next pods, and nothing tells us what the scheduler has assumed. So the GPUs of a pod are reserved as soon as its
node is certain: at prioritize, where our score makes one node the winner whatever the other scores are, or at filter
where one node is left. bind decides again on that node with what is known then (docs/adr/0063).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import PodDemand, asks_for_gpus
from gigaslice.core.cluster.preempt import victims
from gigaslice.core.cluster.refusal import Refusal, RefusalReason
from gigaslice.core.cluster.state import ClusterState, NodeFacts
from gigaslice.core.dataset.affinity import weighed
from gigaslice.core.kube.event import remember
from gigaslice.core.model import Pod
from gigaslice.roles.scheduler.attempts import Attempt, Attempts, AttemptState
from gigaslice.roles.scheduler.datasets import DatasetIndex
from gigaslice.roles.scheduler.named import NamedNodes
from gigaslice.roles.scheduler.nominations import Nominations
from gigaslice.roles.scheduler.waiting import RefusedPods

__all__ = ["FilterResult", "Placer"]

_SCORE = 200  # of one rank: with kube-scheduler's factor of ten more than all its own scores together
_MOST_SCORED = 32
_PROVISIONING_SECONDS = 60.0  # from the choice of a node to the binding, where a volume is made first
_DOUBT_SECONDS = 90.0  # an API server gives up a request after 60
_UNSEEN_SECONDS = (
    120.0  # until a binding that no watch shows is given up: its pod came and went between two lists
)
_MOST_TRIED = 20_000
_ELSEWHERE = "the pod is being bound to another node"


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The answer to filter: the nodes that fit, and a refusal for each other one."""

    names: Sequence[str]
    refused: Mapping[str, Refusal]


class Placer:
    """Decides for the pods of one kube-scheduler.

    Args:
        state: The cluster, as others keep it.
        reserve: Seconds for which GPUs are kept between scoring and binding.
        datasets: The datasets of the nodes, as others keep them.
        dataset_weight: How much it counts that a node has all of a pod's datasets, where 1 is the whole way from the
            worst to the best node for its GPUs.
    """

    def __init__(
        self,
        state: ClusterState,
        reserve: float,
        datasets: DatasetIndex | None = None,
        dataset_weight: float = 0.5,
    ) -> None:
        self.state = state
        self.datasets = DatasetIndex("off") if datasets is None else datasets
        self.attempts = Attempts()
        self.waiting = RefusedPods()
        self.changed = -math.inf
        """When room may have appeared last."""
        self._reserve = reserve
        self._dataset_weight = dataset_weight
        self._pods: dict[str, Pod] = {}  # those that a watch has shown
        self._nominations = Nominations(state, self._pods, lambda uid: self.attempts.get(uid) is not None)
        self._tried: OrderedDict[str, Pod] = OrderedDict()  # those that kube-scheduler has sent
        self._named = NamedNodes()
        self._gone: OrderedDict[str, bool] = OrderedDict()  # UIDs of pods that the watch has seen go
        self._revision = state.revision

    # --- what the watches bring ---------------------------------------------------------------------------------

    def put_node(self, node: NodeFacts, now: float) -> None:
        """Takes a node as it is now."""
        self.state.put_node(node)
        self.note_change(now)

    def drop_node(self, node: NodeFacts, now: float) -> None:
        """Takes a node away."""
        self.state.drop_node(node.name)
        self.note_change(now)

    def put_pod(self, pod: Pod, now: float) -> None:
        """Takes a pod as the API server shows it."""
        self._pods[pod.uid] = pod
        self._gone.pop(pod.uid, None)
        if pod.node:
            self._tried.pop(pod.uid, None)
            self.attempts.drop(pod.uid)
            self.waiting.over(pod.uid)
            self._named.over(pod.uid)
        self.state.put_pod(pod)
        if pod.nominated or self._nominations:
            self._nominations.put(pod)
        self.note_change(now)

    def drop_pod(self, pod: Pod, now: float) -> None:
        """Takes a pod away that is gone, or that does not matter any more."""
        self._pods.pop(pod.uid, None)
        self._tried.pop(pod.uid, None)
        remember(self._gone, pod.uid, True, _MOST_TRIED)
        self.waiting.over(pod.uid)
        self.datasets.forget(pod.uid)
        self._nominations.drop(pod.uid)
        self._named.over(pod.uid)
        attempt = self.attempts.get(pod.uid)
        if attempt is not None and attempt.state is AttemptState.BINDING:
            self.attempts.set(replace(attempt, gone=True))
        else:
            self.attempts.drop(pod.uid)
            self.state.drop_pod(pod.uid)
        self.note_change(now)

    def put_class(self, resource_class: ResourceClass, now: float) -> None:
        """Takes a class as it is now."""
        self.state.put_class(resource_class)
        self._classes_changed(now)

    def drop_class(self, resource_class: ResourceClass, now: float) -> None:
        """Takes a class away."""
        self.state.drop_class(resource_class.name)
        self._classes_changed(now)

    def _classes_changed(self, now: float) -> None:
        self.waiting.read_again(self.state.demand_of)
        self._nominations.classes_changed()
        self.note_change(now)

    def note_change(self, now: float) -> None:
        """Remembers that something has changed which may have made room."""
        if self.state.revision != self._revision:
            self._revision = self.state.revision
            self.changed = now

    def pod(self, uid: str) -> Pod | None:
        """Returns a pod as kube-scheduler or a watch has shown it last."""
        return self._tried.get(uid) or self._pods.get(uid)

    def expire(self, now: float) -> None:
        """Gives up what is over."""
        for attempt in self.attempts.over(now):
            if attempt.state is AttemptState.BOUND and attempt.uid in self._pods:
                # The watch is behind: what it shows next decides.
                self.attempts.set(replace(attempt, until=now + _UNSEEN_SECONDS))
                continue
            self._release(attempt.uid, now)

    # --- filter, prioritize, preempt ----------------------------------------------------------------------------

    def filter(self, pod: Pod, names: Sequence[str], now: float) -> FilterResult:
        """Returns on which of the nodes a pod fits."""
        self.expire(now)
        if not asks_for_gpus(pod, self.state.units):
            return FilterResult(names, {})
        remember(self._tried, pod.uid, pod, _MOST_TRIED)
        demand = self.state.demand_of(pod)
        settled = self._settled_node(pod)
        if settled:
            # A binding was written, or may have been: every other node would be wrong.
            if settled not in names and isinstance(demand, PodDemand):
                self.waiting.refused(pod, demand, names, now)
            away = Refusal(RefusalReason.TOGETHER, _ELSEWHERE)
            return FilterResult(
                [name for name in names if name == settled], {name: away for name in names if name != settled}
            )
        self._release_reservations(pod, now)
        self._named.filtered(pod.uid)
        if isinstance(demand, Refusal):
            self.waiting.refused(pod, None, names, now)
            return FilterResult([], dict.fromkeys(names, demand))
        fitting, refused = self.state.filter(demand, names)
        if fitting:
            self.waiting.over(pod.uid)
        else:
            self.waiting.refused(pod, demand, names, now)
        if len(fitting) == 1:
            self._reserve_on(pod, demand, fitting[0], now)
        self.note_change(now)
        return FilterResult(fitting, refused)

    def prioritize(self, pod: Pod, names: Sequence[str], now: float) -> list[tuple[str, int]]:
        """Returns scores of the best nodes, and keeps the GPUs on the one that wins.

        kube-scheduler gives 0 to a node without a score: thousands of zeros would only be read and written.
        """
        self.expire(now)
        if not asks_for_gpus(pod, self.state.units) or self._settled_node(pod):
            return []
        demand = self.state.demand_of(pod)
        if isinstance(demand, Refusal):
            return []
        self._release_reservations(pod, now)
        best = self._best(pod, demand, names, now)
        while best and not self._reserve_on(pod, demand, best[0], now):
            del best[0]
        self.note_change(now)
        return [(name, _SCORE * (len(best) - rank)) for rank, name in enumerate(best)]

    def preempt(
        self, pod: Pod, proposed: Mapping[str, Sequence[str]], now: float
    ) -> dict[str, tuple[str, ...]]:
        """Returns whom to evict on each node so that a pod fits GPU by GPU; nodes where nothing helps are left out."""
        self.expire(now)
        if not asks_for_gpus(pod, self.state.units):
            return {node: tuple(uids) for node, uids in proposed.items()}
        demand = self.state.demand_of(pod)
        if isinstance(demand, Refusal):
            return {}
        if not self._settled_node(pod):
            self._release_reservations(pod, now)
        victims_by_node = {}
        for node, uids in proposed.items():
            if self.state.refusal(demand, node) is None:
                victims_by_node[node] = tuple(uids)  # GPUs are not what is missing
                continue
            holders = self.state.pods_with_gpus(node)
            required = [uid for uid in uids if uid not in holders]  # for other resources
            chosen = victims(self.state, demand, node, pod.priority, required=required)
            if chosen:
                victims_by_node[node] = chosen
        return victims_by_node

    # --- bind ---------------------------------------------------------------------------------------------------

    def begin_binding(self, pod: Pod, node: str, now: float) -> Assignment | Refusal:
        """Decides again on the node, and keeps the GPUs until `bound`, `failed` or `doubtful` says what came of it."""
        self.expire(now)
        attempt = self.attempts.get(pod.uid)
        if attempt is not None and attempt.state is AttemptState.DOUBTFUL:
            if attempt.node != node:
                return Refusal(RefusalReason.TOGETHER, _ELSEWHERE)
            # The earlier binding may still arrive: only the same one may be written.
            self.attempts.set(replace(attempt, state=AttemptState.BINDING, since=now, until=math.inf))
            return attempt.assignment
        self._named.over(pod.uid)
        demand = self.state.demand_of(pod)
        if isinstance(demand, Refusal):
            return demand
        self._release_reservations(pod, now)
        chosen = self.state.choose(demand, node)
        if isinstance(chosen, Refusal):
            return chosen
        self.state.reserve(pod.uid, node, chosen, demand)
        self.datasets.assume(pod.uid, node, self.datasets.requested(pod, now) or (), now)
        # kube-scheduler may bind a pod that the watch has seen go: its GPUs must not stay in doubt.
        gone = pod.uid in self._gone
        self.attempts.set(Attempt(pod.uid, node, chosen, AttemptState.BINDING, now, math.inf, gone=gone))
        self.note_change(now)
        return chosen

    def bound(self, pod: Pod, now: float) -> None:
        """Takes note that the binding was written: the GPUs are kept until the watch shows the pod."""
        attempt = self.attempts.get(pod.uid)
        if attempt is not None and attempt.gone:
            self._release(pod.uid, now)
        elif attempt is not None:
            until = now + _UNSEEN_SECONDS
            self.attempts.set(replace(attempt, state=AttemptState.BOUND, since=now, until=until))

    def failed(self, pod: Pod, now: float) -> None:
        """Takes note that the binding was certainly not written."""
        self._release(pod.uid, now)

    def doubtful(self, pod: Pod, now: float) -> None:
        """Takes note that it is not known whether the binding was written."""
        attempt = self.attempts.get(pod.uid)
        if attempt is not None and (attempt.gone or attempt.overtaken):
            self._release(pod.uid, now)  # no binding of it can be written any more
        elif attempt is not None:
            until = now + _DOUBT_SECONDS
            self.attempts.set(replace(attempt, state=AttemptState.DOUBTFUL, since=now, until=until))

    def overtaken(self, now: float) -> None:
        """Takes note that no binding begun before can be written any more, and that the watch shows those that were.

        Another replica has decided meanwhile, so the GPUs of a binding in doubt may be another pod's.
        """
        for attempt in self.attempts:
            if attempt.state is AttemptState.DOUBTFUL:
                self._release(attempt.uid, now)
            elif attempt.state is AttemptState.BINDING:
                self.attempts.set(replace(attempt, overtaken=True))

    # --- inside -------------------------------------------------------------------------------------------------

    def _settled_node(self, pod: Pod) -> str:
        """The only node that a pod can be on, as far as is known; empty while it can be on any."""
        attempt = self.attempts.get(pod.uid)
        if attempt is not None and attempt.settled:
            return attempt.node
        shown = self._pods.get(pod.uid)
        return shown.node if shown is not None else ""

    def _best(self, pod: Pod, demand: PodDemand, names: Sequence[str], now: float) -> list[str]:
        """The best nodes, those last that were named in vain."""
        last = self._named.in_vain(pod.uid)
        if last:
            asked = set(names)
            last = [name for name in last if name in asked and self.state.refusal(demand, name) is None]
            names = [name for name in names if name not in last]
        favour = self._favour(pod, now)
        best = (
            self.state.preferred(demand, names, _MOST_SCORED, favour)
            if favour
            else self.state.best(demand, names, _MOST_SCORED)
        )
        return [*best, *last][:_MOST_SCORED]

    def _favour(self, pod: Pod, now: float) -> Mapping[str, float]:
        """What the nodes that have datasets of a pod are worth more; nothing for most pods."""
        requested = self.datasets.requested(pod, now)
        shares = self.datasets.shares(requested or (), now)
        if self.datasets.affinity == "bytes":
            shares = {node: weighed(share, unused=self.state.unused(node)) for node, share in shares.items()}
        return {node: self._dataset_weight * share for node, share in shares.items()}

    def _reserve_on(self, pod: Pod, demand: PodDemand, node: str, now: float) -> bool:
        chosen = self.state.choose(demand, node)
        if isinstance(chosen, Refusal):
            return False
        until = now + (
            max(self._reserve, _PROVISIONING_SECONDS) if pod.awaits_provisioning else self._reserve
        )
        self.state.reserve(pod.uid, node, chosen, demand)
        self._named.name(pod.uid, node)
        self.datasets.assume(pod.uid, node, self.datasets.requested(pod, now) or (), now)
        self.attempts.set(Attempt(pod.uid, node, chosen, AttemptState.PROVISIONAL, now, until))
        return True

    def _release_reservations(self, pod: Pod, now: float) -> None:
        """Releases what is kept for a pod, and for those that have to give way to it."""
        self._release(pod.uid, now)
        if self._nominations:
            self._nominations.hold()
            self._nominations.lift(pod)
            self.note_change(now)

    def _release(self, uid: str, now: float) -> None:
        self.datasets.forget(uid)
        if self.attempts.drop(uid) is not None or self.state.reserved_on(uid):
            self.state.release(uid)
            self._nominations.released(uid)
            self.note_change(now)

    def _fits_somewhere(self, demand: PodDemand, names: frozenset[str] | None, priority: int) -> bool:
        lifted = self._nominations.lift_below(priority) if self._nominations else False
        names_fitting = self.state.filter(demand, sorted(names) if names is not None else self.state.nodes)[0]
        if lifted:
            self._nominations.hold()
        return bool(names_fitting)

    def _ready(self, pod: Pod) -> str:
        return self._nominations.ready(pod) if self._nominations else ""

    def to_be_woken(self, now: float, most: int) -> list[Pod]:
        """Returns pods that were refused, would fit now, and have not been tried since."""
        if self._nominations:
            self._nominations.hold()
            self.note_change(now)
        return self.waiting.due(self.changed, now, self._fits_somewhere, most, self._ready)
