# SPDX-License-Identifier: Apache-2.0
"""Which of several services decides: the one whose kube-scheduler calls it, alone, by a lease.

kube-schedulers elect a leader among themselves, but a service cannot see that, and theirs does not bind the services: a
binding that kube-scheduler has given up goes on here, and a kube-scheduler that was stopped for a minute may send one
more before it notices. So the services have a lease of their own. It is taken with the first request, and given back
when none has come for some seconds and every binding has its answer.

Who takes it over first reads all pods anew, by a list that shows every binding that was written. Where the lease was
not given back, a binding of the former holder may still be on its way. Each unbound pod is then written to once: its
resourceVersion changes, and with it every older binding of it fails, since bindings name the version that they are for
(docs/adr/0090). The answer shows a binding that was quicker. That ends this service's own doubts from before, too: a
binding that it would repeat may be of a GPU that another service has given to another pod since.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import NOT_FOUND, ApiFailure, KubeClient
from gigaslice.kubeapi.lease import Inherited, Leader
from gigaslice.roles.scheduler.pod_conditions import set_condition
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import run_together

__all__ = ["Election", "ElectionTimes"]

_CONDITION = "gigaslice.io/Scheduler"
_AT_ONCE = 16
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class ElectionTimes:
    """How long the lease is held, and how long requests and takeovers are waited for. Seconds.

    Attributes:
        lease: For how long the lease holds without being renewed.
        retry: Between two attempts to take or renew it.
        idle: Without a request, until the lease is given back. Less than the lease of any kube-scheduler: its successor
            finds ours given back, or sees that at its next attempt (2.4 seconds). More than its longest pause between
            two attempts of one pod (10 s): a slow API server would have the lease given back before it was of use,
            every time.
        unconnected: The same where no connection is open and no takeover is going on: the kube-scheduler has ended. One
            that is restarted gives its own lease back, and its successor comes in a second or two. (After an answer
            503, as during a takeover, every kube-scheduler closes its connection.)
        patience: How long a request waits for the lease; kube-scheduler's own patience is two seconds.
        poll: Between two looks of such a request at the lease.
        again: Between two attempts to write to the pods that a takeover has left.
        over: After a takeover, until every binding of before has been written or never will be: an API server gives up
            a request after 60 seconds, and its sender has given it up before.
    """

    lease: float = 15.0
    retry: float = 2.0
    idle: float = 12.5
    unconnected: float = 2.0
    patience: float = 1.0
    poll: float = 0.02
    again: float = 0.5
    over: float = 90.0


class Election:
    """The part of one service in it.

    Args:
        client: The API server.
        lease: Namespace and name of the lease.
        identity: The service's name, which no other has at the same time; a process started again may have it anew.
        busy: Whether bindings are being written.
        clean: Whether every binding has had its answer.
        refresh: Reads all pods anew.
        unbound: Returns the pods that may be bound.
        put: Takes the document of a pod as the API server has it now.
        connected: Whether a kube-scheduler has a connection to this service.
        overtaken: Called when no binding of before a takeover, our own neither, can be written any more.
        times: How long the lease is held, and what is waited for.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        client: KubeClient,
        lease: tuple[str, str],
        identity: str,
        *,
        busy: Callable[[], bool],
        clean: Callable[[], bool],
        refresh: Callable[[], Awaitable[None]],
        unbound: Callable[[], Iterable[Pod]],
        put: Callable[[dict[str, Any]], None],
        overtaken: Callable[[], None],
        connected: Callable[[], bool] = lambda: True,
        times: ElectionTimes = ElectionTimes(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._identity = identity
        self._busy = busy
        self._refresh = refresh
        self._unbound = unbound
        self._put = put
        self._overtaken = overtaken
        self._connected = connected
        self._times = times
        self._clock = clock
        self._asked = -math.inf
        self._taken_over = 0, -math.inf  # how often by the last takeover, and when that was
        self._change = asyncio.Event()
        self._reported = LogOnce()
        self._log = get_logger("scheduler")
        self._leader = Leader(
            client,
            *lease,
            identity,
            lambda leads: self._change.set(),
            duration=times.lease,
            retry=times.retry,
            wanted=self._wanted,
            # Until older bindings are impossible, no other replica may inherit less than the doubt that this one has.
            clean=lambda: clean() and self._leader.inherited is not Inherited.DOUBT,
            clock=clock,
        )

    @property
    def seconds_left(self) -> float:
        """For how long this service alone may write bindings."""
        return 0.0 if self._leader.inherited else self._leader.seconds_left

    def decides(self) -> bool:
        """Takes note of a request; returns whether it can be answered at once."""
        self._asked = self._clock()
        return self.seconds_left > 0

    async def refusal(self) -> str | None:
        """Takes note of a request; returns why it cannot be answered, None as soon as it can."""
        begun = self._asked = self._clock()
        if self.seconds_left:
            return None
        self._leader.hurry()
        self._change.set()
        while not self.seconds_left:
            self._asked = self._clock()
            if self._asked - begun > self._times.patience:
                return self._reason()
            await asyncio.sleep(self._times.poll)
        return None

    async def run(self) -> None:
        """Works until cancelled."""
        await run_together("lease", {"lease": self._leader.run(), "takeovers": self._catch_up()})

    def _reason(self) -> str:
        if self._leader.leading:
            return "this replica has just taken over and reads the pods"
        return (
            f"another replica decides ({self._leader.holder})"
            if self._leader.holder
            else "no replica decides"
        )

    def _wanted(self) -> bool:
        patient = self._connected() or self._leader.inherited
        times = self._times
        seconds = times.idle if patient else min(times.unconnected, times.idle)
        return self._busy() or self._clock() - self._asked < seconds

    async def _catch_up(self) -> None:
        while True:
            await self._change.wait()
            self._change.clear()
            while self._leader.leading and self._leader.inherited:
                await self._catch_up_once(self._leader.takeovers, self._leader.inherited)

    async def _catch_up_once(self, takeovers: int, inherited: Inherited) -> None:
        await self._refresh()
        left = list(self._unbound()) if inherited is Inherited.DOUBT else []
        count = len(left)
        if self._taken_over[0] != takeovers:
            self._taken_over = takeovers, self._clock()
        while left := await self._overtake(left):
            if not self._leader.leading or self._leader.takeovers != takeovers:
                return
            if self._clock() - self._taken_over[1] > self._times.over:
                await self._leave_out(left)
                break
            await asyncio.sleep(self._times.again)
            still = {pod.uid for pod in self._unbound()}
            left = [pod for pod in left if pod.uid in still]  # the others are bound, which is seen, or gone
        self._overtaken()
        self._leader.caught_up(takeovers)
        self._reported.over("takeover")
        self._log.info("deciding", identity=self._identity, unbound_pods_written=count)

    async def _leave_out(self, pods: list[Pod]) -> None:
        """Goes on without having changed some pods: one that refuses every write must not keep all others waiting."""
        self._log.warning(
            "pods not written at the takeover; older bindings of them are taken for over",
            count=len(pods),
            pods=", ".join(str(pod) for pod in pods[:_MOST_NAMED]),
        )
        await self._refresh()  # shows bindings of them that were written since

    async def _overtake(self, pods: list[Pod]) -> list[Pod]:
        """Changes unbound pods, so that no binding of an earlier version succeeds; returns those that still are not."""
        left = []
        for start in range(0, len(pods), _AT_ONCE):
            some = pods[start : start + _AT_ONCE]
            done = await asyncio.gather(*(self._overtake_one(pod) for pod in some))
            left += [pod for pod, changed in zip(some, done, strict=True) if not changed]
        return left

    async def _overtake_one(self, pod: Pod) -> bool:
        message = f"{self._identity} decides since its predecessor stopped; takeover {uuid.uuid4().hex[:8]}"
        try:
            self._put(await set_condition(self._client, pod, _CONDITION, "TakenOver", message))
        except ApiFailure as failure:
            if failure.status == NOT_FOUND:
                return True
            if self._reported.new("takeover", str(failure)):
                self._log.warning("takeover not complete; tried again", detail=str(failure))
            return False
        return True
