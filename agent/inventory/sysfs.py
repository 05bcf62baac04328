# SPDX-License-Identifier: Apache-2.0
"""PCI devices, their NUMA nodes and CPUs, from sysfs. The root is an argument: a recorded tree serves as a test."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["SYSFS", "driver_loaded", "node_cpus", "numa_node", "nvidia_gpus", "pcie_root"]

SYSFS = Path("/sys")
_NVIDIA = "0x10de"
_GPUS = ("0x0300", "0x0302")  # PCI classes: a display controller, and one without a display
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_BUS_ID = re.compile(r"(?P<domain>[0-9A-Fa-f]{4,8}):(?P<rest>[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")


def numa_node(bus_id: str, root: Path = SYSFS) -> int | None:
    """NUMA node of the device, or None where the machine has none, does not tell, or has no such device.

    BUS_ID may have the eight-digit domain that NVML prints ("00000000:3B:00.0"); sysfs has four digits, lower case.
    """
    device = _device(bus_id, root)
    if device is None:
        return None
    try:
        node = int((device / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def pcie_root(bus_id: str, root: Path = SYSFS) -> str:
    """The root complex that the device is below, such as "pci0000:17"; empty where the machine does not tell.

    Devices below the same one reach each other without the way between processors.
    """
    device = _device(bus_id, root)
    if device is None:
        return ""
    try:
        parents = device.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ""
    return next((part for part in parents if _ROOT.fullmatch(part)), "")


def node_cpus(node: int, root: Path = SYSFS) -> frozenset[int]:
    """CPUs of a NUMA node; none where the machine does not tell."""
    try:
        text = (root / f"devices/system/node/node{node}/cpulist").read_text(encoding="ascii").strip()
        cpus: set[int] = set()
        for run in filter(None, text.split(",")):
            first, _, last = run.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
        return frozenset(cpus)
    except (OSError, ValueError):
        return frozenset()


def nvidia_gpus(root: Path = SYSFS) -> tuple[str, ...]:
    """Bus ids of NVIDIA's GPUs on the PCI bus, whether a driver knows them or not. Works without privilege."""
    devices = root / "bus/pci/devices"
    try:
        names = sorted(path.name for path in devices.iterdir())
    except OSError:
        return ()
    return tuple(
        name
        for name in names
        if _line(devices / name / "vendor") == _NVIDIA and _line(devices / name / "class")[:6] in _GPUS
    )


def driver_loaded(root: Path = SYSFS) -> bool:
    """Whether the kernel has NVIDIA's module. A container sees that too, where it does not see the driver's files."""
    return (root / "module/nvidia").is_dir()


def _device(bus_id: str, root: Path) -> Path | None:
    match = _BUS_ID.fullmatch(bus_id)
    if not match:
        return None
    return root / "bus/pci/devices" / f"{int(match['domain'], 16):04x}:{match['rest'].lower()}"


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip().lower()
    except (OSError, ValueError):
        return ""
