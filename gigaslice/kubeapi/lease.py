# SPDX-License-Identifier: Apache-2.0
"""Leader election by a Lease: at most one of several replicas writes.

No clock of another machine is compared with ours. A candidate takes a lease over when it has seen the same version of
it for the holder's whole duration, by its own monotonic clock. The holder counts from the moment before it sent its
last successful renewal, and stops after two thirds of the duration: earlier than any candidate can have seen that
renewal grow old, even with clocks that run at rates that differ by a third. `leading` compares with the clock at every
call, so it is right also when the event loop was held up: ask it before each write.

A check before a write leaves a gap: the process may be stopped in it, or its request be on the way when it is gone. A
holder whose writes must exclude each other reads `inherited` when it begins to lead, which says whether the holder
before it may still be writing.
"""

from __future__ import annotations

import datetime
import logging
import math
import random
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from gigaslice.core.kube.fields import object_at, text_at
from gigaslice.kubeapi.client import CONFLICT, NOT_FOUND, ApiFailure, KubeAnswer, KubeClient, object_path
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.wakeup import Alarm

__all__ = ["Inherited", "Leader"]

_DURATION = 15.0
_RETRY = 2.0
_ACTIVE_PART = 2 / 3


class Inherited(IntEnum):
    """What a holder of the lease took over from the one before it, the worst since `caught_up` was called."""

    NOTHING = 0
    """No other candidate has led since this one did."""
    WRITES = 1
    """Another one led, and gave the lease back: all its writes have been answered."""
    DOUBT = 2
    """Another one may have led and did not give the lease back: a write of it may still arrive."""


class Leader:
    """One candidate for the lease NAMESPACE/NAME.

    Args:
        client: The API server.
        namespace: The lease's namespace.
        name: The lease's name.
        identity: The candidate's own name, different for every process: the pod's name and something random.
        on_change: Called with True when it begins to lead and with False when it has stopped.
        duration: Seconds after which others may take over a lease that is not renewed; whole seconds in the API.
        retry: Seconds between attempts and renewals.
        wanted: Whether the candidate has anything to write; while not, it leaves the lease to others. None: always.
        clean: Whether all its writes have been answered; while not, it lets the lease grow old in place of giving it
            back.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        on_change: Callable[[bool], None] = lambda leads: None,
        *,
        duration: float = _DURATION,
        retry: float = _RETRY,
        wanted: Callable[[], bool] | None = None,
        clean: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holder = ""
        """Who holds the lease, as last seen."""
        self.inherited = Inherited.NOTHING
        """What is to be caught up on; valid while leading."""
        self.takeovers = 0
        """How often anything was inherited."""
        self._client = client
        self._base = object_path("apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases")
        self._path = self._base + object_path(name)
        self._name = name
        self._identity = identity
        self._on_change = on_change
        self._duration = max(1, math.ceil(duration))
        self._retry = retry
        self._on_demand = wanted is not None
        self._wanted = wanted or (lambda: True)
        self._clean = clean
        self._clock = clock
        self._until = -math.inf  # we lead until then
        self._told = False
        self._seen: dict[str, Any] | None = None  # the lease as it was last
        self._seen_at = -math.inf  # since when it has been that
        self._sent: set[object] = (
            set()
        )  # times in the versions that it wrote, or tried to: no other replica writes them
        self._hurry = Alarm()
        self._reported = LogOnce()
        self._log = get_logger("kube")

    @property
    def leading(self) -> bool:
        """Whether no other replica can hold the lease now."""
        return self._clock() < self._until

    @property
    def seconds_left(self) -> float:
        """For how long no other replica can hold the lease; a write that ends later must not begin."""
        return max(0.0, self._until - self._clock())

    def hurry(self) -> None:
        """Has the next attempt made at once."""
        self._hurry.ring()

    def caught_up(self, takeovers: int) -> None:
        """Notes that what was inherited until TAKEOVERS had that value has been dealt with."""
        if takeovers == self.takeovers:
            self.inherited = Inherited.NOTHING

    async def run(self) -> None:
        """Works until cancelled; then gives the lease back, so that another candidate need not wait."""
        try:
            while True:
                begun = self._clock()
                await self._attempt()
                self._tell()
                await self._rest(self._clock() - begun)
        finally:
            await self._leave()

    async def _leave(self) -> None:
        held, self._until = self.leading, -math.inf
        self._tell()
        if held and self._clean():
            await self._release()

    async def _rest(self, took: float) -> None:
        """Waits for the next attempt after one that TOOK so long; tells at once when the lease is lost meanwhile."""
        pause = max(self._retry / 10, self._retry * random.uniform(0.8, 1.2) - took)
        left = self._until - self._clock()
        if 0 < left < pause:
            if await self._hurry.wait(left):
                return
            self._tell()
            pause -= left
        await self._hurry.wait(pause)

    def _tell(self) -> None:
        leads = self.leading
        if leads != self._told:
            self._told = leads
            level = logging.DEBUG if self._on_demand else logging.INFO
            self._log.log(level, "leading" if leads else "not leading any more", lease=self._name)
            self._on_change(leads)

    async def _attempt(self) -> None:
        self._tell()
        if self.leading and not self._wanted():
            await self._leave()
            return
        try:
            if not self.leading:
                await self._look(self._duration)
            if not self._wanted() or not (self.leading or self._free()):
                return
            begun = self._clock()
            seconds = max(0.5, self._until - begun) if self.leading else self._duration * _ACTIVE_PART
            self._inherit()
            try:
                answer = await self._write(seconds)
            except ApiFailure as failure:
                if failure.status not in (CONFLICT, NOT_FOUND):
                    raise
                # Another candidate was quicker, the lease was deleted, or the answer to a renewal of ours was lost.
                await self._look(seconds)
                if self.holder != self._identity:
                    self._until = -math.inf
                    return
                self._inherit()
                begun = self._clock()
                answer = await self._write(seconds)
            self._note(answer.document())
            self._sent &= {text_at(object_at(self._seen or {}, "spec"), "renewTime")}
        except ApiFailure as failure:
            if self._reported.new("lease", str(failure)):
                self._log.warning("lease not read or renewed", lease=self._name, detail=str(failure))
            return
        self._until = begun + self._duration * _ACTIVE_PART
        self._reported.over("lease")

    async def _write(self, seconds: float) -> KubeAnswer:
        if self._seen is not None:
            return await self._client.request("PUT", self._path, body=self._renewal(), seconds=seconds)
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(transitions=0),
        }
        return await self._client.request("POST", self._base, body=body, seconds=seconds)

    async def _look(self, seconds: float) -> None:
        try:
            answer = await self._client.request("GET", self._path, seconds=seconds)
        except ApiFailure as failure:
            if failure.status != NOT_FOUND:
                raise
            self._seen, self.holder = None, ""
        else:
            self._note(answer.document())

    def _note(self, lease: dict[str, Any]) -> None:
        if self._seen is None or _version(self._seen) != _version(lease):
            self._seen_at = self._clock()
        self._seen = lease
        self.holder = text_at(object_at(lease, "spec"), "holderIdentity")

    def _free(self) -> bool:
        """Whether the lease may be taken: given back, ours from before, or not renewed for its duration."""
        if self.holder in ("", self._identity):
            return True
        duration = object_at(self._seen or {}, "spec").get("leaseDurationSeconds")
        seconds = duration if isinstance(duration, int) and duration > 0 else self._duration
        return self._clock() - self._seen_at >= seconds

    def _inherit(self) -> None:
        """Notes, before the lease is taken, what its last version says of the holder before us."""
        if self._seen is not None and text_at(object_at(self._seen, "spec"), "renewTime") in self._sent:
            return
        given_back = self._seen is not None and not self.holder
        self.takeovers += 1
        self.inherited = max(self.inherited, Inherited.WRITES if given_back else Inherited.DOUBT)

    def _renewal(self) -> dict[str, Any]:
        lease = dict(self._seen or {})
        before = object_at(lease, "spec")
        ours = before.get("holderIdentity") == self._identity
        transitions = before.get("leaseTransitions")
        count = (transitions if isinstance(transitions, int) else 0) + (0 if ours else 1)
        spec = self._spec(transitions=count)
        if ours and before.get("acquireTime"):
            spec["acquireTime"] = before["acquireTime"]
        return {**lease, "spec": {**before, **spec}}

    def _spec(self, transitions: int) -> dict[str, Any]:
        now = _micro_time()
        self._sent.add(now)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._duration,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    async def _release(self) -> None:
        body = self._renewal()
        body["spec"] = {**body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            answer = await self._client.request("PUT", self._path, body=body, seconds=self._retry)
            self._note(answer.document())
        except ApiFailure as failure:
            self._log.info("lease not given back; it ends by itself", detail=str(failure))


def _micro_time() -> str:
    """The present time with a fraction: without one the API server refuses it."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _version(lease: dict[str, Any]) -> object:
    return object_at(lease, "metadata").get("resourceVersion")
