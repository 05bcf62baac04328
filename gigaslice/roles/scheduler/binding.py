# SPDX-License-Identifier: Apache-2.0
"""Writes bindings: one request per pod, which carries the node, the GPUs and the pod's UID.

A pod has one binding at a time, however often kube-scheduler sends it (1.20 sends a second one while the first runs):
the second waits for the first and gets its answer. What an answer means for the GPUs:

    201                        written; they are kept until the watch shows the pod
    400, 403, 404, 422, 429    not written; they are released
    409                        another binding, an earlier one of ours, or the pod has changed: the pod itself says
                               which, and a changed one is bound as it is now
    500, 503, no answer        may have been written, even later: the pod says so if it was, else they are kept, and
                               only the same binding is tried again (docs/adr/0065)
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT, GROUP
from gigaslice.core.cluster.refusal import Refusal
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import CONFLICT, NOT_FOUND, TOO_MANY, ApiFailure, KubeClient, object_path
from gigaslice.roles.scheduler.placer import Placer
from gigaslice.roles.scheduler.protocol import BindRequest
from gigaslice.runtime.logs import get_logger

__all__ = ["Binder"]

_READ_SECONDS = 2.0
_NOT_WRITTEN = (400, 403, 404, 422)
_MOST_VERSIONS = 4  # of a pod that others keep changing
_CHANGES = "the pod changes again and again; it is tried again"
_NOT_LEADING = "this replica does not decide any more; the pod is tried again"
_PREFIX = f"{GROUP}/"
_UNKNOWN_POD = "the pod is not known yet; it is tried again"


class Binder:
    """Writes the bindings of one service.

    Args:
        client: The API server.
        placer: Decides.
        seconds: How long a binding may take.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        client: KubeClient,
        placer: Placer,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        """How many bindings ended how: bound, refused, failed, doubtful."""
        self.lead_seconds: Callable[[], float] | None = None
        """For how long bindings may be written, as another replica may begin to after that; None: there is no other."""
        self._client = client
        self._placer = placer
        self._seconds = seconds
        self._clock = clock
        self._running: dict[str, tuple[str, asyncio.Task[str]]] = {}
        self._log = get_logger("scheduler")

    @property
    def busy(self) -> bool:
        """Whether bindings are being written."""
        return bool(self._running)

    async def bind(self, request: BindRequest) -> str:
        """Binds a pod; returns why it could not, empty where it is bound."""
        running = self._running.get(request.uid)
        if running is not None:
            node, task = running
            error = await asyncio.shield(task)
            if node == request.node or not error:
                return error if node == request.node else f"the pod is bound to node {node}"
        return await asyncio.shield(self._start(request))

    def _start(self, request: BindRequest) -> asyncio.Task[str]:
        """The binding goes on when its caller does not wait any more: kube-scheduler's patience is shorter."""
        running = self._running.get(request.uid)
        if running is not None:  # begun by another call that waited for the same one
            return running[1]
        task = asyncio.create_task(self._bind(request), name=f"bind {request.namespace}/{request.name}")
        self._running[request.uid] = (request.node, task)
        task.add_done_callback(lambda _: self._running.pop(request.uid, None))
        return task

    async def settle(self, seconds: float) -> None:
        """Waits for the bindings that are being written."""
        tasks = [task for _, task in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _bind(self, request: BindRequest) -> str:
        pod = self._placer.pod(request.uid)
        if pod is None:
            self.outcomes["refused"] += 1
            return _UNKNOWN_POD
        if pod.node:
            return "" if pod.node == request.node else f"the pod is bound to node {pod.node}"
        attempt = self._placer.attempts.get(request.uid)
        if attempt is not None and attempt.state.value == "bound":
            return "" if attempt.node == request.node else f"the pod is bound to node {attempt.node}"
        try:
            return await self._write(request, pod)
        except BaseException:
            self._placer.doubtful(pod, self._clock())
            raise

    async def _write(self, request: BindRequest, pod: Pod) -> str:
        path = object_path("api", "v1", "namespaces", request.namespace, "pods", request.name)
        outcome: str | Pod = pod
        for _ in range(_MOST_VERSIONS):
            if isinstance(outcome, str):
                break
            # Decided for each version: another replica may have decided between two of them.
            chosen = self._placer.begin_binding(outcome, request.node, self._clock())
            if isinstance(chosen, Refusal):
                self.outcomes["refused"] += 1
                return chosen.text
            outcome = await self._write_once(path, request, outcome, chosen)
        return outcome if isinstance(outcome, str) else self._failed(pod, ApiFailure(_CHANGES))

    async def _write_once(self, path: str, request: BindRequest, pod: Pod, chosen: Assignment) -> str | Pod:
        """Returns the pod where it is not what it was, and can be bound as it is now."""
        metadata: dict[str, Any] = {"name": request.name, "namespace": request.namespace, "uid": request.uid}
        if pod.version and self.lead_seconds is not None:
            # A replica that takes over changes the pod, and this binding cannot be written any more: election.py.
            metadata["resourceVersion"] = pod.version
        if text := _text(chosen):
            metadata["annotations"] = {ASSIGNMENT: text}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": request.node},
        }
        seconds = self._seconds if self.lead_seconds is None else min(self._seconds, self.lead_seconds())
        if seconds <= 0:
            return self._failed(pod, ApiFailure(_NOT_LEADING, sent=False))
        try:
            await self._client.request("POST", f"{path}/binding", body=body, seconds=seconds, once=True)
        except ApiFailure as failure:
            return await self._after(failure, path, request, pod, chosen)
        self._placer.bound(pod, self._clock())
        self.outcomes["bound"] += 1
        return ""

    async def _after(
        self, failure: ApiFailure, path: str, request: BindRequest, pod: Pod, chosen: Assignment
    ) -> str | Pod:
        """What the failure of a binding means for the pod's GPUs; the pod as it is now, where it has only changed."""
        if failure.status in _NOT_WRITTEN or not failure.sent:
            return self._failed(pod, failure)
        if failure.status not in (CONFLICT, TOO_MANY):
            self._log.warning("binding without a clear answer", pod=str(pod), detail=str(failure))
        try:
            now_bound = parse_pod((await self._client.request("GET", path, seconds=_READ_SECONDS)).document())
        except ApiFailure as unread:
            if unread.status == NOT_FOUND:
                return self._failed(pod, failure)
            now_bound = None
        except ValueError:
            now_bound = None
        if now_bound is None:
            return self._doubtful(pod, failure)
        if now_bound.uid != request.uid:
            return self._failed(pod, failure)
        if not now_bound.node and failure.status == CONFLICT:
            # An answer: not written. The pod has changed since, or it is gated or being deleted.
            if (
                self.lead_seconds is not None
                and now_bound.version != pod.version
                and _ours(now_bound) == _ours(pod)
            ):
                return now_bound
            return self._failed(pod, failure)
        if not now_bound.node and failure.status == TOO_MANY:
            # The API server writes nothing then. What stands before it may refuse an answer, and that was read above.
            return self._failed(pod, failure)
        if not now_bound.node:  # it may still be written
            return self._doubtful(pod, failure)
        self._placer.put_pod(now_bound, self._clock())
        if now_bound.node == request.node and now_bound.annotations.get(ASSIGNMENT, "") == _text(chosen):
            self.outcomes["bound"] += 1
            return ""
        self.outcomes["failed"] += 1
        return f"the pod is bound to node {now_bound.node} already"

    def _failed(self, pod: Pod, failure: ApiFailure) -> str:
        self._placer.failed(pod, self._clock())
        self.outcomes["failed"] += 1
        return str(failure)

    def _doubtful(self, pod: Pod, failure: ApiFailure) -> str:
        self._placer.doubtful(pod, self._clock())
        self.outcomes["doubtful"] += 1
        return str(failure)


def _ours(pod: Pod) -> dict[str, str]:
    return {key: value for key, value in pod.annotations.items() if key.startswith(_PREFIX)}


def _text(chosen: Assignment) -> str:
    return chosen.encode() if chosen.containers else ""
