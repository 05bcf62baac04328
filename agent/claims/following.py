"""What is kept in order around prepared claims: who uses them, and the files of the container runtime.

A later pod of a claim comes without a call of the kubelet, so consumers are read from the pods whenever these change.
A container that does not fit what was prepared is told so by an event: nothing else can be done about it then. The
runtime's files may lie on a tmpfs that somebody empties; the kubelet would never ask again for what is lost there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from agent.apiserver import Cluster
from agent.claims.cdi_files import CdiFiles
from agent.claims.claim_events import ClaimEvents
from agent.persistence.store import Store
from agent.providers.container_edits import ContainerEdits
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.claims.consumers import claim_consumers, misuse, pods_by_claim
from gigaslice.core.claims.origin import ClaimOrigin, claim_of, with_consumers
from gigaslice.core.errors import GigasliceError
from gigaslice.core.model import Pod
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["ClaimFollowing"]

_ROUND_SECONDS = 5.0  # between two looks at the runtime's files
_TOGETHER = 0.1  # seconds in which changes of pods become one


class ClaimFollowing:
    """Follows the pods."""

    def __init__(
        self, store: Store, cluster: Cluster, cdi: CdiFiles, edits: Callable[[Allocation], ContainerEdits]
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table.
            cluster: The pods of this node.
            cdi: The files for the container runtime.
            edits: Returns what a container gets that uses an allocation.
        """
        self._store = store
        self._cluster = cluster
        self._cdi = cdi
        self._edits = edits
        self._events = ClaimEvents(cluster)
        self._told: set[tuple[str, str]] = set()  # pods, by UID, and what they were told
        self._reported = LogOnce()
        self._log = get_logger("claims")

    async def run(self) -> None:
        """Works until cancelled."""
        due = time.monotonic()
        while True:
            try:
                if time.monotonic() >= due:
                    due = time.monotonic() + _ROUND_SECONDS
                    self.restore_files()
                self.follow()
                self._reported.over("failed")
            except GigasliceError as error:
                if self._reported.new("failed", str(error)):
                    self._log.error("claims not followed", detail=str(error))
            if await self._cluster.news(max(0.0, due - time.monotonic())):
                await asyncio.sleep(_TOGETHER)

    def restore_files(self) -> None:
        """Makes the runtime's files say what the allocation table says. Raises StorageError."""
        devices: dict[str, dict[str, ContainerEdits]] = {}
        for allocation, origin in self._claims():
            devices.setdefault(origin.uid, {})[allocation.id] = self._edits(allocation)
        for uid, of_claim in devices.items():
            self._cdi.write(uid, of_claim)
        for uid in self._cdi.claims() - devices.keys():
            self._cdi.remove(uid)

    def follow(self) -> None:
        """Records who uses each claim by now. Raises StorageError."""
        if not self._cluster.synced:
            return
        groups: dict[str, list[tuple[Allocation, ClaimOrigin]]] = {}
        ours: dict[str, set[str]] = {}
        for allocation, origin in self._claims():
            groups.setdefault(origin.uid, []).append((allocation, origin))
            ours.setdefault(origin.namespace, set()).add(origin.claim)
        pods = pods_by_claim(pod for pod in self._cluster.pods.values() if not pod.terminal)
        uids = {pod.uid for pod in self._cluster.pods.values()}
        self._told = {(uid, sentence) for uid, sentence in self._told if uid in uids}
        changed = []
        for of_claim in groups.values():
            origin = of_claim[0][1]
            having = pods.get((origin.namespace, origin.claim), [])
            self._tell(having, of_claim, ours[origin.namespace])
            changed += [
                followed
                for allocation, followed in self._followed(of_claim, having)
                if followed is not allocation
            ]
        if changed:
            self._store.update(self._store.table.replaced(changed))
            for allocation in changed:
                self._store.write_owner(allocation)

    def _tell(
        self, pods: Sequence[Pod], of_claim: Sequence[tuple[Allocation, ClaimOrigin]], ours: Collection[str]
    ) -> None:
        """Tells pods that do not fit what was prepared, each once."""
        groups = [origin.requests for _, origin in of_claim]
        for pod in pods:
            sentence = misuse(pod, of_claim[0][1].claim, groups, ours)
            if sentence is not None and (pod.uid, sentence) not in self._told:
                self._told.add((pod.uid, sentence))
                self._events.impossible([pod], sentence)

    def _followed(
        self, of_claim: Sequence[tuple[Allocation, ClaimOrigin]], pods: Sequence[Pod]
    ) -> list[tuple[Allocation, Allocation]]:
        requests = [request for _, origin in of_claim for request in origin.requests]
        return [
            (
                allocation,
                with_consumers(
                    allocation,
                    claim_consumers(origin.requests, pods, origin.claim, requests) or origin.consumers,
                ),
            )
            for allocation, origin in of_claim
        ]

    def _claims(self) -> list[tuple[Allocation, ClaimOrigin]]:
        return [
            (allocation, origin)
            for allocation in self._store.table.allocations
            if (origin := claim_of(allocation)) is not None and not allocation.ended
        ]
