"""Events on the pods whose GPUs have become unhealthy or healthy again."""

from __future__ import annotations

from agent.apiserver import Cluster
from agent.persistence.store import Store

__all__ = ["GpuHealthEvents"]


class GpuHealthEvents:
    """Sends events to the pods of CLUSTER that hold slices by the allocation table of STORE."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store

    def send(self, uuid: str, healthy: bool, text: str) -> None:
        """Sends TEXT to every pod with slices of the GPU UUID."""
        kind, reason = ("Normal", "GPURecovered") if healthy else ("Warning", "GPUUnhealthy")
        for allocation in self._store.table.allocations:
            owner = allocation.container
            if owner is None or allocation.gone or uuid not in allocation.quota():
                continue
            pod = self._cluster.pod(owner.namespace, owner.pod)
            if pod is not None:
                self._cluster.event(pod, kind, reason, text, owner.container)
