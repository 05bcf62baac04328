# SPDX-License-Identifier: Apache-2.0
"""Events on any object of the cluster, as `kubectl describe` shows them: counted when repeated, never a flood.

What is due is decided by `gigaslice.core.kube.event.Throttle`. Sending is a task of its own, so that no caller waits
for the API server. An event that cannot be sent is dropped after a few attempts: events are for people, and nothing
depends on them.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gigaslice.core.kube.event import Regarding, Throttle, event_document, event_name, event_text, remember
from gigaslice.core.text import plain
from gigaslice.kubeapi.client import CONFLICT, MERGE_PATCH, KubeClient
from gigaslice.kubeapi.failures import NOT_FOUND, TOO_MANY, ApiFailure, NameFailure, object_path
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["CLUSTER_RATES", "NODE_RATES", "EventRates", "EventRecorder"]

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class EventRates:
    """How many events a component may send.

    Attributes:
        burst: So many at once.
        refill: Seconds for another one.
        queued: Those that wait to be sent.
        remembered: Those that are counted when they are repeated.
        by_text: Whether another text is another report. Else a text that changes in its details (2 GiB missing, then 1)
            is the same, and told as often as the reason is due.
    """

    burst: float
    refill: float
    queued: int
    remembered: int
    by_text: bool


NODE_RATES = EventRates(50.0, 1.0, 256, 2048, by_text=False)
CLUSTER_RATES = EventRates(200.0, 0.1, 1024, 8192, by_text=True)


@dataclass(frozen=True, slots=True)
class _Report:
    regarding: Regarding
    kind: str
    reason: str
    text: str
    at: float  # Unix time

    @property
    def identity(self) -> str:
        told = "\n".join((self.regarding.uid, self.regarding.field, self.kind, self.reason, self.text))
        return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:16]


class EventRecorder:
    """Sends events of one component of the cluster.

    Args:
        client: The API server.
        component: The part that reports, such as "controller".
        host: Where it runs: the name of the pod or the node.
        rates: How many it may send.
        now: Gives Unix time.
        clock: Gives seconds that only grow.
        pause: The first pause after a failure.
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        host: str,
        rates: EventRates = CLUSTER_RATES,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        pause: float = 1.0,
    ) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._now = now
        self._clock = clock
        self._pause = pause
        self._rates = rates
        self._throttle = Throttle(rates.burst, rates.refill)
        self._queue: asyncio.Queue[_Report] = asyncio.Queue(rates.queued)
        self._sent: OrderedDict[str, tuple[str, int]] = OrderedDict()  # identity -> name of the event, count
        self._reported = LogOnce()
        self._log = get_logger("kube")

    def say(self, regarding: Regarding, kind: str, reason: str, text: str) -> None:
        """Notes an event; KIND is "Normal" or "Warning". Returns at once, and forgets it when there are many."""
        report = _Report(regarding, kind, reason, event_text(text), self._now())
        key = (reason, regarding.field, report.text if self._rates.by_text else "")
        if not self._queue.full() and self._throttle.due(regarding.uid, key, self._clock()):
            self._queue.put_nowait(report)

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            report = await self._queue.get()
            for attempt in range(_ATTEMPTS):
                try:
                    await self._send(report)
                    self._reported.over("failing")
                    break
                except ApiFailure as failure:
                    if self._reported.new("failing"):
                        self._log.warning(
                            "event not sent",
                            reason=report.reason,
                            name=plain(f"{report.regarding.namespace}/{report.regarding.name}"),
                            detail=str(failure),
                        )
                    refused = 400 <= failure.status < 500 and failure.status != TOO_MANY
                    if refused or isinstance(failure, NameFailure):
                        break
                    await asyncio.sleep(max(failure.retry_after, self._pause * 4**attempt))

    async def _send(self, report: _Report) -> None:
        path = object_path("api", "v1", "namespaces", report.regarding.event_namespace, "events")
        name, count = self._sent.get(report.identity, ("", 0))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report.at))
        if name:
            try:
                change = {"count": count + 1, "lastTimestamp": stamp}
                await self._client.request(
                    "PATCH", path + object_path(name), body=change, content=MERGE_PATCH
                )
            except ApiFailure as failure:
                if failure.status != NOT_FOUND:  # else it has expired, usually after an hour
                    raise
            else:
                remember(self._sent, report.identity, (name, count + 1), self._rates.remembered)
                return
        name = event_name(report.regarding.name, f"{report.identity}{time.time_ns():x}")
        document = event_document(
            report.regarding,
            name,
            kind=report.kind,
            reason=report.reason,
            text=report.text,
            stamp=stamp,
            component=self._component,
            host=self._host,
        )
        try:
            await self._client.request("POST", path, body=document)
        except ApiFailure as failure:
            if failure.status != CONFLICT:  # else it was posted by a request whose connection was lost
                raise
        remember(self._sent, report.identity, (name, 1), self._rates.remembered)
