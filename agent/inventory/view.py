# SPDX-License-Identifier: Apache-2.0
"""A part of the node's GPUs as an inventory of its own: those of one type, for all that allocates their slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agent.inventory.holder import GpusNow
from agent.inventory.source import Inventory
from gigaslice.core.model import Gpu

__all__ = ["InventoryView"]


class InventoryView:
    """Those GPUs of an inventory that a function accepts."""

    def __init__(self, gpus: GpusNow, accepts: Callable[[Gpu], bool]) -> None:
        self._gpus = gpus
        self._accepts = accepts
        self._seen: Inventory | None = None
        self._part: Inventory | None = None

    @property
    def now(self) -> Inventory:
        """The accepted GPUs of the present inventory, in their order."""
        inventory = self._gpus.now
        if self._part is None or inventory is not self._seen:
            rows = [number for number, gpu in enumerate(inventory.gpus) if self._accepts(gpu)]
            self._seen = inventory
            self._part = replace(
                inventory,
                gpus=tuple(inventory.gpus[row] for row in rows),
                topology=inventory.topology.reordered(rows),
            )
        return self._part
