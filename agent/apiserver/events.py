"""Events on pods, as `kubectl describe pod` shows them: reported once, counted when repeated, never a flood.

A message that changes in its details (2 GiB missing, then 1 GiB) is the same event for the same reason. What is due is
decided by `gigaslice.kube.event.Throttle`. Sending is a task of its own, so that no caller waits for the API
server.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from agent.apiserver.wire import Api, ApiError, path_of
from gigaslice.kube.event import Regarding, Throttle, event_document, event_name, event_text, remember
from gigaslice.model import Pod
from gigaslice.runtime.logs import get_logger

__all__ = ["EventSender", "Throttle"]

_REMEMBERED = 2048  # news; the oldest are forgotten first
_QUEUED = 256
_COMPONENT = "node"
_MERGE = "application/merge-patch+json"
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class _News:
    pod: Pod
    kind: str
    reason: str
    text: str
    container: str
    at: float  # Unix time

    @property
    def identity(self) -> str:
        told = "\n".join((self.pod.uid, self.kind, self.reason, self.text, self.container))
        return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:16]


class EventSender:
    """Sends events of NODE to API. NOW gives Unix time, CLOCK seconds that only grow."""

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        pause: float = 1.0,
    ) -> None:
        self._api = api
        self._node = node
        self._now = now
        self._clock = clock
        self._pause = pause
        self._throttle = Throttle()
        self._queue: asyncio.Queue[_News] = asyncio.Queue(_QUEUED)
        self._sent: OrderedDict[str, tuple[str, int]] = OrderedDict()  # identity -> name of the event, count
        self._failing = False
        self._log = get_logger("kube")

    def say(self, pod: Pod, kind: str, reason: str, text: str, container: str = "") -> None:
        """Notes an event of POD; KIND is "Normal" or "Warning". Returns at once, and forgets it when there are many."""
        news = _News(pod, kind, reason, event_text(text), container, self._now())
        if not self._queue.full() and self._throttle.due(pod.uid, (reason, container), self._clock()):
            self._queue.put_nowait(news)

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            news = await self._queue.get()
            for attempt in range(_ATTEMPTS):
                try:
                    await self._send(news)
                    self._failing = False
                    break
                except (ApiError, ValueError) as error:  # a name that is none, or text that no encoding takes
                    if not self._failing:
                        self._failing = True
                        self._log.warning(
                            "event not sent", reason=news.reason, pod=str(news.pod), detail=str(error)
                        )
                    if not isinstance(error, ApiError) or (400 <= error.status < 500 and error.status != 429):
                        break
                    await asyncio.sleep(max(error.retry_after, self._pause * 4**attempt))

    async def _send(self, news: _News) -> None:
        path = path_of("api", "v1", "namespaces", news.pod.namespace, "events")
        name, count = self._sent.get(news.identity, ("", 0))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(news.at))
        if name:
            patch = {"count": count + 1, "lastTimestamp": stamp}
            reply = await self._api.request("PATCH", path + path_of(name), None, patch, _MERGE)
            if reply.status < 300:
                remember(self._sent, news.identity, (name, count + 1), _REMEMBERED)
                return
            if reply.status != 404:  # it has expired, usually after an hour
                raise reply.failure("event not counted")
        name = event_name(news.pod.name, f"{news.identity}{time.time_ns():x}")
        regarding = Regarding(
            "Pod", news.pod.namespace, news.pod.name, news.pod.uid, field=_field(news.container)
        )
        document = event_document(
            regarding,
            name,
            kind=news.kind,
            reason=news.reason,
            text=news.text,
            stamp=stamp,
            component=_COMPONENT,
            host=self._node,
        )
        reply = await self._api.request("POST", path, None, document)
        if reply.status >= 300:
            raise reply.failure("event not taken")
        remember(self._sent, news.identity, (name, 1), _REMEMBERED)


def _field(container: str) -> str:
    return "spec.containers{" + container + "}" if container else ""
