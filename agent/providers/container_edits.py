# SPDX-License-Identifier: Apache-2.0
"""What the runtime adds to a container that was given devices, as a value of no API.

The four mounts of a container with a quota are put together here; what is behind them is made by
`agent.persistence.directories`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vcuda import contract

__all__ = ["ContainerEdits", "DeviceNode", "Mount", "gpu_edits", "quota_mounts"]

_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_CDI_KIND = "nvidia.com/gpu"
ALLOCATION_ANNOTATION = "gigaslice.io/allocation"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host in the container."""

    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of the host in the container, under the same path where container_path is empty."""

    host_path: str
    container_path: str = ""
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What one container gets. cdi: qualified names ("vendor.com/class=name") for the runtime."""

    env: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    cdi: tuple[str, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)


def gpu_edits(
    allocation_id: str, gpus: Iterable[str], visible_devices: str, mounts: tuple[Mount, ...] = ()
) -> ContainerEdits:
    """Returns the edits for a container with an allocation: the names of its GPUs, each once, and its mounts.

    Args:
        allocation_id: The allocation.
        gpus: UUIDs of its GPUs.
        visible_devices: How GPUs are named to the runtime, "env" or "cdi".
        mounts: The files of its quota; none for whole GPUs, which have no limits.
    """
    by_cdi = visible_devices == "cdi"
    return ContainerEdits(
        env={} if by_cdi else {_VISIBLE_DEVICES: ",".join(gpus)},
        mounts=mounts,
        cdi=tuple(f"{_CDI_KIND}={uuid}" for uuid in gpus) if by_cdi else (),
        annotations={ALLOCATION_ANNOTATION: allocation_id},
    )


def quota_mounts(directory: Path, library_dir: Path) -> tuple[Mount, ...]:
    """Returns the four mounts of a container with a quota.

    Args:
        directory: The allocation's directory on the host.
        library_dir: The directory of the libraries on the host.
    """
    return (
        Mount(contract.CONTAINER_PRELOAD, str(directory / contract.PRELOAD_FILE)),
        Mount(contract.CONTAINER_LIBRARY_DIR, str(library_dir)),
        Mount(contract.CONTAINER_LIMITS, str(directory / contract.LIMITS_FILE)),
        Mount(contract.CONTAINER_LEDGER, str(directory / contract.LEDGER_FILE), read_only=False),
    )
