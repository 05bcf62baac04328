# SPDX-License-Identifier: Apache-2.0
"""What is kept in order around prepared claims: who uses them, and the files of the container runtime.

A later pod of a claim comes without a call of the kubelet, so consumers are read from the pods whenever these change.
A container that does not fit what was prepared is told so by an event: nothing else can be done about it then. The
runtime's files may lie on a tmpfs that somebody empties; the kubelet would never ask again for what is lost there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from agent.apiserver import Cluster
from agent.claims.cdi_files import CdiFiles, cdi_devices
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
            if time.monotonic() >= due:
                due = time.monotonic() + _ROUND_SECONDS
                self._attempt(self.restore_files, "files not restored")
            self._attempt(self.follow, "claims not followed")
            if await self._cluster.news(max(0.0, due - time.monotonic())):
                await asyncio.sleep(_TOGETHER)

    def _attempt(self, step: Callable[[], None], failed: str) -> None:
        """Does a step, and reports once where it fails."""
        try:
            step()
            self._reported.over(failed)
        except GigasliceError as error:
            if self._reported.new(failed, str(error)):
                self._log.error(failed, detail=str(error))

    def restore_files(self) -> None:
        """Makes the runtime's files say what the allocation table says.

        Raises:
            GigasliceError: One of them cannot be written or removed; the others are in order.
        """
        devices: dict[str, dict[str, ContainerEdits]] = {}
        for allocation, origin in self._claims():
            devices.setdefault(origin.uid, {}).update(
                cdi_devices(allocation, origin, self._edits(allocation))
            )
        failure: GigasliceError | None = None
        for uid in {**devices, **dict.fromkeys(self._cdi.claims())}:
            try:
                if uid in devices:
                    self._cdi.write(uid, devices[uid])
                else:
                    self._cdi.remove(uid)
            except GigasliceError as error:
                failure = failure or error
        if failure is not None:
            raise failure

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
        # Pods show the name of a claim, and mean the last that was made under it.
        newest = {
            (origin.namespace, origin.claim): of_claim
            for of_claim in groups.values()
            for _, origin in of_claim
        }
        changed = []
        for of_claim in groups.values():
            origin = of_claim[0][1]
            last = newest[origin.namespace, origin.claim]
            if last is not of_claim:
                changed += _without_consumers(of_claim, last)
                continue
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


def _without_consumers(
    of_claim: Iterable[tuple[Allocation, ClaimOrigin]], others: Iterable[tuple[Allocation, ClaimOrigin]]
) -> list[Allocation]:
    """Returns those allocations of a claim that were taken for used by the consumers of another one, without these."""
    theirs = {consumer for _, origin in others for consumer in origin.consumers}
    return [
        with_consumers(allocation, [consumer for consumer in origin.consumers if consumer not in theirs])
        for allocation, origin in of_claim
        if not theirs.isdisjoint(origin.consumers)
    ]
