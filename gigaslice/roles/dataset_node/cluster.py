# SPDX-License-Identifier: Apache-2.0
"""What the service asks of the API server: one pod at a time, and events on it. No watch: an idle service asks nothing.

Imported only where there is access: the HTTP client is a third of the service's memory.
"""

from __future__ import annotations

from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.kube.event import Regarding
from gigaslice.core.kube.reasons import EventReason
from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import ApiFailure, KubeClient, object_path
from gigaslice.kubeapi.events import EventRecorder
from gigaslice.roles.dataset_node.store import Volume
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["ClusterPods", "ClusterReporter"]

_POD_SECONDS = 2.0


class ClusterPods:
    """Reads pods through CLIENT."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._reported = LogOnce()
        self._log = get_logger("dataset")

    async def pod(self, volume: Volume) -> Pod | None:
        """The pod of a volume; None where there is none, or another one of its name, or no answer."""
        try:
            path = object_path("api", "v1", "namespaces", volume.namespace, "pods", volume.pod)
            answer = await self._client.request("GET", path, seconds=_POD_SECONDS)
            pod = parse_pod(answer.document())
        except (ApiFailure, ValueError) as error:
            if self._reported.new("pod", str(error)):
                self._log.warning("pod not read", pod=f"{volume.namespace}/{volume.pod}", detail=str(error))
            return None
        self._reported.over("pod")
        return pod if pod.uid == volume.pod_uid else None


class ClusterReporter:
    """Sends events on pods through EVENTS."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events

    def say(self, volume: Volume, reason: EventReason, text: str) -> None:
        """Notes an event."""
        regarding = Regarding("Pod", volume.namespace, volume.pod, volume.pod_uid)
        self._events.say(regarding, reason.kind, reason.name, text)
