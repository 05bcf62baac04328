# SPDX-License-Identifier: Apache-2.0
"""A source of GPUs whose GPUs have been lent host memory. Reads how much of it the host has; decides nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import vcuda
from agent.inventory.source import GpuEvent, Inventory, Source, Vitals
from gigaslice.core import units
from gigaslice.core.model import Lending, lend

__all__ = ["LendingSource", "host_memory_left"]


def host_memory_left() -> int | None:
    """Bytes that the host can give without swapping; None when it does not say."""
    try:
        return vcuda.memory_available()
    except vcuda.VcudaError:
        return None


class LendingSource:
    """SOURCE with what LENDING lends. A GPU keeps for good what it was lent when it was first seen."""

    def __init__(self, source: Source, lending: Lending) -> None:
        self._source = source
        self._lending = lending
        self._given: dict[str, int] = {}
        self._warnings: tuple[str, ...] | None = None

    def scan(self) -> Inventory:
        """Looks at the hardware again."""
        inventory = self._source.scan()
        gpus = lend(inventory.gpus, self._lending, self._given)
        self._given.update({gpu.uuid: gpu.host_bytes for gpu in gpus})
        if self._warnings is None:
            self._warnings = self._doubts(inventory)
        return replace(inventory, gpus=gpus, warnings=(*inventory.warnings, *self._warnings))

    def process_memory(self) -> Mapping[str, Mapping[int, int]] | None:
        """As the source has it."""
        return self._source.process_memory()

    def process_busy(self, gpu: str) -> Mapping[int, float] | None:
        """As the source has it."""
        return self._source.process_busy(gpu)

    def events(self, seconds: float) -> tuple[GpuEvent, ...] | None:
        """As the source has it."""
        return self._source.events(seconds)

    def vitals(self) -> Mapping[str, Vitals] | None:
        """As the source has it."""
        return self._source.vitals()

    def close(self) -> None:
        """Closes the source."""
        self._source.close()

    def _doubts(self, inventory: Inventory) -> tuple[str, ...]:
        """What is odd about the lending, at the first look: later the containers themselves use the host's memory."""
        doubts = [
            f"--host-memory names {uuid}, which is not on this node"
            for uuid in self._lending.by_gpu
            if uuid not in inventory.uuids
        ]
        lent, left = sum(self._given.values()), host_memory_left()
        if left is not None and lent > left:
            doubts.append(
                f"{units.format_bytes(lent)} of host memory are lent, and the host has {units.format_bytes(left)} "
                "left: containers will wait; lower --host-memory, and reserve it with the kubelet's systemReserved"
            )
        return tuple(doubts)
