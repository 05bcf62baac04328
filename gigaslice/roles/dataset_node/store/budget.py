# SPDX-License-Identifier: Apache-2.0
"""How many bytes the cache may have. Pure but for one question to the file system.

The kubelet evicts pods when less than 10 % of its file system is free, and deletes images from 85 % used on. A cache
that shares the file system must stay clear of both: 20 % are kept free unless the operator says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Budget", "DiskSpace", "disk_of"]

_KEEP_FREE = 0.2


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A file system: its size and what an unprivileged program could still write, in bytes."""

    size: int
    available: int


@dataclass(frozen=True, slots=True)
class Budget:
    """The cache's limits. capacity: bytes in all; None: no limit of its own. keep_free: share of the file system."""

    capacity: int | None = None
    keep_free: float = _KEEP_FREE

    def free(self, used: int, disk: DiskSpace) -> int:
        """The bytes that the cache may still take where it has USED so many. Negative: it has too many already."""
        below = disk.available - int(disk.size * self.keep_free)
        return below if self.capacity is None else min(below, self.capacity - used)


def disk_of(root: Path) -> Callable[[], DiskSpace]:
    """A function that asks the file system of a directory. It raises OSError."""

    def ask() -> DiskSpace:
        status = os.statvfs(root)
        return DiskSpace(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)

    return ask
