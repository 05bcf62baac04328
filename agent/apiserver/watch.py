"""This node's pods, kept as the API server changes them: one list, then a watch, again after every end.

What goes wrong with watches: the server ends them (often, on purpose), forgets the version one was at (410), goes
silent without closing, refuses, or says what makes no sense. Each has its answer here; meanwhile the last known pods
stay, and `synced` says that they may be old. However a watch ends, the next one waits: at once after one that lived,
longer and longer after those that did not, and never sooner than the server has asked for (`Retry-After`).

Whatever the server sends, what is kept of it has a bound: of one answer (`gigaslice.kube.object_reader`), and of all
pods together. A pod for which there is no room counts as one that cannot be read.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Mapping
from types import MappingProxyType

from agent.apiserver.wire import Api
from gigaslice.kube.decode import (
    GONE,
    Change,
    Gone,
    change_reader,
    list_reader,
    list_state,
    parse_change,
    read_pod,
)
from gigaslice.kube.weight import WeighedDict, bytes_of
from gigaslice.kubeapi.failures import ApiFailure
from gigaslice.model import Pod
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.time_limit import set_within
from gigaslice.text import plain

__all__ = ["PodWatch"]

_PATH = "/api/v1/pods"
_WATCH_SECONDS = 300  # asked of the server; bookmarks come every minute
_IDLE_SECONDS = 330.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_LIVED_SECONDS = 10.0  # a watch of that length was one, and the next may follow at once
_OVERTIME = 60.0  # seconds that a watch may last beyond what was asked for
_PAGE = 250  # pods of one page of a list
_MAX_PAGES = 400
_MAX_PAGE_BYTES = (
    256 << 20
)  # of which next to nothing is kept; a server may send all pods of the node as one page
_LIST_SECONDS = 30.0  # for one page
_MAX_KEPT_BYTES = 6 << 20  # of all pods together: 110 take one MiB, with many annotations
_MAX_BARE_BYTES = 8 << 20  # with those of which only the names are kept
_REFUSED = (401, 403)
_REFUSALS = 3
"""In a row until a server that let us in before is believed: one that starts refuses every client for some seconds, and
what is allocated while we are refused is allocated without annotations."""


class PodWatch:
    """The pods of NODE at API.

    WATCH_SECONDS: how long one watch lasts. IDLE: silence that ends it. PAUSE: the first wait after a failure.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        watch_seconds: int = _WATCH_SECONDS,
        idle: float = _IDLE_SECONDS,
        pause: float = _FIRST_PAUSE,
    ) -> None:
        self.synced = False
        self.refused = False
        self.heard_at = -math.inf  # when the watch last brought anything, by the monotonic clock
        self._api = api
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        self._watch_seconds = watch_seconds
        self._idle = idle
        self._pause = pause
        self._lived = min(_LIVED_SECONDS, watch_seconds / 2)
        self._begun = math.inf  # when the watch was let in
        self._short = 0  # attempts in a row that came to nothing, however they ended
        self._failures = self._refusals = 0
        self._listed = False  # at any time
        self._version = ""  # what has been seen; empty: nothing that a watch could go on from
        self._pods = WeighedDict[tuple[str, str], Pod](bytes_of)
        self._news = asyncio.Event()
        self._reported = LogOnce()
        self._log = get_logger("kube")

    @property
    def pods(self) -> Mapping[tuple[str, str], Pod]:
        """By namespace and name."""
        return MappingProxyType(self._pods)

    async def news(self, timeout: float) -> bool:
        """Returns True at the next change, False when there is none in TIMEOUT seconds."""
        return await set_within(self._news, timeout)

    async def read(self) -> Mapping[tuple[str, str], Pod]:
        """Lists the pods as they are at this moment, past the watch. Raises ApiFailure, ValueError and Gone."""
        pods, _ = await self._pages({})
        return pods

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            wait = 0.0
            self._begun = math.inf
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Gone:
                self._version = ""
            except (ApiFailure, ValueError) as error:
                wait = error.retry_after if isinstance(error, ApiFailure) else 0.0
                if not isinstance(error, ApiFailure) or error.status:
                    self._version = ""  # anything but a connection that broke: start anew
                self._failed(error)
            await self._rest(time.monotonic() - self._begun, wait)

    async def _list(self) -> None:
        # "0": what the server has in memory, as the kubelet asks. Another server's may be older than what was seen, so
        # that is for the beginning alone: a pod must not turn into the one that had its name before.
        first = not self._listed and self._failures == 0
        self._pods, self._version = await self._pages({"resourceVersion": "0"} if first else {})
        self._listed = True
        self._changed()

    async def _pages(self, how: Mapping[str, str]) -> tuple[WeighedDict[tuple[str, str], Pod], str]:
        """Returns the pods of one list and its version."""
        query = {**self._query, "limit": str(_PAGE), **how}
        pods = WeighedDict[tuple[str, str], Pod](bytes_of)
        for _ in range(_MAX_PAGES):
            version, more = await self._page(query, pods)
            if not more:
                return pods, version
            query = {**self._query, "limit": str(_PAGE), "continue": more}
        raise ApiFailure(f"list of pods: more than {_MAX_PAGES} pages", 200)

    async def _page(
        self, query: Mapping[str, str], pods: WeighedDict[tuple[str, str], Pod]
    ) -> tuple[str, str]:
        """Adds the pods of one page to PODS; returns its version and what to ask for to continue."""
        reader = list_reader()
        async with self._api.stream("GET", _PATH, query, idle=_LIST_SECONDS, longest=_LIST_SECONDS) as answer:
            if answer.status == GONE:
                raise Gone  # between two pages
            if answer.status != 200:
                raise await answer.failure("list of pods")
            async for chunk in answer.chunks(_MAX_PAGE_BYTES):
                for document in await asyncio.to_thread(list, reader.feed(chunk)):
                    pod = read_pod(document)
                    if pod is not None:
                        self._keep(pods, pod)
            for _ in reader.end():
                pass
        return list_state(reader.envelope)

    async def _watch(self) -> None:
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_seconds),
            "resourceVersion": self._version,
        }
        longest = self._watch_seconds + _OVERTIME
        async with self._api.stream("GET", _PATH, query, idle=self._idle, longest=longest) as answer:
            if answer.status == GONE:
                raise Gone
            if answer.status != 200:
                raise ApiFailure(
                    f"watch of pods: {answer.status}", answer.status, retry_after=answer.retry_after
                )
            self._begun = time.monotonic()
            self._recovered()
            reader = change_reader()
            async for chunk in answer.chunks():
                self.heard_at = time.monotonic()
                for document in reader.feed(chunk):
                    self._follow(parse_change(document))

    def _follow(self, change: Change) -> None:
        self._version = change.version
        if change.pod is not None:
            self._apply(change.kind, change.pod)
        elif change.kind == "DELETED" and change.key is not None and change.key in self._pods:
            del self._pods[change.key]
            self._changed()

    def _keep(self, pods: WeighedDict[tuple[str, str], Pod], pod: Pod) -> Pod:
        """Puts POD into PODS; one that cannot be read stays as it was last: it has its GPUs until it is gone."""
        key = (pod.namespace, pod.name)
        if pod.readable and pods.weight_with(key, pod) <= _MAX_KEPT_BYTES:
            self._reported.over(str(pod))
            pods[key] = pod
            return pod
        if self._reported.new(str(pod)):
            detail = "there is no room for it" if pod.readable else ""
            self._log.warning("pod cannot be read", pod=plain(str(pod)), detail=detail)
        last = self._pods.get(key)
        bare = Pod(pod.namespace, pod.name, pod.uid, phase=pod.phase, node=pod.node, readable=False)
        if (
            last is None
            or last.uid != pod.uid
            or pod.terminal
            or pods.weight_with(key, last) > _MAX_KEPT_BYTES
        ):
            last = bare
        if pods.weight_with(key, last) > _MAX_BARE_BYTES:
            raise ApiFailure("the API server names more pods of this node than can be kept", 200)
        pods[key] = last
        return last

    def _apply(self, kind: str, pod: Pod) -> None:
        key = (pod.namespace, pod.name)
        previous = self._pods.get(key)
        if kind != "DELETED":
            pod = self._keep(self._pods, pod)
        elif previous is not None and previous.uid == pod.uid:
            self._reported.over(str(pod))
            del self._pods[key]
        if kind == "DELETED" or previous != pod:
            self._changed()

    def _changed(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _recovered(self) -> None:
        if not self.synced:
            self._log.info("pods watched", server=str(self._api.access), pods=len(self._pods))
        self.synced, self.refused = True, False
        self.heard_at = time.monotonic()
        self._reported.over("unreachable")
        self._failures = self._refusals = 0
        self._changed()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        denied = isinstance(error, ApiFailure) and error.status in _REFUSED
        self._refusals = self._refusals + 1 if denied else 0
        self.refused = self._refusals >= (_REFUSALS if self._listed else 1)
        if self._failures < 3 and not self.refused and self.synced:
            return  # servers restart
        self.synced = False
        if self._reported.new("unreachable", str(error)):
            self._log.warning("API server unreachable; using the last known pods", detail=str(error))

    async def _rest(self, lasted: float, wait: float) -> None:
        """Waits before the next attempt, after one that LASTED so many seconds; at least WAIT seconds."""
        self._short = 0 if lasted >= self._lived else self._short + 1
        longest = min(_LONGEST_PAUSE, self._pause * 2 ** min(self._short, 10)) if self._short else 0.0
        await asyncio.sleep(math.ceil(wait) + longest * random.uniform(0.5, 1.0))
