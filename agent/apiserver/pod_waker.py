# SPDX-License-Identifier: Apache-2.0
"""Has the kubelet look at a pod at once: a change of a pod's metadata does that, and nothing else an agent may do.

The right to change pods is a great one, so nothing is changed unless the API server was seen to keep this agent to one
annotation (`node_trial`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from agent.apiserver.node_trial import UnboundedError, check_bounds
from gigaslice.core.cluster.names import WAKE
from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import CONFLICT, MERGE_PATCH, NOT_FOUND, ApiFailure, KubeClient, object_path

__all__ = ["PodWaker"]

_SECONDS = 5.0  # for one answer: pods are woken in turns
_TRIED_SECONDS = 600.0
_REFUSED_SECONDS = 60.0
_REMEDY = "freed memory may lie idle for 90 seconds; deploy/claims.yaml and the chart (node.api=dra) help"


class PodWaker:
    """Wakes pods of this node."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: client: The API server. clock: Seconds that never go back."""
        self._client = client
        self._clock = clock
        self._trial = asyncio.Lock()  # several pods may be woken at a time
        self._tried_at: float | None = None  # when the agent was seen to be kept to its annotation
        self._refused = ("", 0.0)  # why not, and until when it is not tried again

    async def wake(self, pod: Pod) -> str:
        """Returns why the pod was not woken; an empty text where it was, or is gone."""
        problem, until = self._refused
        if self._clock() < until:
            return problem
        path = object_path("api", "v1", "namespaces", pod.namespace, "pods", pod.name)
        body = {
            "metadata": {"uid": pod.uid, "annotations": {WAKE: str(int(time.time() * 1000))}}
        }  # another pod of that name is a conflict
        try:
            async with self._trial:
                if self._tried_at is None or self._clock() - self._tried_at >= _TRIED_SECONDS:
                    self._tried_at = None
                    await check_bounds(self._client, "namespaces", pod.namespace, "pods", pod.name)
                    self._tried_at = self._clock()
            await self._client.request(
                "PATCH", path, body=body, content=MERGE_PATCH, seconds=_SECONDS, patient=False
            )
            self._refused = ("", 0.0)
        except UnboundedError as error:
            return self._refuse(f"{error}, so no pod is woken; {_REMEDY}")
        except ApiFailure as failure:
            if failure.status in (NOT_FOUND, CONFLICT):
                return ""
            if failure.status == 403:
                return self._refuse(f"the agent may not annotate pods: {failure}; {_REMEDY}")
            return f"pod {pod} not woken: {failure}"
        return ""

    @property
    def problem(self) -> str:
        """Why no pod can be woken; empty where nothing is known to be in the way."""
        return self._refused[0]

    def _refuse(self, problem: str) -> str:
        self._refused = problem, self._clock() + _REFUSED_SECONDS
        return problem
