"""Events on the pods whose ledgers may count too much, because the node has no place where their locks last."""

from __future__ import annotations

from agent.apiserver import Cluster
from agent.persistence.store import Store

__all__ = ["LedgerEvents"]


class LedgerEvents:
    """Sends an event to each pod of CLUSTER that has an allocation in the table of STORE, once."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store
        self._told: frozenset[str] = frozenset()  # allocations

    def send(self) -> None:
        """Tells those that have not been told yet, as far as their pods are known."""
        reason = self._store.dirs.ledger_files.unsafe
        table = self._store.table
        told = {one.id for one in table.allocations if one.id in self._told}
        for allocation in table.allocations:
            owner = allocation.ref
            if not reason or owner is None or allocation.gone or allocation.id in told:
                continue
            pod = self._cluster.pod(owner.namespace, owner.pod)
            if pod is not None:
                text = (
                    f"if killed and restarted, the container may stay charged and get less memory: {reason}"
                )
                self._cluster.event(pod, "Warning", "LedgerMayOvercount", text, owner.container)
                told.add(allocation.id)
        self._told = frozenset(told)
