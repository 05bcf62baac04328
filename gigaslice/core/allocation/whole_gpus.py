# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs in the same allocation table as slices: which are free, and which a request gets. Pure.

A GPU that is given out whole is an allocation like any other, with one slice of the size of the GPU. So placement,
start decision, checkpoint and reconciliation count it without a rule of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.model import Gpu

__all__ = ["WholeGpuChoice", "choose", "free_gpus"]


@dataclass(frozen=True, slots=True)
class WholeGpuChoice:
    """The GPUs that serve a request, in the order of their indexes. waiting: some of them are not free yet."""

    gpus: tuple[Gpu, ...]
    waiting: bool


def free_gpus(table: AllocationTable, gpus: Sequence[Gpu]) -> frozenset[str]:
    """Returns the healthy GPUs of which no container has any slice."""
    used = {share.gpu for occupant in table.occupants(gpus) for share in occupant.shares}
    return frozenset(gpu.uuid for gpu in gpus if gpu.healthy and gpu.slices and gpu.uuid not in used)


def choose(
    table: AllocationTable,
    gpus: Sequence[Gpu],
    count: int,
    advised: Collection[str] = (),
    assigned: Collection[str] | None = None,
) -> WholeGpuChoice | None:
    """Chooses whole GPUs: those that were assigned, or the advised ones if they are free, else others that are.

    When too few are free, the container waits for the least used ones. None when there are not so many GPUs, and for
    none.
    """
    free = free_gpus(table, gpus)
    used = {
        share.gpu: share.slices + 1 for occupant in table.occupants(gpus) for share in occupant.shares
    }  # the +1: any holder counts
    nodes = {gpu.numa_node for gpu in gpus if gpu.uuid in advised}

    def rank(gpu: Gpu) -> tuple[object, ...]:
        return (
            gpu.uuid not in free,
            not gpu.healthy,
            gpu.uuid not in advised,
            gpu.numa_node not in nodes,
            used.get(gpu.uuid, 0),
            gpu.index,
        )

    if assigned is not None:
        chosen = [gpu for gpu in gpus if gpu.uuid in assigned]
    else:
        chosen = sorted((gpu for gpu in gpus if gpu.slices), key=rank)[:count]
        if not count or len(chosen) < count:
            return None
    chosen.sort(key=lambda gpu: gpu.index)
    return WholeGpuChoice(tuple(chosen), waiting=any(gpu.uuid not in free for gpu in chosen))
