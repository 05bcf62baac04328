# SPDX-License-Identifier: Apache-2.0
"""What of each GPU can be given out now, for whatever publishes it: a list of devices, an annotation, a slice. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.model import Gpu

__all__ = ["GpuAvailability", "availability"]


@dataclass(frozen=True, slots=True)
class GpuAvailability:
    """What is left of one GPU.

    Attributes:
        gpu: The GPU, with its health.
        free_slices: Slices of it that no allocation counts for.
        whole: It is given out as a whole.
    """

    gpu: Gpu
    free_slices: int
    whole: bool


def availability(table: AllocationTable, gpus: Sequence[Gpu]) -> tuple[GpuAvailability, ...]:
    """Returns what is left of each GPU, whatever API has given the rest out."""
    taken: dict[str, int] = {}
    for occupant in table.occupants(gpus):
        for share in occupant.shares:
            taken[share.gpu] = taken.get(share.gpu, 0) + share.slices
    whole = {share.gpu for allocation in table.allocations if allocation.whole for share in allocation.shares}
    return tuple(
        GpuAvailability(gpu, max(0, gpu.slices - taken.get(gpu.uuid, 0)), gpu.uuid in whole) for gpu in gpus
    )
