# SPDX-License-Identifier: Apache-2.0
"""Events on the pods whose ledgers may count too much, because the node has no place where their locks last."""

from __future__ import annotations

from agent.apiserver import Cluster
from agent.apiserver.consumer_pods import ConsumerPods
from agent.persistence.store import Store

__all__ = ["LedgerEvents"]


class LedgerEvents:
    """Sends an event to each pod of CLUSTER that has an allocation in the table of STORE, once."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._pods = ConsumerPods(cluster)
        self._store = store
        self._told: frozenset[str] = frozenset()  # allocations

    def send(self) -> None:
        """Tells those that have not been told yet, as far as their pods are known."""
        reason = self._store.dirs.ledger_files.unsafe
        allocations = self._store.table.allocations
        told = {allocation.id for allocation in allocations if allocation.id in self._told}
        for allocation in allocations:
            if not reason or allocation.ended or allocation.id in told:
                continue
            text = f"if killed and restarted, the container may stay charged and get less memory: {reason}"
            if self._pods.event(allocation, "Warning", "LedgerMayOvercount", text):
                told.add(allocation.id)
        self._told = frozenset(told)
