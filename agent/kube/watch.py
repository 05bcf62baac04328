"""This node's pods, kept as the API server changes them: one list, then a watch, again after every end.

What goes wrong with watches: the server ends them (often, on purpose), forgets the version one was at (410), goes
silent without closing, or refuses. Each has its answer here; meanwhile the last known pods stay, and `synced` says that
they may be old.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import MappingProxyType

from agent.kube.decode import GONE, Gone, parse_change, parse_list
from agent.kube.wire import Api, ApiError, within
from agent.model import Pod
from agent.telemetry.logs import get_logger

__all__ = ["PodWatch"]

_PATH = "/api/v1/pods"
_WATCH_SECONDS = 300  # asked of the server; bookmarks come every minute
_IDLE_SECONDS = 330.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_REFUSED = (401, 403)
_REFUSALS = 3
"""In a row until a server that let us in before is believed: one that starts refuses everybody for some seconds, and
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
        self._api = api
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        self._watch_seconds = watch_seconds
        self._idle = idle
        self._pause = pause
        self._failures = self._refusals = 0
        self._listed = False  # at any time
        self._version = ""  # what has been seen; empty: nothing that a watch could go on from
        self._pods: dict[tuple[str, str], Pod] = {}
        self._news = asyncio.Event()
        self._said = ""
        self._log = get_logger("kube")

    @property
    def pods(self) -> Mapping[tuple[str, str], Pod]:
        """By namespace and name."""
        return MappingProxyType(self._pods)

    async def news(self, timeout: float) -> bool:
        """Returns True at the next change, False when there is none in TIMEOUT seconds."""
        try:
            await within(self._news.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Gone:
                self._version = ""
                await self._rest()  # a server that forgets at once must not be asked in a circle
            except (ApiError, ValueError, KeyError, TypeError) as error:
                if not isinstance(error, ApiError) or error.status:
                    self._version = ""  # anything but a connection that broke: start anew
                self._failed(error)
                await self._rest()

    async def _list(self) -> None:
        # "0": what the server has in memory, as the kubelet asks. Another server's may be older than what was seen, so
        # that is for the beginning alone: a pod must not turn into the one that had its name before.
        first = not self._listed and self._failures == 0
        query = {**self._query, "resourceVersion": "0"} if first else dict(self._query)
        reply = await self._api.request("GET", _PATH, query)
        if reply.status != 200:
            raise ApiError(f"list of pods: {reply.status} {reply.reason()}", reply.status)
        found = await asyncio.to_thread(parse_list, reply.body)
        self._pods = {(pod.namespace, pod.name): pod for pod in found.pods}
        self._listed = True
        self._changed()
        self._version = found.version

    async def _watch(self) -> None:
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_seconds),
            "resourceVersion": self._version,
        }
        async with self._api.stream("GET", _PATH, query, idle=self._idle) as answer:
            if answer.status == GONE:
                raise Gone
            if answer.status != 200:
                raise ApiError(f"watch of pods: {answer.status}", answer.status)
            self._recovered()
            async for line in answer.lines():
                if not line.strip():
                    continue
                change = parse_change(line)
                self._version = change.version
                if change.pod is not None:
                    self._apply(change.kind, change.pod)

    def _apply(self, kind: str, pod: Pod) -> None:
        key = (pod.namespace, pod.name)
        known = self._pods.get(key)
        if kind != "DELETED":
            self._pods[key] = pod
        elif known is not None and known.uid == pod.uid:
            del self._pods[key]
        if kind == "DELETED" or known != pod:
            self._changed()

    def _changed(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _recovered(self) -> None:
        if not self.synced:
            self._log.info("pods watched", server=str(self._api.access), pods=len(self._pods))
        self.synced, self.refused, self._said = True, False, ""
        self._failures = self._refusals = 0
        self._changed()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        denied = isinstance(error, ApiError) and error.status in _REFUSED
        self._refusals = self._refusals + 1 if denied else 0
        self.refused = self._refusals >= (_REFUSALS if self._listed else 1)
        if self._failures < 3 and not self.refused and self.synced:
            return  # servers restart
        self.synced = False
        if str(error) != self._said:
            self._said = str(error)
            self._log.warning(
                "API server not reached; going on with the pods known so far", detail=self._said
            )

    async def _rest(self) -> None:
        longest = min(_LONGEST_PAUSE, self._pause * 2 ** min(self._failures, 10))
        await asyncio.sleep(longest * random.uniform(0.5, 1.0))
