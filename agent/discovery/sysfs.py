"""NUMA nodes of PCI devices, and their CPUs, from sysfs. The root is an argument: a recorded tree serves as a test."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["SYSFS", "node_cpus", "numa_node"]

SYSFS = Path("/sys")
_BUS_ID = re.compile(r"(?P<domain>[0-9A-Fa-f]{4,8}):(?P<rest>[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")


def numa_node(bus_id: str, root: Path = SYSFS) -> int | None:
    """NUMA node of the device, or None where the machine has none, does not tell, or has no such device.

    BUS_ID may have the eight-digit domain that NVML prints ("00000000:3B:00.0"); sysfs has four digits, lower case.
    """
    match = _BUS_ID.fullmatch(bus_id)
    if not match:
        return None
    name = f"{int(match['domain'], 16):04x}:{match['rest'].lower()}"
    try:
        node = int((root / "bus/pci/devices" / name / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def node_cpus(node: int, root: Path = SYSFS) -> frozenset[int]:
    """CPUs of a NUMA node; none where the machine does not tell."""
    try:
        text = (root / f"devices/system/node/node{node}/cpulist").read_text(encoding="ascii").strip()
        found: set[int] = set()
        for run in filter(None, text.split(",")):
            first, _, last = run.partition("-")
            found.update(range(int(first), int(last or first) + 1))
        return frozenset(found)
    except (OSError, ValueError):
        return frozenset()
