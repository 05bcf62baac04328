"""Finds out, while the kubelet waits, whom a preference or an allocation is for.

The question to the kubelet takes a millisecond or two. The watch of the pods comes from the same API server as the
kubelet's, and usually knows a pod before the kubelet admits it. When it does not, it is waited for, for half a second
at most and only while it is running: everything else is left to the start gate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from agent.accounting.presence import Presence, look
from agent.allocation.owner import Identification, Lifecycle, identify
from agent.apiserver import Cluster
from agent.kubelet.podresources import PodResources
from agent.persistence.store import Store
from gigaslice.allocation.lifetime import Evidence, ListedPod, Listing, Standing, standings
from gigaslice.errors import KubeletError
from gigaslice.model import Pod
from gigaslice.runtime.logs import get_logger

__all__ = ["AdmissionResolver", "known_pods"]

_PATIENCE = 0.5  # seconds to wait for the watch
_UNSEEN_SECONDS = (
    5.0  # a pod that the watch does not show for so long is not waited for again: it may be a static one
)
_SAME_SECONDS = 2.0  # the kubelet allocates right after it has asked for a preference


def known_pods(cluster: Cluster) -> Mapping[tuple[str, str], Pod] | None:
    """This node's pods as the API server has them now; None where that is not known."""
    return cluster.pods if cluster.expected and cluster.synced else None


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of the kubelet. asked_at: the allocation table's next number when it was asked for."""

    pods: tuple[ListedPod, ...]
    asked_at: int

    def listing(self, *, settled: bool) -> Listing:
        containers = tuple(one for pod in self.pods for one in pod.devices)
        return Listing(containers, frozenset(map(str, self.pods)), settled)


class AdmissionResolver:
    """Asks KUBELET and CLUSTER for containers that ask for RESOURCE; STORE knows who has been given devices."""

    def __init__(
        self,
        store: Store,
        kubelet: PodResources,
        cluster: Cluster,
        resource: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        present: Callable[[Collection[str]], Presence] = look,
    ) -> None:
        self._store = store
        self._kubelet = kubelet
        self._cluster = cluster
        self._resource = resource
        self._clock = clock
        self._present = present
        self._unseen: dict[str, float] = {}
        self._preferred: tuple[frozenset[str], float, Identification] | None = None
        self._listed: _Answer | None = None
        self._log = get_logger("admission")

    async def identify(self, size: int) -> Identification:
        """For whom SIZE devices are. Never fails: an answer that says nothing is one too."""
        if not self._cluster.expected:
            return Identification()
        answer = await self._ask()
        if answer is None:
            return Identification()
        listed = answer.pods
        deadline = self._clock() + _PATIENCE
        while True:
            table = self._store.table
            identified = identify(listed, self._cluster.pod, table, self._resource, size)
            left = deadline - self._clock()
            if not self._worth_waiting(identified) or left <= 0 or not self._cluster.synced:
                return identified
            await self._cluster.news(left)

    async def identify_devices(self, device_ids: Iterable[str]) -> Identification:
        """For whom an allocation of DEVICE_IDS is: that of the preference just given, if these are its device IDs."""
        wanted = frozenset(device_ids)
        preferred, self._preferred = self._preferred, None
        if preferred and preferred[0] == wanted and self._clock() - preferred[1] < _SAME_SECONDS:
            return preferred[2]
        return await self.identify(len(wanted))

    async def lifecycle(self, device_ids: Iterable[str]) -> Lifecycle:
        """What is known of those in the allocation table, now that the kubelet shows DEVICE_IDS as free or hands them
        out.

        The kubelet is asked for its list only where `whose` has not just done so and some of DEVICE_IDS are somebody's.
        Never fails: what is not known to be over may live.
        """
        table = self._store.table
        wanted = frozenset(device_ids)
        holders = [allocation for allocation in table.allocations if not allocation.held.isdisjoint(wanted)]
        if self._listed is None and not holders:
            return Lifecycle()
        answer = self._listed or await self._ask()
        self._listed = None  # the next question is about another moment
        pods = known_pods(self._cluster)
        evidence = Evidence(answer.listing(settled=self._kubelet.settled) if answer else None, pods)
        found = standings(table, evidence, answer.asked_at if answer else table.next_number)
        maybe = {key for key, standing in found.items() if standing is Standing.OVER}
        if answer is not None and self._kubelet.informed:
            maybe |= await self._unlisted(
                allocation.id
                for allocation in holders
                if allocation.ref is None or (found[allocation.id] is Standing.DOUBTFUL and pods is None)
            )
        over = frozenset(key for key in maybe if not self._store.reading(key).alive)
        started = frozenset(
            allocation.id
            for allocation in holders
            if allocation.container is None and self._store.reading(allocation.id).attached
        )
        return Lifecycle(over, started)

    def note_preference(self, device_ids: Iterable[str], identified: Identification) -> None:
        """Notes that DEVICE_IDS were preferred for the container of VERDICT."""
        self._preferred = (frozenset(device_ids), self._clock(), identified)

    async def _unlisted(self, holders: Iterable[str]) -> frozenset[str]:
        """Those of HOLDERS that are over: the kubelet, which admits a pod, counts their devices as free and does not
        list their pods, as far as these are known. What it has allocated itself it does not forget. One that was
        started since may have lost its checkpoint, and lists its older pods first: then the processes are asked.
        """
        doubtful = frozenset(holders)
        if not doubtful or self._kubelet.settled:
            return doubtful
        seen = await asyncio.to_thread(self._present, doubtful)
        return doubtful - seen.mounted

    async def _ask(self) -> _Answer | None:
        asked_at = self._store.table.next_number
        self._listed = None
        try:
            pods = await self._kubelet.pods()
        except KubeletError as error:
            self._log.warning("pods unknown during an admission", detail=str(error))
            return None
        self._listed = _Answer(pods, asked_at)
        return self._listed

    def _worth_waiting(self, identified: Identification) -> bool:
        if not identified.unseen:
            self._unseen.clear()
            return False
        now = self._clock()
        self._unseen = {name: self._unseen.get(name, now) for name in identified.unseen}
        return any(now - first < _UNSEEN_SECONDS for first in self._unseen.values())
