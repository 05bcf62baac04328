# SPDX-License-Identifier: Apache-2.0
"""Which pods use an allocation, by the UIDs that cgroups have, and what is known of the other pods of the node.

The UID of a pod comes with the allocation where the API server was asked in time. Where it was not, the first process
that is seen to use the allocation shows it. A static pod's cgroup is named after the hash of its file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from agent.apiserver import Cluster
from agent.apiserver.consumer_pods import ConsumerPods
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.limits.driver_limit_messages import is_pod_uid
from gigaslice.core.limits.driver_limits import NodePods

__all__ = ["PodUsers"]


class PodUsers:
    """Answers for the allocations of STORE.

    Attributes:
        present: The pods that have a cgroup, as was said last.
    """

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        *,
        exempt: Collection[str] = (),
        own_pod: str = "",
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table.
            cluster: The pods of this node.
            exempt: Namespaces whose pods may use GPUs that they have nothing of.
            own_pod: UID of the pod that this agent runs in, empty outside of one.
        """
        self.present: frozenset[str] = frozenset()
        self._store = store
        self._cluster = cluster
        self._pods = ConsumerPods(cluster)
        self._exempt = frozenset(exempt)
        self._own_pod = own_pod
        self._closed: frozenset[str] = frozenset()

    def of(self, allocation: Allocation) -> frozenset[str]:
        """Returns the pods that use an allocation; none where none is known."""
        recorded = {consumer.uid for consumer in allocation.consumers if consumer.uid}
        shown = {pod.uid: pod.cgroup_uid for _, pod in self._pods.of(allocation)}
        uids = {shown.get(uid, uid) for uid in recorded} | set(shown.values())
        return _valid(uids) or self._store.pods_seen.get(allocation.id, frozenset())

    def named(self, allocation: Allocation) -> Iterator[tuple[str, str, str]]:
        """Yields UID, namespace and name of the pods that use an allocation, as far as both are known."""
        names = {(consumer.ref.namespace, consumer.ref.pod) for consumer in allocation.consumers}
        uids = self.of(allocation)
        if len(names) == 1 and len(uids) == 1:
            ((namespace, pod),) = names
            yield next(iter(uids)), namespace, pod
            return
        for consumer in allocation.consumers:
            if consumer.uid in uids:
                yield consumer.uid, consumer.ref.namespace, consumer.ref.pod

    @property
    def identified(self) -> bool:
        """Whether the pods of every allocation are known."""
        return all(
            self.of(allocation) for allocation in self._store.table.allocations if not allocation.ended
        )

    def node_pods(self) -> NodePods:
        """Returns what is known of the node's pods now."""
        users = {allocation.id: self.of(allocation) for allocation in self._store.table.allocations}
        known: frozenset[str] | None = None
        exempt = {self._own_pod} if self._own_pod else set()
        if self._cluster.expected and self._cluster.synced:
            pods = self._cluster.pods.values()
            known = _valid(pod.cgroup_uid for pod in pods if pod.readable)
            exempt |= _valid(pod.cgroup_uid for pod in pods if pod.namespace in self._exempt)
        return NodePods(self.present, users, known, frozenset(exempt), self._closed & self.present)

    def closed(self, uids: Collection[str]) -> None:
        """Remembers pods that have nothing of any GPU, for as long as they have a cgroup."""
        self._closed = frozenset(uids)


def _valid(uids: Iterable[str]) -> frozenset[str]:
    """UIDS without those that no cgroup can be named after: one of them would have all of a question refused."""
    return frozenset(filter(is_pod_uid, uids))
