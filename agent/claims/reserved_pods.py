# SPDX-License-Identifier: Apache-2.0
"""Which pods have a claim that the kubelet asks for. The watch may be behind the kubelet, and the call behind both.

A call that is too late would make an allocation for nobody, which counts until claims are compared. One that is early
names a pod that the watch does not show yet. What tells them apart is a list of the node's pods that was begun after
the call.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.apiserver import Cluster, PodLists
from gigaslice.core.claims.resource_claim import ResourceClaim
from gigaslice.core.errors import GigasliceError
from gigaslice.core.model import Pod

__all__ = ["NotReservedError", "ReservedPods", "UnsureError"]

_NEWS_SECONDS = 0.2
_MOST_UNPREPARED = 1000


class NotReservedError(GigasliceError):
    """No pod has the claim any more."""


class UnsureError(GigasliceError):
    """Whether any pod has the claim is not known now, and there is reason to doubt it."""


class ReservedPods:
    """Finds the pods of claims among those of a node."""

    def __init__(self, cluster: Cluster, lists: PodLists) -> None:
        """CLUSTER has the pods of this node, and LISTS read them past the watch."""
        self._cluster = cluster
        self._lists = lists
        self._unprepared: dict[str, None] = {}  # UIDs, in the order in which the kubelet gave these claims up

    def unprepared(self, uid: str) -> None:
        """Notes that the kubelet gives a claim up."""
        self._unprepared.pop(uid, None)
        self._unprepared[uid] = None
        if len(self._unprepared) > _MOST_UNPREPARED:
            del self._unprepared[next(iter(self._unprepared))]

    def prepared(self, uid: str) -> None:
        """Notes that a claim was prepared again."""
        self._unprepared.pop(uid, None)

    async def of(self, claim: ResourceClaim) -> tuple[Pod, ...]:
        """Returns the pods that a claim is reserved for, as far as they are known; none where nothing says.

        At least one that has not ended is waited for: the kubelet has seen it, and the watch may be behind. Only a list
        that was begun after the call tells that there is none. A claim that the kubelet has given up, or that is being
        deleted, may be asked for too late: for such a claim the list has to show who has it. That may be a later pod of
        a shared claim, or one that was bound before the claim was to be deleted.

        Raises:
            NotReservedError: No such pod exists any more.
            UnsureError: It is not known whether one does, and there is reason to doubt it.
        """
        uids = {reference.uid for reference in claim.reserved_for}
        doubtful = claim.ending or claim.uid in self._unprepared

        def reserved(pods: Mapping[tuple[str, str], Pod]) -> tuple[Pod, ...]:
            return tuple(pod for pod in pods.values() if pod.namespace == claim.namespace and pod.uid in uids)

        def some_missing(pods: tuple[Pod, ...]) -> bool:
            return len(pods) < len(uids) and all(pod.ending or pod.terminal for pod in pods)

        pods = reserved(self._cluster.pods)
        if not self._cluster.expected or not (doubtful or some_missing(pods)):
            return pods
        if not doubtful:
            await self._cluster.news(_NEWS_SECONDS)
            pods = reserved(self._cluster.pods)
            if not some_missing(pods):
                return pods
        listed = await self._lists.read()
        if listed is None and doubtful:
            given_up = "is being deleted" if claim.ending else "was unprepared"
            raise UnsureError(
                f"claim {claim} {given_up}, and the API server does not say which pod has it now; asked again by itself"
            )
        pods = reserved(listed or {})
        if listed is not None and not pods:
            raise NotReservedError(f"claim {claim} is reserved for no pod that exists; nothing to prepare")
        return pods
