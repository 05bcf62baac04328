"""Events on pods, as `kubectl describe pod` shows them: reported once, counted when repeated, never a flood.

A message that changes in its details (2 GiB missing, then 1 GiB) is the same event for the same reason. `Throttle`
decides what is due and takes the time as an argument. Sending is a task of its own, so that no caller waits for the API
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
from gigaslice.model import Pod
from gigaslice.runtime.logs import get_logger
from gigaslice.text import plain

__all__ = ["EventSender", "Throttle"]

_REMEMBERED = 2048  # news; the oldest are forgotten first
_QUEUED = 256
_INTERVALS = (10.0, 60.0, 300.0)  # seconds between the first and second time, second and third, and so on
_POD_BURST, _POD_REFILL = 20.0, 60.0  # events of one pod at once; seconds for another one
_NODE_BURST, _NODE_REFILL = 50.0, 1.0
_MAX_TEXT = 1000  # the API server takes 1,024 bytes
_MERGE = "application/merge-patch+json"
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class _Bucket:
    tokens: float
    at: float

    def taken(self, now: float, burst: float, refill: float) -> _Bucket | None:
        """What is left after one more, or None when there is none left."""
        tokens = min(burst, self.tokens + (now - self.at) / refill)
        return _Bucket(tokens - 1, now) if tokens >= 1 else None


class Throttle:
    """Which of many repetitions are worth an event. Holds no clock."""

    def __init__(self) -> None:
        self._said: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()
        self._pods: OrderedDict[str, _Bucket] = OrderedDict()
        self._node = _Bucket(_NODE_BURST, 0.0)

    def due(self, uid: str, key: tuple[str, ...], now: float) -> bool:
        """Whether the news KEY of the pod UID is to be said at NOW."""
        last, times = self._said.get((uid, *key), (0.0, 0))
        if times and now - last < _INTERVALS[min(times, len(_INTERVALS)) - 1]:
            return False
        pod = self._pods.get(uid, _Bucket(_POD_BURST, now)).taken(now, _POD_BURST, _POD_REFILL)
        node = self._node.taken(now, _NODE_BURST, _NODE_REFILL)
        if pod is None or node is None:
            return False
        self._node = node
        _remember(self._pods, uid, pod)
        _remember(self._said, (uid, *key), (now, times + 1))
        return True


def _remember(table: OrderedDict, key: object, value: object) -> None:  # type: ignore[type-arg]
    table[key] = value
    table.move_to_end(key)
    while len(table) > _REMEMBERED:
        table.popitem(last=False)


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
        news = _News(pod, kind, reason, _cut(plain(text)), container, self._now())
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
                _remember(self._sent, news.identity, (name, count + 1))
                return
            if reply.status != 404:  # it has expired, usually after an hour
                raise reply.failure("event not counted")
        name = f"{news.pod.name[:200].rstrip('.-')}.{news.identity}{time.time_ns():x}"
        reply = await self._api.request("POST", path, None, self._document(news, name, stamp))
        if reply.status >= 300:
            raise reply.failure("event not taken")
        _remember(self._sent, news.identity, (name, 1))

    def _document(self, news: _News, name: str, stamp: str) -> dict[str, object]:
        pod = news.pod
        regarding = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        }
        if news.container:
            regarding["fieldPath"] = "spec.containers{" + news.container + "}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": regarding,
            "type": news.kind,
            "reason": news.reason,
            "message": news.text,
            "source": {"component": "gigaslice-node", "host": self._node},
            "reportingComponent": "gigaslice.io/node",
            "reportingInstance": self._node,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }


def _cut(text: str) -> str:
    """TEXT in as many bytes as the API server takes."""
    return text.encode("utf-8", "replace")[:_MAX_TEXT].decode("utf-8", "ignore")
