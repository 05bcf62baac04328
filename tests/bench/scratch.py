# SPDX-License-Identifier: Apache-2.0
"""What measurements with files and mounts have in common: nothing is left on the machine, however they end.

Mounts are made in a mount namespace of the program's own, so they go with it, and loop devices go with their mounts.
Directories carry the program's number; what one that was killed has left is removed by the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import shutil
import signal
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from gigaslice.roles.dataset_node.mounts.linux import LinuxMounts

__all__ = ["load", "own_mounts", "percentile", "scratch", "spread"]

_PREFIX = "gs-bench-"
_NEW_MOUNTS, _PRIVATE = 0x00020000, 1 << 18 | 16384


@contextlib.contextmanager
def scratch(at: str | None = None) -> Iterator[Path]:
    """A directory, in AT where that is given. SIGTERM and SIGHUP end the program as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        parent = Path(at or tempfile.gettempdir())
        for left in parent.glob(f"{_PREFIX}*"):
            number = left.name.removeprefix(_PREFIX).partition("-")[0]
            if number.isdigit() and not Path("/proc", number).exists():
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=f"{_PREFIX}{os.getpid()}-") as made:
            yield Path(made)
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def own_mounts() -> str:
    """Gives this program mounts of its own. Returns why it cannot mount; empty where it can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None):
        return f"no mount namespace of its own: {os.strerror(ctypes.get_errno())}; mounting needs root"
    return "" if LinuxMounts().has_erofs else "the kernel has no EROFS"


def load() -> str:
    """How busy the machine is, for a line below a table."""
    return f"{os.cpu_count()} processors, {os.getloadavg()[0]:.1f} programs running in the mean of the last minute"


def percentile(found: Sequence[float], share: float) -> float:
    """The least of FOUND that so large a share of them is not above."""
    return sorted(found)[max(0, math.ceil(share * len(found)) - 1)]


def spread(found: Sequence[float], form: str = "{:.2f}") -> str:
    """Median and range, as two cells of a table."""
    each = sorted(found)
    return f"{form.format(statistics.median(each))} | {form.format(each[0])} to {form.format(each[-1])}"
