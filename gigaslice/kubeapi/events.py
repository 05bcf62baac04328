"""Events on any object of the cluster: one for each (object, reason, text), counted when repeated, never a flood.

Sending is a task of its own, so that no caller waits for the API server. An event that cannot be sent is dropped after
a few attempts: events are for people, and nothing depends on them.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gigaslice.kube.event import Regarding, Throttle, event_document, event_name, event_text, remember
from gigaslice.kubeapi.client import NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["EventRecorder"]

_REMEMBERED = 8192
_QUEUED = 1024
_BURST, _REFILL = 200.0, 0.1  # of the whole cluster: so many at once, ten a second after them
_ATTEMPTS = 3


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
        host: Where it runs: the pod's name.
        now: Gives Unix time.
        clock: Gives seconds that only grow.
        pause: The first pause after a failure.
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        host: str,
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
        self._throttle = Throttle(_BURST, _REFILL)
        self._queue: asyncio.Queue[_Report] = asyncio.Queue(_QUEUED)
        self._sent: OrderedDict[str, tuple[str, int]] = OrderedDict()  # identity -> name of the event, count
        self._reported = LogOnce()
        self._log = get_logger("kube")

    def say(self, regarding: Regarding, kind: str, reason: str, text: str) -> None:
        """Notes an event; KIND is "Normal" or "Warning". Returns at once, and forgets it when there are many."""
        report = _Report(regarding, kind, reason, event_text(text), self._now())
        due = self._throttle.due
        if not self._queue.full() and due(regarding.uid, (reason, report.text), self._clock()):
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
                        self._log.warning("event not sent", reason=report.reason, detail=str(failure))
                    if 400 <= failure.status < 500 and failure.status != 429:
                        break
                    await asyncio.sleep(max(failure.retry_after, self._pause * 4**attempt))

    async def _send(self, report: _Report) -> None:
        path = object_path("api", "v1", "namespaces", report.regarding.event_namespace, "events")
        name, count = self._sent.get(report.identity, ("", 0))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report.at))
        if name:
            try:
                await self._client.patch(
                    path + object_path(name), {"count": count + 1, "lastTimestamp": stamp}
                )
            except ApiFailure as failure:
                if failure.status != NOT_FOUND:  # else it has expired, usually after an hour
                    raise
            else:
                remember(self._sent, report.identity, (name, count + 1), _REMEMBERED)
                return
        name = event_name(report.regarding.name, f"{report.identity}{time.time_ns():x}")
        await self._client.post(
            path,
            event_document(
                report.regarding,
                name,
                kind=report.kind,
                reason=report.reason,
                text=report.text,
                stamp=stamp,
                component=self._component,
                host=self._host,
            ),
        )
        remember(self._sent, report.identity, (name, 1), _REMEMBERED)
