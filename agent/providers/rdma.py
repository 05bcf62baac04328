# SPDX-License-Identifier: Apache-2.0
"""The provider of RDMA adapters: one device per adapter, or several where containers may share one.

Everything is read from sysfs: which adapters there are, their NUMA nodes, ports and device nodes. The container gets
the nodes for user verbs and for the connection manager, and no umad or issm, which manage the fabric.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.providers.container_edits import ContainerEdits, DeviceNode
from agent.providers.resource import Device, DevicePluginResource, RefusedError
from gigaslice.runtime.logs import get_logger

__all__ = ["Adapter", "Rdma", "scan"]

VARIABLE = "GIGASLICE_RDMA_DEVICES"
"""Names of the container's adapters, as in NCCL_IB_HCA."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter (HCA). nodes: paths below /dev. up: a port of it is active."""

    name: str
    nodes: tuple[str, ...]
    numa: int | None = None
    up: bool = True


def scan(root: Path) -> tuple[Adapter, ...]:
    """Returns the adapters below the root of sysfs, sorted by name; none where the kernel has no RDMA."""
    manager = _node(root / "class/misc/rdma_cm", "infiniband/rdma_cm")
    adapters = []
    for path in sorted(_entries(root / "class/infiniband")):
        verbs = [
            _node(entry, f"infiniband/{entry.name}")
            for entry in sorted(_entries(path / "device/infiniband_verbs"))
            if (_text(root / "class/infiniband_verbs" / entry.name / "ibdev") or path.name) == path.name
        ]
        states = [_text(port / "state") for port in _entries(path / "ports")]
        numa = _text(path / "device/numa_node")
        nodes = tuple(node for node in [*verbs, manager] if node)
        adapters.append(
            Adapter(
                path.name,
                nodes,
                int(numa) if re.fullmatch(r"\d+", numa) else None,
                bool(verbs) and any(re.match(r"4\b|ACTIVE", state) for state in states),
            )
        )
    return tuple(adapters)


class Rdma(DevicePluginResource):
    """Hands out RDMA adapters, each as several devices where containers may share it."""

    prefers = True

    def __init__(self, resource: str, sysfs: Path, share: int, interval: float) -> None:
        """Initializes the provider.

        Args:
            resource: What pods request.
            sysfs: Where sysfs is mounted.
            share: How many containers may share an adapter.
            interval: Seconds between scans.
        """
        self.resource = resource
        self._sysfs = sysfs
        self._share = share
        self._interval = interval
        self._adapters = {adapter.name: adapter for adapter in scan(sysfs)}
        self._log = get_logger("rdma")
        self._log.info(
            "RDMA adapters found", found=sorted(self._adapters), path=str(sysfs / "class/infiniband")
        )

    def devices(self) -> list[Device]:
        """Returns the shares of every adapter that has been seen."""
        return [
            Device(f"{adapter.name}/{number}", adapter.up, adapter.numa)
            for adapter in sorted(self._adapters.values(), key=lambda adapter: adapter.name)
            for number in range(self._share)
        ]

    def answer(self, devices: Sequence[str]) -> ContainerEdits:
        """Returns the device nodes of the adapters, each once, and their names in the environment."""
        names = sorted({_adapter_of(device) for device in devices})
        if unknown := [name for name in names if name not in self._adapters]:
            raise RefusedError(f"no RDMA adapter {', '.join(unknown)} on this node; delete the pod")
        nodes = dict.fromkeys(node for name in names for node in self._adapters[name].nodes)
        return ContainerEdits(
            env={VARIABLE: ",".join(names)}, nodes=tuple(DeviceNode(f"/dev/{node}") for node in nodes)
        )

    async def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Prefers different adapters on one NUMA node, those with the most shares left first."""
        chosen = list(dict.fromkeys(must_include))
        rest = sorted(set(available) - set(chosen))
        left: dict[str, int] = {}
        for device in rest:
            left[_adapter_of(device)] = left.get(_adapter_of(device), 0) + 1
        nodes = [self._numa(device) for device in chosen or rest]
        home = max(
            dict.fromkeys(nodes),
            key=lambda node: sum(self._numa(f"{name}/0") == node for name in left),
            default=None,
        )
        while rest and len(chosen) < size:
            taken = [_adapter_of(device) for device in chosen]
            best = min(
                rest,
                key=lambda device: (
                    taken.count(_adapter_of(device)),
                    self._numa(device) != home,
                    -left[_adapter_of(device)],
                    device,
                ),
            )
            chosen.append(best)
            rest.remove(best)
        return tuple(chosen[:size])

    async def watch(self, changed: Callable[[], None]) -> None:
        """Scans at intervals. An adapter that is gone stays, as one whose link is down."""
        while True:
            await asyncio.sleep(self._interval)
            self.update(
                changed, {adapter.name: adapter for adapter in await asyncio.to_thread(scan, self._sysfs)}
            )

    def update(self, changed: Callable[[], None], adapters: dict[str, Adapter]) -> None:
        """Makes the adapters that a scan found the present ones."""
        gone = {
            name: replace(adapter, up=False)
            for name, adapter in self._adapters.items()
            if name not in adapters
        }
        now = {**gone, **adapters}
        for name, adapter in now.items():
            before = self._adapters.get(name)
            if before is None or before.up != adapter.up:
                self._log.warning("RDMA adapter changed", adapter=name, up=adapter.up, new=before is None)
        if now != self._adapters:
            self._adapters = now
            changed()

    def _numa(self, device: str) -> int | None:
        adapter = self._adapters.get(_adapter_of(device))
        return adapter.numa if adapter else None


def _adapter_of(device: str) -> str:
    return device.rpartition("/")[0]


def _entries(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _node(entry: Path, otherwise: str) -> str:
    """Path below /dev of a class entry, as the kernel named it; empty where there is no such entry."""
    if not entry.exists():
        return ""
    name = re.search(r"^DEVNAME=(.+)$", _text(entry / "uevent"), re.MULTILINE)
    return name[1] if name else otherwise
