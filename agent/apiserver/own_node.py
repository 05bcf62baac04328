# SPDX-License-Identifier: Apache-2.0
"""One annotation of this node's object, kept at the value that it was last set to.

The Node object belongs to the kubelet; the agent writes one annotation of it and never reads it. Each write wakes all
pods that wait for a node, so nothing is written unless the text has changed, and changes in quick succession become
one: a few may follow each other at once, then about one a second, and the last value wins. Now and then the same text
is written again, which changes nothing where it is still there, and puts it back where another client removed it.

Before the first write, and now and then, it is tried whether the agent's token is kept to annotations of ours; while
it is not, nothing is written, so that nobody works with a cluster in which every agent's token changes any node.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.apiserver.node_trial import REMEDY, UnboundedError, check_bounds
from gigaslice.kubeapi.client import MERGE_PATCH, ApiFailure, KubeClient, object_path
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.wakeup import Alarm

__all__ = ["NodeAnnotation", "Publishing"]

_BURST, _REFILL = 3.0, 1.0  # writes at once; seconds for another one
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_REFUSED_PAUSE = 60.0  # after an answer that the same request gets again: no right, no such node
_AGAIN = 600.0  # seconds until the same text is written again
_FOREVER = 3600.0
_REMEDIES = {
    401: "the agent's credentials are not accepted",
    403: "the agent may not patch its node; deploy/node-policy.yaml and the chart give it that right (Kubernetes 1.30)",
    404: "the cluster has no node of this name; see --node-name",
}


@dataclass(frozen=True, slots=True)
class Publishing:
    """How the writes of an annotation went.

    Attributes:
        writes: Those that the API server has accepted.
        failures: The others.
        written: When the last one was accepted, in Unix time; None before the first.
        outdated: Seconds for which another value has been due; 0 while the cluster has the present one.
        withheld: Whether nothing is written because the agent's token is not kept to annotations of ours.
    """

    writes: int
    failures: int
    written: float | None
    outdated: float
    withheld: bool = False


class NodeAnnotation:
    """The annotation KEY of NODE at CLIENT. PAUSE: the first wait after a failure; AGAIN: until the text is checked."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        key: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: float = _FIRST_PAUSE,
        again: float = _AGAIN,
    ) -> None:
        self._writes = self._failed_writes = 0
        self._accepted: float | None = None  # in Unix time
        self._outdated_since: float | None = None
        self._tried_at: float | None = None  # when the token was seen to be kept to annotations of ours
        self._withheld = False
        self._client = client
        self._node = node
        self._key = key
        self._clock = clock
        self._pause = pause
        self._again = again
        self._text: str | None = None
        self._written: str | None = None
        self._written_at = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._tokens, self._filled_at = _BURST, clock()
        self._alarm = Alarm()
        self._reported = LogOnce()
        self._log = get_logger("kube")

    def set(self, text: str) -> None:
        """Makes TEXT the value. Returns at once."""
        if text != self._text:
            self._text = text
            self._due()
            self._alarm.ring()

    @property
    def publishing(self) -> Publishing:
        """How it went until now."""
        since = self._outdated_since
        outdated = 0.0 if since is None else max(0.0, self._clock() - since)
        return Publishing(self._writes, self._failed_writes, self._accepted, outdated, self._withheld)

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            wait = self._wait()
            if wait > 0:
                await self._alarm.wait(wait)
                continue
            await self._write()

    def _wait(self) -> float:
        """Seconds until the next write is due; 0 when it is."""
        now = self._clock()
        if self._text is None:
            return _FOREVER
        due = self._not_before
        if self._text == self._written:
            due = max(due, self._written_at + self._again)
        self._tokens = min(_BURST, self._tokens + (now - self._filled_at) / _REFILL)
        self._filled_at = now
        return max(0.0, due - now, (1.0 - self._tokens) * _REFILL)

    async def _write(self) -> None:
        text = self._text
        self._tokens -= 1
        try:
            await self._try()
            body = {"metadata": {"annotations": {self._key: text}}}
            path = object_path("api", "v1", "nodes", self._node)
            await self._client.request("PATCH", path, body=body, content=MERGE_PATCH, patient=False)
        except ApiFailure as error:
            self._failed(error)
            return
        self._writes += 1
        self._accepted, self._outdated_since = time.time(), None
        if text != self._text:
            self._due()
        self._written, self._written_at, self._failures = text, self._clock(), 0
        if self._reported.over("failure"):
            self._log.info("node annotated again", node=self._node, annotation=self._key)

    async def _try(self) -> None:
        """Raises ApiFailure while the token is not known to be kept to annotations of ours."""
        if self._tried_at is None or self._clock() - self._tried_at >= self._again:
            self._tried_at = None
            await check_bounds(self._client, "nodes", self._node)
            self._tried_at, self._withheld = self._clock(), False

    def _due(self) -> None:
        if self._outdated_since is None:
            self._outdated_since = self._clock()

    def _failed(self, error: ApiFailure) -> None:
        self._failures += 1
        self._failed_writes += 1
        self._due()
        lasting = error.status in _REMEDIES or error.status in (400, 413, 422)
        pause = _REFUSED_PAUSE if lasting else min(_LONGEST_PAUSE, self._pause * 2 ** min(self._failures, 10))
        self._not_before = self._clock() + error.retry_after + pause * random.uniform(0.5, 1.0)
        self._written = None  # it may have been written, and the answer lost
        detail = _REMEDIES.get(error.status, "tried again")
        if isinstance(error, UnboundedError):
            self._withheld, detail = True, REMEDY
        if (lasting or self._failures >= 3) and self._reported.new(
            "failure", f"{error.status} {self._withheld}"
        ):
            # Without the right nothing is wrong where neither classes nor the scheduler are used.
            say = self._log.info if error.status == 403 else self._log.warning
            say(
                "node not annotated; the cluster's parts do not see this node's GPUs",
                node=self._node,
                annotation=self._key,
                detail=f"{error}; {detail}",
            )
