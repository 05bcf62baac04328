"""Devices, and what a container that has some of them gets. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Answer", "Device", "DeviceNode", "Mount"]


@dataclass(frozen=True, slots=True)
class Device:
    """One unit of the resource. id: stable across restarts. numa: the node it is near, None where that is unknown."""

    id: str
    healthy: bool = True
    numa: int | None = None


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
class Answer:
    """What one container gets. cdi: qualified names ("vendor.com/class=name") for the runtime."""

    env: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    cdi: tuple[str, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
