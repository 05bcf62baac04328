"""The node's GPUs as they are now: one holder for all parts that read them.

The health controller replaces the inventory whenever a scan or an error has changed it. Every other part reads it from
here when it needs it, so that no part works with GPUs of an earlier scan.
"""

from __future__ import annotations

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
    """Holds the present inventory.

    Attributes:
        now: The present inventory. Written only by what follows the hardware.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.now = inventory

    def gpu_bytes(self) -> dict[str, int]:
        """Returns the size of each GPU by UUID, with the host memory that is lent to it."""
        return {gpu.uuid: gpu.bytes_of(gpu.slices) for gpu in self.now.gpus}
