# SPDX-License-Identifier: Apache-2.0
"""The node's GPUs as they are now: one holder for all parts that read them.

The health controller replaces the inventory whenever a scan or an error has changed it. Every other part reads it from
here when it needs it, so that no part works with GPUs of an earlier scan, or watches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agent.inventory.source import Inventory

__all__ = ["GpusNow", "InventoryHolder"]


class GpusNow(Protocol):
    """Has an inventory that is never older than the last scan."""

    @property
    def now(self) -> Inventory:
        """The present inventory."""
        ...


class InventoryHolder:
    """Holds the present inventory. Replaced only by what follows the hardware."""

    def __init__(self, inventory: Inventory) -> None:
        self._now = inventory
        self._watchers: list[Callable[[], None]] = []

    @property
    def now(self) -> Inventory:
        """The present inventory."""
        return self._now

    def replace(self, inventory: Inventory) -> None:
        """Makes an inventory the present one; whoever watches is told where it differs."""
        differs = inventory != self._now
        self._now = inventory
        for changed in tuple(self._watchers) if differs else ():
            changed()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Has a function called after every change. Returns a function that ends this."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def gpu_bytes(self) -> dict[str, int]:
        """Returns the size of each GPU by UUID, with the host memory that is lent to it."""
        return {gpu.uuid: gpu.bytes_of(gpu.slices) for gpu in self._now.gpus}
