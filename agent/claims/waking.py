# SPDX-License-Identifier: Apache-2.0
"""Has the kubelet ask again at once for a claim whose call was answered with an error.

The kubelet repeats such a call after 60 to 90 seconds, its ordinary resync of a pod, and within 0.3 seconds of a change
of the pod's metadata. So one annotation of the pod is written when its start would succeed: in the order in which the
claims came, since each start may take what the next one needs. What was answered while this agent was not there, or
the kubelet had no driver, is not known. So whenever the kubelet is known to have registered the driver, every pod of
the node that waits with a claim is woken once. Not sooner: the kubelet looks for drivers once a second, and a pod that
is woken before costs as much again. And an error of the kubelet's own costs as much, and no driver hears of it: it
reads a claim with rights that the API server may give it a moment after the pod, or still has an older claim of the
same name. So a pod that waits for its sandbox while nothing is prepared for it is woken too, the later the more often
that was in vain; not a pod that alone has a claim which the kubelet was given. In a burst that is every tenth pod, and
several are woken at a time. After a boot the kubelet asks anew for pods that are Running for the API server: these
wait likewise.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from agent.apiserver import Cluster
from agent.claims.claim_reader import ClaimReader
from agent.claims.messages import ClaimName
from agent.persistence.store import Store
from gigaslice.core.claims.origin import claim_of
from gigaslice.core.errors import GigasliceError
from gigaslice.core.model import Pod
from gigaslice.kubeapi.failures import ApiFailure
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of
from gigaslice.runtime.wakeup import Alarm

__all__ = ["ClaimWaking"]

_ROUND_SECONDS = 0.5
_AGAIN_SECONDS = 10.0  # until a pod is woken again whose claim was not asked for
_FAILED_SECONDS = 2.0  # the same where waking it failed
_READ_SECONDS = 5.0
_SYNC_SECONDS = 30.0  # that the pods are waited for
_UNASKED_SECONDS = 2.0
"""That a pod is without a sandbox and a call until it is woken; then twice as long each time."""
_UNASKED_MOST = 64.0
_UNASKED_READ_SECONDS = 1.0
"""Where a slow API server does not say so soon whose claim it is, the pod is woken."""
_AT_A_TIME = 8
"""Pods that are woken at a time: each takes two answers of the API server."""


class ClaimWaking:
    """Wakes pods."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        claims: ClaimReader,
        *,
        refused: Callable[[], dict[str, ClaimName]],
        answered: Callable[[], dict[tuple[str, str], str]],
        would_start: Callable[[str], Awaitable[bool]],
        preparing: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table.
            cluster: The pods of this node, which are woken.
            claims: Reads claims.
            refused: Returns the claims that were answered with an error, by UID, in the order of their arrival; those
                that nobody waits for any more are taken out.
            answered: Returns the UIDs of the claims that the kubelet was given, by namespace and name; those that have
                ended are taken out, and all when the kubelet has registered the driver anew.
            would_start: Whether a claim of that UID would be prepared now.
            preparing: Whether a claim of that UID is being prepared now.
            clock: Seconds that never go back.
        """
        self._store = store
        self._cluster = cluster
        self._claims = claims
        self._refused = refused
        self._answered = answered
        self._would_start = would_start
        self._preparing = preparing
        self._clock = clock
        self._unasked: dict[
            str, tuple[float, float]
        ] = {}  # by UID of the pod: the next look, and the pause after it
        self._woken: dict[str, float] = {}  # by UID of the pod, until when it is left alone
        self._all_due = False
        self._alarm = Alarm()
        self._reported = LogOnce()
        self._log = get_logger("claims")

    def registered(self) -> None:
        """The kubelet has the driver, since now or for longer than this agent is there. Returns at once."""
        self._answered().clear()
        self._all_due = True
        self._alarm.ring()

    async def run(self) -> None:
        """Works until cancelled."""
        self._store.watchers.append(self._alarm.ring)
        try:
            await all_of(self._wake_by_news(), self._wake_by_time())
        finally:
            self._store.watchers.remove(self._alarm.ring)

    async def _wake_by_news(self) -> None:
        while True:
            if self._all_due:
                self._all_due = False
                await self.wake_all()
            await self.wake_ready()
            await self._alarm.wait(_ROUND_SECONDS)

    async def _wake_by_time(self) -> None:
        """Beside the other, which is not to wait for the answers of the API server that this takes."""
        while True:
            await self.wake_unasked()
            await asyncio.sleep(_ROUND_SECONDS)

    async def wake_all(self) -> None:
        """Wakes every pod that waits with a claim to devices of ours."""
        until = self._clock() + _SYNC_SECONDS
        while not self._cluster.synced and self._clock() < until:
            await self._cluster.news(0.2)
        pods = [pod for pod in self._cluster.pods.values() if _waits(pod) and pod.claims]
        await self._wake_those_with_ours(pods, unasked=False)

    async def wake_ready(self) -> None:
        """Wakes the pods of those claims that would be prepared now, where no other claim of the pod would be refused.

        All claims of a pod are prepared together: one that is refused again costs the pod another minute.
        """
        refused = self._refused()
        now = self._clock()
        self._woken = {uid: until for uid, until in self._woken.items() if now < until}
        waiting: dict[str, list[Pod]] = {}  # the pods of each claim, by its UID
        for uid, name in list(refused.items()):
            if pods := self._waiting(name):
                waiting[uid] = pods
            elif self._cluster.synced:
                refused.pop(uid, None)
        ready = [uid for uid in waiting if await self._is_ready(uid, refused.get(uid))]
        blocked = {pod.uid for uid in waiting.keys() - set(ready) for pod in waiting[uid]}
        for uid in ready:
            for pod in waiting[uid]:
                if pod.uid not in blocked and pod.uid not in self._woken:
                    await self._wake(pod)

    async def _is_ready(self, uid: str, name: ClaimName | None) -> bool:
        """Whether a claim would be prepared now. A call that is under way tells by itself."""
        if self._preparing(uid):
            return False
        try:
            ready = await self._would_start(uid)
        except GigasliceError as error:
            if self._reported.new(uid, str(error)):
                self._log.error("not known whether a pod would start", claim=str(name), detail=str(error))
            return False
        self._reported.over(uid)
        return ready

    async def wake_unasked(self) -> None:
        """Wakes the pods with a claim of ours that wait for their sandbox, and whose claims are not being prepared."""
        if not self._cluster.synced:
            return
        now = self._clock()
        pods = [
            pod for pod in self._cluster.pods.values() if _waits(pod) and pod.claims and not pod.sandboxed
        ]
        first = (now + _UNASKED_SECONDS, _UNASKED_SECONDS)
        self._unasked = {pod.uid: self._unasked.get(pod.uid, first) for pod in pods}
        due = [pod for pod in pods if now >= self._unasked[pod.uid][0]]
        for pod in due:
            _, pause = self._unasked[pod.uid]
            later = min(2 * pause, _UNASKED_MOST)
            self._unasked[pod.uid] = now + later, later
        if due:
            asked = self._asked()
            await self._wake_those_with_ours([pod for pod in due if not asked(pod)], unasked=True)

    def _asked(self) -> Callable[[Pod], bool]:
        """Returns what tells whether the kubelet has been given all claims of a pod, and no other pod has them.

        A pod made anew under the name of one that is still being removed has another UID, as has its claim.
        """
        users: dict[str, set[str]] = {}
        for allocation in self._store.table.allocations:
            if (origin := claim_of(allocation)) is not None and not allocation.ended:
                users.setdefault(origin.uid, set()).update(consumer.uid for consumer in origin.consumers)
        answered = self._answered()
        for name in [name for name, uid in answered.items() if uid not in users]:
            del answered[name]
        pods = Counter(
            (pod.namespace, own.claim) for pod in self._cluster.pods.values() for own in pod.claims
        )

        def asked(pod: Pod) -> bool:
            names = [(pod.namespace, own.claim) for own in pod.claims]
            return all(
                name in answered and pod.uid in users[answered[name]] and pods[name] == 1 for name in names
            )

        return asked

    async def _wake_those_with_ours(self, pods: Sequence[Pod], *, unasked: bool) -> None:
        """Wakes those pods that have a claim to devices of ours, several at a time."""
        turn = asyncio.Semaphore(_AT_A_TIME)

        async def wake(pod: Pod) -> None:
            async with turn:
                if await self._has_ours(pod, unasked=unasked):
                    await self._wake(pod)

        await all_of(*map(wake, pods))

    def _waiting(self, name: ClaimName) -> list[Pod]:
        return [
            pod
            for pod in self._cluster.pods.values()
            if pod.namespace == name.namespace
            and _waits(pod)
            and any(own.claim == name.name for own in pod.claims)
        ]

    async def _has_ours(self, pod: Pod, *, unasked: bool = False) -> bool:
        """Whether a pod has a claim to devices of ours; unasked: and none that is being prepared or was refused."""
        ours = False
        for own in pod.claims:
            if not own.claim:
                continue
            try:
                seconds = _UNASKED_READ_SECONDS if unasked else _READ_SECONDS
                claim = await self._claims.read(pod.namespace, own.claim, seconds)
            except (ApiFailure, ValueError):
                ours = True  # to be found out when it is asked for
                continue
            if claim is not None and claim.results:
                ours = True
                if unasked and (self._preparing(claim.uid) or claim.uid in self._refused()):
                    return False
        return ours

    async def _wake(self, pod: Pod) -> None:
        self._woken[pod.uid] = self._clock() + _AGAIN_SECONDS
        problem = await self._cluster.wake(pod)
        if not problem:
            self._log.info("pod woken", pod=str(pod))
            self._reported.over("problem")
            return
        self._woken[pod.uid] = self._clock() + _FAILED_SECONDS
        if self._reported.new("problem", problem):
            self._log.warning("pod not woken", pod=str(pod), detail=problem)


def _waits(pod: Pod) -> bool:
    """Whether the kubelet is still to start it. After a boot that includes pods that are Running without a sandbox."""
    return not pod.ending and (pod.phase == "Pending" or (pod.phase == "Running" and not pod.sandboxed))
