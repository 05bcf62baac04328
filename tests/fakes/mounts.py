# SPDX-License-Identifier: Apache-2.0
"""Mounts in memory: a table as the kernel would show it, and its refusals, for tests without being root."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from gigaslice.roles.dataset_node.mounts import MountEntry, MountError, top_at
from gigaslice.roles.dataset_node.mounts.linux import EMPTY_SOURCE

__all__ = ["MemoryMounts"]


class MemoryMounts:
    """Mount points must exist, as for the kernel. `refuse`: by method, what is raised instead."""

    def __init__(self, *, has_erofs: bool = True) -> None:
        self.has_erofs = has_erofs
        self.mounts: list[MountEntry] = []
        self.calls: list[tuple[str, str]] = []
        self.refuse: dict[str, MountError] = {}
        self.empties: dict[str, frozenset[str]] = {}  # directories of an empty file system, by its device
        self._next = 100

    def table(self) -> tuple[MountEntry, ...]:
        return tuple(self.mounts)

    def image(self, image: Path, where: Path) -> None:
        self._begin("image", where)
        if not image.is_file():
            raise MountError(f"cannot mount {image}", errno.ENOENT)
        self._add(f"0:{self._next}", "/", where, "erofs", str(image))

    def bind(self, source: Path, where: Path) -> None:
        self._begin("bind", where)
        if source.resolve() != source:
            raise MountError(f"cannot mount {source}: a part of the path is a symbolic link", errno.ELOOP)
        if not source.is_dir():
            raise MountError(f"cannot mount {source}", errno.ENOENT)
        below = top_at(self.mounts, str(source))
        if below is not None:
            self._add(below.device, below.root, where, below.filesystem, below.source)
        else:
            self._add("8:1", str(source), where, "ext4", "/dev/sda1")

    def empty(self, where: Path, directories: Sequence[str] = ()) -> None:
        self._begin("empty", where)
        self.empties[f"0:{self._next}"] = frozenset(directories)
        self._add(f"0:{self._next}", "/", where, "tmpfs", EMPTY_SOURCE)

    def unmount(self, where: Path) -> None:
        self.calls.append(("unmount", str(where)))
        if (refused := self.refuse.get("unmount")) is not None:
            raise refused
        for number in reversed(range(len(self.mounts))):
            if self.mounts[number].point == str(where):
                if any(one.point.startswith(f"{where}/") for one in self.mounts[number + 1 :]):
                    raise MountError(f"{where} is busy", errno.EBUSY)
                del self.mounts[number]
                return

    def network(self, kind: str, source: str, where: Path, options: Sequence[str]) -> None:
        self._begin("network", where)
        self._add(f"0:{self._next}", "/", where, kind, source)

    def at(self, where: str | Path) -> list[str]:
        """The sources of what is mounted at a path, the top one last."""
        return [one.source for one in self.mounts if one.point == str(where)]

    def reboot(self) -> None:
        self.mounts.clear()

    def _begin(self, call: str, where: Path) -> None:
        self.calls.append((call, str(where)))
        if (refused := self.refuse.get(call)) is not None:
            raise refused
        if not where.is_dir() and not self._is_in_empty(where):
            raise MountError(f"cannot mount at {where}", errno.ENOENT)

    def _is_in_empty(self, where: Path) -> bool:
        below = top_at(self.mounts, str(where.parent))
        return below is not None and where.name in self.empties.get(below.device, ())

    def _add(self, device: str, root: str, where: Path, filesystem: str, source: str) -> None:
        options = frozenset({"ro", "nosuid", "nodev"})
        self.mounts.append(MountEntry(self._next, device, root, str(where), options, filesystem, source))
        self._next += 1
