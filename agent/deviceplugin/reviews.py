# SPDX-License-Identifier: Apache-2.0
"""Carries out what a review of the kubelet's list has found, on the allocation table and its directories."""

from __future__ import annotations

from collections.abc import Sequence

from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.deviceplugin.reconcile import Review
from gigaslice.runtime.logs import get_logger

__all__ = ["carry_out", "record_names"]

_log = get_logger("state")


def carry_out(store: Store, review: Review) -> None:
    """Carries out a review: the allocation table first, then owners' names, missing directories and removals.

    Raises:
        StorageError: The allocation table cannot be written; then nothing has changed.
    """
    record_names(store, review.table, review.learned)
    for allocation in review.adopted:
        event = (
            "unrecorded container counted by its device IDs"
            if plugin(allocation).foreign
            else "unrecorded container restored"
        )
        _log.warning(event, container=allocation.name, allocation=allocation.id)
        store.recreate(allocation)
    store.release(store.table, review.released)


def record_names(store: Store, table: AllocationTable, named: Sequence[Allocation]) -> None:
    """Records a table in which some allocations have containers that were not known before. Raises StorageError."""
    store.update(table)
    for allocation in named:
        origin = plugin(allocation)
        if origin.container is None:
            continue
        if origin.owner is None or origin.owner.ref != origin.container:  # else its file says so already
            store.write_owner(allocation)
        _log.info("container identified", allocation=allocation.id, container=str(origin.container))
