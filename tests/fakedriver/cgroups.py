# SPDX-License-Identifier: Apache-2.0
"""A tree of cgroup v2 directories for the simulated driver's memory limits: ordinary directories with the files that
the driver looks for. What the kernel would keep up to date is not simulated, except `dmem.current`, which the driver
writes."""

from __future__ import annotations

from pathlib import Path

MAX = 0xFFFFFFFFFFFFFFFF  # NVML_DEVICE_MEMORY_LIMIT_MAX
GROUP_FILES = {"misc": ("misc.max", "misc.current"), "dmem": ("dmem.max", "dmem.min", "dmem.current")}


def make_root(path: Path, backend: str = "misc", regions: dict[str, int] | None = None) -> Path:
    """The root of the tree; REGIONS: the capacity of each dmem region by name, such as
    nvidia/0000:3b:00.0/vidmem."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(f"cpuset cpu memory pids {backend}\n")
    capacity = "".join(f"{name} {size}\n" for name, size in (regions or {}).items())
    (path / f"{backend}.capacity").write_text(capacity)
    return path


def make_group(path: Path, backend: str = "misc", controller: bool = True) -> Path:
    """A group, whose parent exists. CONTROLLER: whether the parent's subtree_control names the backend's."""
    path.mkdir()
    if controller:
        enable_controller(path, backend)
    return path


def enable_controller(path: Path, backend: str = "misc") -> None:
    """What writing the controller's name into the parent's cgroup.subtree_control does."""
    for name in GROUP_FILES[backend]:
        (path / name).touch()


def region_of(pci: str) -> str:
    """The dmem region of a GPU, by its PCI address as NVML writes it (00000000:3B:00.0)."""
    domain, bus, device = pci.lower().split(":")
    return f"nvidia/{domain[-4:]}:{bus}:{device}/vidmem"
