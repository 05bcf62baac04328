# SPDX-License-Identifier: Apache-2.0
"""Events on the pods whose GPUs have become unhealthy or healthy again."""

from __future__ import annotations

from agent.apiserver import Cluster
from agent.apiserver.consumer_pods import ConsumerPods
from agent.persistence.store import Store

__all__ = ["GpuHealthEvents"]


class GpuHealthEvents:
    """Sends events to the pods of CLUSTER that hold slices by the allocation table of STORE."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._pods = ConsumerPods(cluster)
        self._store = store

    def send(self, uuid: str, healthy: bool, text: str) -> None:
        """Sends TEXT to every pod with slices of the GPU UUID."""
        kind, reason = ("Normal", "GPURecovered") if healthy else ("Warning", "GPUUnhealthy")
        for allocation in self._store.table.allocations:
            if not allocation.ended and uuid in allocation.quota():
                self._pods.event(allocation, kind, reason, text)
