# SPDX-License-Identifier: Apache-2.0
"""The allocation table after a start, from the checkpoint and the directories of the allocations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.persistence.codec import Codec
from gigaslice.core.allocation.table import Allocation, AllocationTable

__all__ = ["Recovery", "recover"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """The allocation table after a start. adopted: allocations that only a directory knew; strays: directories that say
    nothing.
    """

    table: AllocationTable
    adopted: tuple[Allocation, ...] = ()
    strays: tuple[str, ...] = ()


def recover(codec: Codec, table: AllocationTable, directories: Mapping[str, Allocation | None]) -> Recovery:
    """Adds to TABLE the allocations that only DIRECTORIES know: all of them after a lost checkpoint, else at most the
    last.

    An allocation that both know has the limits of the record that has seen more changes; the checkpoint may be an old
    one. How an allocation finds its place among the others is for the records of its API to say (CODEC).
    """
    table = table.replaced(
        replace(allocation, policy=record.policy, limits=record.limits, resizes=record.resizes)
        for allocation in table.allocations
        if (record := directories.get(allocation.id)) and record.resizes > allocation.resizes
    )
    unknown = {name: record for name, record in directories.items() if table.find(name) is None}
    orphans = [record for record in unknown.values() if record is not None]
    table = codec.recovered(table, orphans)
    orphan_ids = {orphan.id for orphan in orphans}
    return Recovery(
        table,
        tuple(allocation for allocation in table.allocations if allocation.id in orphan_ids),
        tuple(sorted(name for name, record in unknown.items() if record is None)),
    )
