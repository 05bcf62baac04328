"""Says on the pods concerned what has happened to their GPUs."""

from __future__ import annotations

from collections.abc import Callable

from agent.apiserver import Cluster
from agent.persistence.store import Store

__all__ = ["gpu_news"]


def gpu_news(cluster: Cluster, store: Store) -> Callable[[str, bool, str], None]:
    """A function that says a sentence about a GPU on every pod of CLUSTER that holds slices of it by STORE's allocation
    table.
    """

    def tell(uuid: str, well: bool, text: str) -> None:
        kind, reason = ("Normal", "GPURecovered") if well else ("Warning", "GPUUnhealthy")
        for allocation in store.table.allocations:
            owner = allocation.container
            if owner is None or allocation.gone or uuid not in allocation.quota():
                continue
            pod = cluster.pod(owner.namespace, owner.pod)
            if pod is not None:
                cluster.event(pod, kind, reason, text, owner.container)

    return tell
