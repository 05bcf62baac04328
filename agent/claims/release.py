# SPDX-License-Identifier: Apache-2.0
"""NodeUnprepareResources: gives claims up, and whatever ends without that call.

The call comes when the last pod of a claim has ended on this node, so there is nothing to find out, and an error would
keep the pod Terminating. What processes still hold counts until they have ended (`AllocationService.release`). Two
things go beyond the call. On Kubernetes 1.36 a pod can attach to a claim while it is being unprepared, and then runs
with what was prepared: while the API server shows such a pod, or a process has the claim's files mounted, the claim
stays. Where such a pod has not started, the kubelet gets one error, which keeps the claim for it; else no second call
comes, so that is recorded, and outlives this agent. And a claim that ended while the kubelet or this agent was away may
get no call: records are compared with the API server's claims, by UID. Those that an agent finds at its start without a
pod are compared at once, since their call may have gone to an agent that was killed; others when they have had no pod
for a minute. That alone ends nothing while a container lives: an object that was deleted by force is gone at once, and
its container may use the GPU until the kubelet has stopped it. Pods show only the name of a claim, which a later claim
can have: so what a pod keeps alive is compared too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from agent.accounting.presence import Presence, find_mounted
from agent.allocation.service import AllocationService
from agent.apiserver import Cluster, PodLists
from agent.claims.cdi_files import CdiFiles
from agent.claims.claim_reader import ClaimReader
from agent.claims.messages import ClaimName
from agent.persistence.store import Store
from gigaslice.core.claims.consumers import pods_by_claim
from gigaslice.core.claims.origin import ClaimOrigin, claim_of, of_claim, with_unprepared
from gigaslice.core.errors import GigasliceError
from gigaslice.core.model import Pod
from gigaslice.kubeapi.failures import ApiFailure
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.wakeup import Alarm

__all__ = ["ClaimRelease"]

_ROUND_SECONDS = 1.0  # between two looks at what has ended while its processes live
_AWAITED_SECONDS = 0.25  # the same while a pod waits for memory
_COMPARE_SECONDS = (
    60.0  # that a claim has no pod before it is compared with the API server's, and between two times
)
_COMPARE_AGAIN_SECONDS = 5.0  # where the API server did not say
_READ_SECONDS = 5.0
_NEWS_SECONDS = 0.2  # that the watch of the pods may be behind the kubelet


class ClaimRelease:
    """Ends the allocations of claims."""

    def __init__(
        self,
        store: Store,
        service: AllocationService,
        cluster: Cluster,
        claims: ClaimReader,
        cdi: CdiFiles,
        *,
        lists: PodLists,
        preparing: Callable[[str], bool],
        awaited: Callable[[], bool] = lambda: False,
        present: Callable[[Collection[str]], Presence] = find_mounted,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table.
            service: Releases allocations.
            cluster: The pods of this node.
            claims: Reads claims.
            cdi: The files for the container runtime.
            lists: Read the pods past the watch.
            preparing: Whether a claim of that UID is being prepared now.
            awaited: Whether a pod waits for memory.
            present: Finds the allocations that processes of the node have mounted. Blocks.
            clock: Seconds that never go back.
        """
        self._store = store
        self._service = service
        self._cluster = cluster
        self._lists = lists
        self._claims = claims
        self._cdi = cdi
        self._preparing = preparing
        self._awaited = awaited
        self._present = present
        self._clock = clock
        self._inherited = set(self._recorded())  # of an earlier agent, and not compared yet
        self._deferred: set[tuple[str, str]] = set()  # UIDs of claims and of pods that were waited for
        self._compare_at: dict[str, float] = {}  # by UID
        self._alarm = Alarm()
        self._reported = LogOnce()
        self._log = get_logger("claims")

    async def unprepare(self, name: ClaimName) -> str:
        """Gives a claim up. Returns why that failed; an empty text where it is done, or was before."""
        try:
            if of_claim(self._store.table, name.uid) and (users := await self._remaining_users(name)):
                if (pod := self._newcomer(name)) is not None:
                    self._log.info("claim unprepared while a pod comes", claim=str(name), pod=str(pod))
                    return f"claim {name}: pod {pod} may just have been given it; asked again by itself"
                self._keep(name.uid)
                self._compare_at[name.uid] = self._clock() + _COMPARE_SECONDS
                self._log.info("claim unprepared while pods have it", claim=str(name), users=users)
                self._alarm.ring()
                return ""
            self._release(name.uid)
        except GigasliceError as error:
            self._log.error("claim not unprepared", claim=str(name), uid=name.uid, detail=str(error))
            return str(error)
        return ""

    async def run(self) -> None:
        """Works until cancelled."""
        self._store.watchers.append(self._alarm.ring)
        following = asyncio.create_task(self._follow_pods())
        try:
            while True:
                try:
                    await self.look()
                    self._reported.over("failed")
                except GigasliceError as error:
                    if self._reported.new("failed", str(error)):
                        self._log.error("claims not released", detail=str(error))
                await self._alarm.wait(self.pause())
        finally:
            self._store.watchers.remove(self._alarm.ring)
            following.cancel()
            await asyncio.wait([following])

    def pause(self) -> float:
        """How long to wait until the next look: a scan of all processes is not done often for nobody."""
        leaving = any(
            origin.unprepared or allocation.ended
            for allocation in self._store.table.allocations
            if (origin := claim_of(allocation)) is not None
        )
        return _AWAITED_SECONDS if leaving and self._awaited() else _ROUND_SECONDS

    async def look(self) -> None:
        """Finishes what has ended, and finds what ended without a call."""
        for uid, origin in self._recorded().items():
            if not origin.unprepared:
                continue
            if uid in self._inherited and not self._cluster.synced:
                continue  # whether a pod has it is not known yet
            name = ClaimName(origin.namespace, origin.claim, uid)
            due = self._clock() >= self._compare_at.setdefault(uid, self._clock())
            if due:
                self._compare_at[uid] = self._clock() + _COMPARE_SECONDS
            if not await self._users(name, compared=due) and self._is_unprepared(uid):
                self._release(uid)
        ended = [
            allocation.id
            for allocation in self._store.table.allocations
            if allocation.ended and claim_of(allocation) is not None
        ]
        if any(not self._store.reading(allocation_id).alive for allocation_id in ended):
            self._service.release(ended)
        await self._compare()

    async def _follow_pods(self) -> None:
        while True:
            await self._cluster.news(_COMPARE_SECONDS)
            self._alarm.ring()

    async def _remaining_users(self, name: ClaimName) -> list[str]:
        """Returns who still has a claim that the kubelet gives up, once it is known who ends.

        The kubelet's call can come before the watch shows that the pod is being deleted, most of all where the pod has
        no container yet, or this agent has just begun to watch. An answer at once would leave the memory counted here
        after the API server has given it away. So the watch gets a moment, and then the API server is asked: it told
        the kubelet of the deletion, so it tells us too.
        """
        if not await self._users(name):
            return []
        loop = asyncio.get_running_loop()
        until = loop.time() + _NEWS_SECONDS
        while self._live_pods(name) and (remaining := until - loop.time()) > 0:
            await self._cluster.news(remaining)
        return await self._users(name, ended=await self._ended(self._live_pods(name)))

    async def _ended(self, pods: Collection[Pod]) -> frozenset[str]:
        """Returns the UIDs of those of these pods that have ended by what the API server says now."""
        shown = await self._lists.read() if pods else None
        if shown is None:
            return frozenset()
        alive = {pod.uid for pod in shown.values() if not pod.ending and not pod.terminal}
        return frozenset(pod.uid for pod in pods if pod.uid not in alive)

    def _newcomer(self, name: ClaimName) -> Pod | None:
        """Returns a pod that may have been given a claim which the kubelet gives up for another one; each pod once.

        A kubelet of 1.36 forgets the claim after a success, whoever has got it meanwhile (kubernetes#140527), and a
        container that is not made by then never can be. After an error it keeps the claim, and sees at the next attempt
        that another pod has it. The pod that waits may also be the one that ends, which is not seen here: so there is
        one error at most.
        """
        pods = pods_by_claim(self._cluster.pods.values()).get((name.namespace, name.name), [])
        for pod in self._live_pods(name) if len(pods) > 1 else ():
            if pod.phase == "Pending" and (name.uid, pod.uid) not in self._deferred:
                self._deferred.add((name.uid, pod.uid))
                return pod
        return None

    def _live_pods(self, name: ClaimName, ended: Collection[str] = ()) -> tuple[Pod, ...]:
        """Returns the pods that have a claim of that name and have not ended, as far as the API server shows them.

        Args:
            name: The claim.
            ended: UIDs of pods that have ended, which the watch may not show yet.
        """
        if not self._cluster.synced:
            return ()
        return tuple(
            pod
            for pod in self._cluster.pods.values()
            if pod.namespace == name.namespace
            and not pod.ending
            and not pod.terminal
            and pod.uid not in ended
            and any(own.claim == name.name for own in pod.claims)
        )

    async def _users(
        self, name: ClaimName, *, compared: bool = True, ended: Collection[str] = ()
    ) -> list[str]:
        """Returns who still has a claim: pods, or where the API server shows none, containers on this node.

        Args:
            name: The claim.
            compared: Whether it is asked for the UID of the claim that the pods name.
            ended: As for _live_pods().
        """
        pods = self._live_pods(name, ended)
        others = bool(pods) and compared and await self._is_another(name)
        if pods and not others:
            return [str(pod) for pod in pods]
        ids = frozenset(allocation.id for allocation, _ in of_claim(self._store.table, name.uid))
        mounted = (await asyncio.to_thread(self._present, ids)).mounted if ids else ()
        if mounted or others:
            return [f"processes with allocation {allocation_id[:8]}" for allocation_id in sorted(mounted)]
        return [str(pod) for pod in self._live_pods(name, ended)]  # it may have come meanwhile

    async def _is_another(self, name: ClaimName) -> bool:
        """Whether the claim of that name is a later one by now, which is what pods have that name it."""
        try:
            claim = await self._claims.read(name.namespace, name.name, _READ_SECONDS)
        except (ApiFailure, ValueError):
            return False
        return claim is not None and claim.uid != name.uid

    def _release(self, uid: str) -> None:
        self._service.release([allocation.id for allocation, _ in of_claim(self._store.table, uid)])
        self._cdi.remove(uid)
        self._deferred = {pair for pair in self._deferred if pair[0] != uid}

    def _keep(self, uid: str) -> None:
        """Records that a claim is unprepared and still used. Raises StorageError."""
        marked = [with_unprepared(allocation, True) for allocation, _ in of_claim(self._store.table, uid)]
        self._store.update(self._store.table.replaced(marked))

    def _is_unprepared(self, uid: str) -> bool:
        return any(origin.unprepared for _, origin in of_claim(self._store.table, uid))

    def _recorded(self) -> dict[str, ClaimOrigin]:
        """Returns the claims that have not ended, by UID: in the order in which they were prepared."""
        origins = (
            claim_of(allocation) for allocation in self._store.table.allocations if not allocation.ended
        )
        return {origin.uid: origin for origin in origins if origin is not None}

    async def _compare(self) -> None:
        """Compares claims that no pod of this node shows with those of the API server."""
        if not self._cluster.synced:
            return
        claims = self._recorded()
        # By namespace and name, the UID that pods mean: that of the last claim.
        newest = {(origin.namespace, origin.claim): uid for uid, origin in claims.items()}
        inherited, self._inherited = self._inherited, set()
        self._compare_at = {uid: due for uid, due in self._compare_at.items() if uid in claims}
        pods = pods_by_claim(self._cluster.pods.values())
        for uid, origin in claims.items():
            if origin.unprepared:
                continue
            pause = 0.0 if uid in inherited else _COMPARE_SECONDS
            name = (origin.namespace, origin.claim)
            if (name in pods and newest[name] == uid) or self._preparing(uid):
                self._compare_at.pop(uid, None)
            elif self._clock() >= self._compare_at.setdefault(uid, self._clock() + pause):
                self._compare_at[uid] = self._clock() + _COMPARE_SECONDS
                await self._compare_claim(origin)

    async def _compare_claim(self, origin: ClaimOrigin) -> None:
        try:
            claim = await self._claims.read(origin.namespace, origin.claim, _READ_SECONDS)
        except (ApiFailure, ValueError):  # it may still be there
            self._compare_at[origin.uid] = self._clock() + _COMPARE_AGAIN_SECONDS
            return
        if claim is not None and claim.uid == origin.uid and claim.reserved_for:
            return
        users = await self._users(ClaimName(origin.namespace, origin.claim, origin.uid))
        if users or self._preparing(origin.uid):
            return
        self._log.info("claim is gone; released", claim=str(origin), uid=origin.uid)
        self._release(origin.uid)
