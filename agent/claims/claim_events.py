# SPDX-License-Identifier: Apache-2.0
"""What the pods of a claim are told: what they got, what they wait for, and what cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.apiserver import Cluster
from gigaslice.core import units
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.model import Pod

__all__ = ["ClaimEvents"]


class ClaimEvents:
    """Sends events to the pods of claims."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def allocated(self, pods: Iterable[Pod], allocations: Sequence[Allocation]) -> None:
        """Sends what the containers of a claim have."""
        quotas = [
            f"{units.format_bytes(size)} of {gpu} for {_containers(allocation)}"
            for allocation in allocations
            for gpu, size in allocation.quota().items()
        ]
        self._tell(pods, "Normal", "GPUAllocated", ", ".join(quotas))

    def waiting(self, pods: Iterable[Pod], text: str, *, dataset: bool) -> None:
        """Sends what the start of the pods waits for."""
        if dataset:
            self._tell(pods, "Normal", "WaitingForDataset", text)
        else:
            self._tell(pods, "Warning", "WaitingForGPU", text)

    def impossible(self, pods: Iterable[Pod], text: str) -> None:
        """Sends why the claim cannot be had as it is used."""
        self._tell(pods, "Warning", "ClaimNotExecutable", text)

    def _tell(self, pods: Iterable[Pod], kind: str, reason: str, text: str) -> None:
        for pod in pods:
            self._cluster.event(pod, kind, reason, text)


def _containers(allocation: Allocation) -> str:
    containers = dict.fromkeys(consumer.ref.container for consumer in allocation.consumers)
    return f"container {' and '.join(containers)}" if containers else "the claim"
