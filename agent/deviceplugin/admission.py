# SPDX-License-Identifier: Apache-2.0
"""Finds out, while the kubelet waits, which container a call is for and which earlier allocations have ended.

The kubelet names neither. Its pod-resources list takes a millisecond or two and shows the pod that is being admitted.
The watch of the API server usually shows a pod before the kubelet admits it. Where it does not, the pod is waited for,
for half a second at most and only while the watch is running; then the node's pods are read anew, past the watch. An
agent that was just started, and one whose watch is broken, read at once. The API server gets a second for it, on a node
with assigned pods more: GPUs that were guessed for such a pod are the wrong ones, and it can only be made anew. What is
still unknown then is left to the start decision. A server that has not answered, and has given no sign of life since,
costs an admission less than a third of a second (`agent.apiserver.pod_reader`). Nothing here refuses a call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from agent.accounting.presence import Presence, find_mounted
from agent.apiserver import Cluster
from agent.apiserver.pod_reader import SILENT_SECONDS
from agent.deviceplugin.identification import identify
from agent.deviceplugin.requester import ContainerMatch, PreviousHolders
from agent.kubelet.podresources import PodResources
from agent.persistence.store import Store
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.deviceplugin.lifetime import (
    Evidence,
    ListedPod,
    Liveness,
    PodListing,
    allocations_of_listed,
    liveness,
)
from gigaslice.core.deviceplugin.origin import held, plugin, plugin_part
from gigaslice.core.errors import KubeletError
from gigaslice.core.model import Pod
from gigaslice.runtime.logs import get_logger

__all__ = ["AdmissionResolver", "known_pods"]

_WATCH_PATIENCE = 0.5  # seconds to wait for the watch
_READ_SECONDS = 1.0  # for a list past the watch
_ASSIGNED_SECONDS = 3.0  # for both together where pods come with assignments
_UNSEEN_SECONDS = (
    5.0  # a pod that the watch has not shown for so long may be a static one: not waited for again
)
_SAME_SECONDS = 2.0  # the kubelet allocates right after it has asked for a preference


def known_pods(cluster: Cluster) -> Mapping[tuple[str, str], Pod] | None:
    """Returns this node's pods as the API server has them now; None where that is not known."""
    return cluster.pods if cluster.expected and cluster.synced else None


@dataclass(frozen=True, slots=True)
class _List:
    """A list of the kubelet. asked_at: the allocation table's next number when it was asked for."""

    pods: tuple[ListedPod, ...]
    asked_at: int

    def listing(self, *, settled: bool) -> PodListing:
        containers = tuple(listed for pod in self.pods for listed in pod.devices)
        return PodListing(containers, frozenset(map(str, self.pods)), settled)


class AdmissionResolver:
    """Puts the kubelet's list, the API server's pods and the allocation table together for one call of the kubelet."""

    def __init__(
        self,
        store: Store,
        kubelet: PodResources,
        cluster: Cluster,
        resource: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        whole: bool = False,
        present: Callable[[Collection[str]], Presence] = find_mounted,
    ) -> None:
        """Initializes the resolver.

        Args:
            store: The allocation table and its ledgers.
            kubelet: The kubelet's pod-resources API.
            cluster: The pods of this node as the API server shows them.
            resource: The resource that the calls are about.
            clock: Seconds that never go back.
            whole: Its devices are whole GPUs.
            present: Finds the allocations that processes of the node have mounted. Blocks.
        """
        self._store = store
        self._kubelet = kubelet
        self._cluster = cluster
        self._resource = resource
        self._clock = clock
        self._whole = whole
        self._present = present
        self._unseen: dict[str, float] = {}
        self._preferred: tuple[frozenset[str], float, ContainerMatch] | None = None
        self._listed: _List | None = None
        self._log = get_logger("admission")

    async def identify(self, size: int) -> ContainerMatch:
        """Finds the container that a call for so many devices is for. Never fails; the answer may be empty."""
        if not self._cluster.expected:
            return ContainerMatch()
        answer = await self._list()
        if answer is None:
            return ContainerMatch()
        begun = self._clock()
        patience = _WATCH_PATIENCE if self._cluster.answering else SILENT_SECONDS
        while True:
            match = self._identify(answer, size)
            if not self._worth_waiting(match):
                return match
            left = begun + patience - self._clock()
            if left <= 0 or not self._cluster.synced:
                break
            await self._cluster.news(left)
        # An agent that has just started has seen no pod yet, and on a wrong GPU an assigned one never starts.
        assigned = not self._cluster.synced or any(
            ASSIGNMENT in pod.annotations for pod in self._cluster.pods.values()
        )
        waited = self._clock() - begun
        # What is read was so after the kubelet's call had begun: it wins over what the watch has shown.
        read = await self._cluster.read(_ASSIGNED_SECONDS - waited if assigned else _READ_SECONDS)
        return self._identify(answer, size, read or {})

    def _identify(
        self, answer: _List, size: int, read: Mapping[tuple[str, str], Pod] = MappingProxyType({})
    ) -> ContainerMatch:
        def lookup(namespace: str, name: str) -> Pod | None:
            return read.get((namespace, name)) or self._cluster.pod(namespace, name)

        return identify(answer.pods, lookup, self._store.table, self._resource, size, whole=self._whole)

    async def identify_devices(self, requests: Sequence[Iterable[str]]) -> ContainerMatch | None:
        """Finds the container that an allocation is for.

        Where the device IDs are those of the preference just given, it is the container of that preference.

        Returns:
            None where it can never be known: without access to the API server, and for several containers in one call.
        """
        if len(requests) != 1 or not self._cluster.expected:
            return None
        device_ids = frozenset(requests[0])
        preferred, self._preferred = self._preferred, None
        same = preferred and preferred[0] == device_ids and self._clock() - preferred[1] < _SAME_SECONDS
        if preferred and same and preferred[2].requester is not None:  # else the watch may show it by now
            return preferred[2]
        return await self.identify(len(device_ids))

    async def holders(self, device_ids: Iterable[str]) -> PreviousHolders:
        """Finds out how far the holders of device IDs have come that the kubelet shows as free or hands out.

        The kubelet is asked for its list only where `identify` has not just done so and some of the device IDs are
        held. Never fails: an allocation that is not known to be over counts as living. One that a listed container has
        is not over, though the kubelet shows its devices as free: it has lost count of them. Now is the last time that
        the list tells its container by the devices alone, since another one is about to get the same.
        """
        table, _ = plugin_part(self._store.table)
        handed_out = frozenset(device_ids)
        holders = [
            allocation for allocation in table.allocations if not held(allocation).isdisjoint(handed_out)
        ]
        if self._listed is None and not holders:
            return PreviousHolders()
        answer = self._listed or await self._list()
        self._listed = None  # the next call is about another moment
        pods = known_pods(self._cluster)
        listing = answer.listing(settled=self._kubelet.settled) if answer else PodListing(settled=False)
        asked_at = answer.asked_at if answer else table.next_number
        states = liveness(table, Evidence(listing if answer else None, pods), asked_at)
        matched = allocations_of_listed(table, listing)
        named = {
            allocation.id: listed.container
            for listed, allocation in matched.own.items()
            if plugin(allocation).device_ids == listed.device_ids and allocation.number < asked_at
        }
        listed_ids = matched.shared | named.keys()
        candidates = {key for key, state in states.items() if state is Liveness.EXPIRED}
        if answer is not None and self._kubelet.informed:
            candidates |= await self._unlisted(
                allocation.id
                for allocation in holders
                if allocation.id not in listed_ids
                and (
                    plugin(allocation).ref is None
                    or (states[allocation.id] is Liveness.DOUBTFUL and pods is None)
                )
            )
        expired = frozenset(key for key in candidates if not self._store.reading(key).alive)
        unnamed = {allocation.id for allocation in holders if plugin(allocation).container is None}
        started = frozenset(key for key in unnamed if key in listed_ids or self._store.reading(key).attached)
        return PreviousHolders(expired, started, {key: ref for key, ref in named.items() if key in unnamed})

    def note_preference(self, device_ids: Iterable[str], match: ContainerMatch) -> None:
        """Notes which container device IDs were just preferred for."""
        self._preferred = (frozenset(device_ids), self._clock(), match)

    async def _unlisted(self, holders: Iterable[str]) -> frozenset[str]:
        """Returns those of the holders that are over because the kubelet neither lists their pods nor counts their
        devices as allocated.

        A kubelet does not forget what it has allocated itself. One that was started since may have lost its
        checkpoint, and lists its older pods first: then the node's processes decide.
        """
        doubtful = frozenset(holders)
        if not doubtful or self._kubelet.settled:
            return doubtful
        presence = await asyncio.to_thread(self._present, doubtful)
        return doubtful - presence.mounted

    async def _list(self) -> _List | None:
        asked_at = self._store.table.next_number
        self._listed = None
        try:
            pods = await self._kubelet.pods()
        except KubeletError as error:
            self._log.warning("pods unknown during an admission", detail=str(error))
            return None
        self._listed = _List(pods, asked_at)
        return self._listed

    def _worth_waiting(self, match: ContainerMatch) -> bool:
        if not match.unseen:
            self._unseen.clear()
            return False
        now = self._clock()
        self._unseen = {name: self._unseen.get(name, now) for name in match.unseen}
        return any(now - first < _UNSEEN_SECONDS for first in self._unseen.values())
