# SPDX-License-Identifier: Apache-2.0
"""What the driver says of page faults and of the pages that they moved: counters of nvidia-uvm, where it shows them.

Loaded with uvm_enable_debug_procfs=1, nvidia-uvm has a file for each GPU that some process uses managed memory on.
Its numbers count since the first such process came, so they begin again when the last one goes. The
names of the numbers are the same in old drivers and new ones, those of directories are not; what is missing or makes no
sense is no counter. /proc/driver is the same in every container, so nothing has to be mounted for it.
The root is an argument. Tests: tests/unit/agent/inventory/test_page_faults.py.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PARAMETER", "ROOT", "Paging", "counters_are_on", "parse", "read"]

ROOT = Path("/proc/driver/nvidia-uvm/gpus")
PARAMETER = Path("/sys/module/nvidia_uvm/parameters/uvm_enable_debug_procfs")
_PREFIXES = ("UVM-", "")
"""Of a GPU's directory, before its UUID: in older drivers, and in newer ones."""
_LONGEST = 1 << 16
_NUMBER = re.compile(
    r"^\s*(replayable_faults|non_replayable_faults|num_pages_in|num_pages_out)\s+([0-9]{1,20})\b",
    re.MULTILINE,
)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Paging:
    """Since the driver began to count: page faults of a GPU, and bytes that came to it and left it because of them."""

    faults: int
    bytes_in: int
    bytes_out: int

    @property
    def moved(self) -> int:
        """Bytes in both directions."""
        return self.bytes_in + self.bytes_out


def parse(text: str, page: int) -> Paging | None:
    """The counters in TEXT, in which faults of both kinds have a part; PAGE: bytes of a page of the host. None: there
    are none.
    """
    sums: dict[str, int] = {}
    for name, number in _NUMBER.findall(text[:_LONGEST]):
        sums[name] = sums.get(name, 0) + int(number)
    if "num_pages_in" not in sums or "num_pages_out" not in sums:
        return None
    faults = sums.get("replayable_faults", 0) + sums.get("non_replayable_faults", 0)
    return Paging(faults, sums["num_pages_in"] * page, sums["num_pages_out"] * page)


def read(gpu: str, root: Path = ROOT) -> Paging | None:
    """The counters of the GPU with the UUID GPU, or None: the driver shows none, or no process uses managed memory."""
    if not _UUID.fullmatch(gpu):
        return None
    for prefix in _PREFIXES:
        try:
            with (root / f"{prefix}{gpu}" / "fault_stats").open(encoding="ascii", errors="replace") as file:
                return parse(file.read(_LONGEST), os.sysconf("SC_PAGE_SIZE"))
        except OSError:
            continue
    return None


def counters_are_on(parameter: Path = PARAMETER) -> bool | None:
    """Whether nvidia-uvm was told to show them; None: it is not loaded, or does not say."""
    try:
        return parameter.read_text(encoding="ascii", errors="replace").strip() not in ("0", "")
    except OSError:
        return None
