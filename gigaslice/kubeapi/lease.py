"""Leader election by a Lease: at most one of several replicas writes.

No clock of another machine is compared with ours. A candidate takes a lease over when it has seen the same version of
it for the holder's whole duration, by its own monotonic clock. The holder counts from the moment before it sent its
last successful renewal, and stops after two thirds of the duration: earlier than any candidate can have seen that
renewal grow old, even with clocks that run at rates that differ by a third. `leading` compares with the clock at every
call, so it is right also when the event loop was held up: ask it before each write.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import random
import time
from collections.abc import Callable
from typing import Any

from gigaslice.kubeapi.client import CONFLICT, NOT_FOUND, ApiFailure, KubeAnswer, KubeClient, object_path
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["Leader"]

_DURATION = 15.0
_RETRY = 2.0
_ACTIVE_PART = 2 / 3


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holder = ""
        """Who holds the lease, as last seen."""
        self._client = client
        self._base = object_path("apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases")
        self._path = self._base + object_path(name)
        self._name = name
        self._identity = identity
        self._on_change = on_change
        self._duration = max(1, math.ceil(duration))
        self._retry = retry
        self._clock = clock
        self._until = -math.inf  # we lead until then
        self._told = False
        self._seen: dict[str, Any] | None = None  # the lease as it was last
        self._seen_at = -math.inf  # since when it has been that
        self._reported = LogOnce()
        self._log = get_logger("kube")

    @property
    def leading(self) -> bool:
        """Whether no other replica can hold the lease now."""
        return self._clock() < self._until

    async def run(self) -> None:
        """Works until cancelled; then gives the lease back, so that another candidate need not wait."""
        try:
            while True:
                await self._attempt()
                self._tell()
                await self._rest()
        finally:
            held, self._until = self.leading, -math.inf
            self._tell()
            if held:
                await self._release()

    async def _rest(self) -> None:
        """Waits for the next attempt; tells at once when the lease has been lost meanwhile."""
        pause = self._retry * random.uniform(0.8, 1.2)
        left = self._until - self._clock()
        if 0 < left < pause:
            await asyncio.sleep(left)
            self._tell()
            pause -= left
        await asyncio.sleep(pause)

    def _tell(self) -> None:
        leads = self.leading
        if leads != self._told:
            self._told = leads
            self._log.info("leading" if leads else "not leading any more", lease=self._name)
            self._on_change(leads)

    async def _attempt(self) -> None:
        begun = self._clock()
        seconds = max(0.5, self._until - begun) if self.leading else self._retry * 2
        try:
            if not self.leading:
                await self._look(seconds)
            if not (self.leading or self._free()):
                return
            try:
                found = await self._write(seconds)
            except ApiFailure as failure:
                if failure.status not in (CONFLICT, NOT_FOUND):
                    raise
                # Another candidate was quicker, the lease was deleted, or the answer to a renewal of ours was lost.
                await self._look(seconds)
                if self.holder != self._identity:
                    self._until = -math.inf
                    return
                found = await self._write(seconds)
            self._note(found.document())
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
            found = await self._client.request("GET", self._path, seconds=seconds)
        except ApiFailure as failure:
            if failure.status != NOT_FOUND:
                raise
            self._seen, self.holder = None, ""
        else:
            self._note(found.document())

    def _note(self, lease: dict[str, Any]) -> None:
        if self._seen is None or _version(self._seen) != _version(lease):
            self._seen_at = self._clock()
        self._seen = lease
        self.holder = str(_spec(lease).get("holderIdentity") or "")

    def _free(self) -> bool:
        """Whether the lease may be taken: given back, ours from before, or not renewed for its duration."""
        if self.holder in ("", self._identity):
            return True
        duration = _spec(self._seen or {}).get("leaseDurationSeconds")
        seconds = duration if isinstance(duration, int) and duration > 0 else self._duration
        return self._clock() - self._seen_at >= seconds

    def _renewal(self) -> dict[str, Any]:
        lease = dict(self._seen or {})
        before = _spec(lease)
        ours = before.get("holderIdentity") == self._identity
        transitions = before.get("leaseTransitions")
        count = (transitions if isinstance(transitions, int) else 0) + (0 if ours else 1)
        spec = self._spec(transitions=count)
        if ours and before.get("acquireTime"):
            spec["acquireTime"] = before["acquireTime"]
        return {**lease, "spec": {**before, **spec}}

    def _spec(self, transitions: int) -> dict[str, Any]:
        now = _micro_time()
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
            await self._client.request("PUT", self._path, body=body, seconds=self._retry)
        except ApiFailure as failure:
            self._log.info("lease not given back; it ends by itself", detail=str(failure))


def _micro_time() -> str:
    """The present time with a fraction: without one the API server refuses it."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _spec(lease: dict[str, Any]) -> dict[str, Any]:
    found = lease.get("spec")
    return found if isinstance(found, dict) else {}


def _version(lease: dict[str, Any]) -> object:
    metadata = lease.get("metadata")
    return metadata.get("resourceVersion") if isinstance(metadata, dict) else None
