# SPDX-License-Identifier: Apache-2.0
"""The driver's memory limits with the rules of both backends, for tests of what stands on `MemoryLimits`.

The rules are those of the driver's and the kernel's source, not seen on a card. Each that may be otherwise is a
parameter. Cgroups are ordinary directories. The simulated driver has the same rules behind the real NVML calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.limits.driver_limit_messages import GpuSupport
from gigaslice.roles.driver_limits.memory_limits import Limit, LimitCallError

__all__ = ["FakeMemoryLimits", "Killed"]

MAX = (1 << 64) - 1
GIB = 1 << 30


class Killed(BaseException):
    """The process ends here."""


@dataclass
class _Entry:
    hard: int
    used: int = 0


class FakeMemoryLimits:
    """Limits on the cgroups below ROOT.

    Args:
        root: The root of the cgroups.
        backend: misc, dmem, or none for a driver without the calls.
        gpus: Bytes by UUID.
        reuse: Whether a new cgroup gets the address of one that has gone, and with it its entry. Of misc.
        permission: Whether this process may set limits.
        before: Is called before each call with its name and path; may raise, or block.
    """

    def __init__(
        self,
        root: Path,
        backend: str,
        gpus: Mapping[str, int],
        *,
        reuse: bool = False,
        permission: bool = True,
        before: Callable[[str, str], None] = lambda name, path: None,
    ) -> None:
        self.root = root
        self.backend = backend
        self.totals = dict(gpus)
        self._reuses = reuse and backend == "misc"
        self.permission = permission
        self.before = before
        self.persistence: bool | None = True
        self.loaded = True
        """False: the driver was unloaded; an open session gets errors until it is opened anew."""
        self.renewed = 0
        self.calls: list[tuple[str, str]] = []
        self.silent = False
        self._stale = False
        self._open = False
        self._entries: dict[tuple[str, object], _Entry] = {}
        self._used: dict[tuple[str, object], int] = {}  # dmem: of each group by itself
        self._addresses: dict[tuple[str, int], int] = {}  # of a directory's path and inode
        self._numbers = itertools.count(1)

    # --- the interface ------------------------------------------------------------------------------------------

    def open(self) -> None:
        if not self._open:
            self.renew()

    def renew(self) -> None:
        self.before("renew", "")
        self.renewed += 1
        self.silent = False
        if not self.loaded:
            self._open = False
            raise LimitCallError("the NVIDIA driver cannot be reached (NVML: Driver Not Loaded)")
        self._open, self._stale = True, False

    def refusal(self) -> str:
        return "this driver has no nvmlDeviceSetMemoryLimits_v1" if self.backend == "none" else ""

    def version(self) -> str:
        return "615.10"

    def gpus(self) -> Mapping[str, GpuSupport]:
        return {gpu: GpuSupport(total, self.persistence) for gpu, total in self.totals.items()}

    def get(self, gpu: str, path: str) -> Limit | None:
        self._begin("get", gpu, path)
        if self.backend == "misc":
            entry = self._nearest(gpu, Path(path))
            return None if entry is None else Limit(None if entry.hard == MAX else entry.hard, entry.used)
        entry = self._entries.get((gpu, self._address(Path(path))))
        return None if entry is None else Limit(entry.hard, self._below(gpu, Path(path)))

    def set(self, gpu: str, path: str, hard: int) -> None:
        self._begin("set", gpu, path)
        if not self.permission:
            raise LimitCallError("Insufficient Permissions")
        if hard > self.totals[gpu] or Path(path) == self.root:
            raise LimitCallError("Invalid Argument")
        key = gpu, self._address(Path(path))
        if self.backend == "misc":
            entry = self._entries.setdefault(key, _Entry(MAX))
            if hard < entry.used:
                raise LimitCallError("Invalid Argument: below use")
            entry.hard = hard
        else:
            if not Path(path, "dmem.max").exists():
                raise LimitCallError("Not Found")
            if hard >= self._below(gpu, Path(path)):  # else it succeeds without effect
                self._entries[key] = _Entry(hard)

    # --- what programs do ---------------------------------------------------------------------------------------

    def allocate(self, gpu: str, path: Path, size: int) -> bool:
        """A process of the cgroup PATH allocates SIZE bytes, or frees as many as it is negative; whether it can."""
        if self.backend == "misc":
            entry = self._nearest(gpu, path, with_controller=True)
            if entry is None:
                return True  # and it is never counted
            if entry.used + size > entry.hard:
                return False
            entry.used += size
            return True
        if not Path(path, "dmem.max").exists():
            return True
        for group in (path, *path.parents):
            limit = self._entries.get((gpu, self._address(group))) if group.exists() else None
            if limit is not None and self._below(gpu, group) + size > limit.hard:
                return False
        key = gpu, self._address(path)
        self._used[key] = self._used.get(key, 0) + size
        return True

    def entry(self, gpu: str, path: Path) -> int | None:
        """The hard limit of a cgroup's own."""
        entry = self._entries.get((gpu, self._address(path)))
        return None if entry is None else entry.hard

    def put_by_hook(self, gpu: str, path: Path, hard: int) -> None:
        """Somebody else sets a limit, as the container toolkit's hook does."""
        self._entries[gpu, self._address(path)] = _Entry(hard)

    def reload(self) -> None:
        """The driver is loaded anew: all limits are gone, and what was open answers with errors."""
        self._entries.clear()
        self._used.clear()
        self._stale = True

    # --- its own -------------------------------------------------------------------------------------------------

    def _begin(self, name: str, gpu: str, path: str) -> None:
        self.before(name, path)
        self.calls.append((name, path))
        assert self._open, "a call before it was opened"
        self.silent = self._stale
        if self._stale:
            raise LimitCallError("Unknown Error")
        if gpu not in self.totals:
            raise LimitCallError(f"the driver does not show {gpu}")
        if not Path(path).is_dir():
            raise LimitCallError("The operating system has blocked the request.")

    def _nearest(self, gpu: str, path: Path, *, with_controller: bool = False) -> _Entry | None:
        for group in (path, *path.parents):
            if group == self.root or self.root not in group.parents:
                return None
            if with_controller and not (group / "misc.max").exists():
                continue
            entry = self._entries.get((gpu, self._address(group)))
            if entry is not None:
                return entry
        return None

    def _below(self, gpu: str, path: Path) -> int:
        groups = [path, *(each for each in path.rglob("*") if each.is_dir())]
        return sum(self._used.get((gpu, self._address(group)), 0) for group in groups)

    def _address(self, path: Path) -> int:
        """The address of a cgroup; with reuse that of a directory that has gone, if there is one."""
        key = str(path), path.stat().st_ino
        if key not in self._addresses:
            gone = [old for old in self._addresses if not _is_there(*old)] if self._reuses else []
            self._addresses[key] = self._addresses.pop(gone[0]) if gone else next(self._numbers)
        return self._addresses[key]


def _is_there(path: str, inode: int) -> bool:
    try:
        return Path(path).stat().st_ino == inode
    except FileNotFoundError:
        return False
