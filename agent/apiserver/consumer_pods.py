# SPDX-License-Identifier: Apache-2.0
"""The pods of the containers that use an allocation, as the API server shows them, and events on them."""

from __future__ import annotations

from collections.abc import Iterator

from agent.apiserver.cluster import Cluster
from gigaslice.core.allocation.consumer import Consumer
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.model import Pod

__all__ = ["ConsumerPods"]


class ConsumerPods:
    """Finds the pods of consumers. Without access to the API server there are none, and nothing is sent."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def of(self, allocation: Allocation) -> Iterator[tuple[Consumer, Pod]]:
        """Yields each consumer with its pod, as far as it is known. A pod of the same name with another UID is not."""
        for consumer in allocation.consumers:
            pod = self._cluster.pod(consumer.ref.namespace, consumer.ref.pod)
            if pod is not None and (consumer.may_be_of(pod) or pod.mirror):
                yield consumer, pod

    def event(self, allocation: Allocation, kind: str, reason: str, text: str) -> bool:
        """Sends an event to every consumer's pod. Returns whether there was one."""
        sent = False
        for consumer, pod in self.of(allocation):
            self._cluster.event(pod, kind, reason, text, consumer.ref.container)
            sent = True
        return sent
