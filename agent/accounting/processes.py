# SPDX-License-Identifier: Apache-2.0
"""What /proc tells of a process: its name, its cgroup, and which allocation is mounted in its container.

A file that was removed from the host stays mounted; the kernel marks it in the text. All of it is readable without
privilege over the process. A process that ends meanwhile counts as absent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.kube.cgroups import Place, parse
from vcuda import contract

__all__ = ["PROC", "ProcessInfo", "read_process"]

PROC = Path("/proc")
_MOST = 1 << 20
_MOUNT = re.compile(
    rf"^\d+ \d+ \S+ \S*/allocations/([0-9a-f]{{32}})/{re.escape(contract.LIMITS_FILE)}(?://deleted)? "
    rf"{re.escape(contract.CONTAINER_LIMITS)} ",
    re.MULTILINE,
)
_INNER = re.compile(r"^NSpid:.*\t(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process.

    Attributes:
        pid: Its PID in the agent's namespace.
        name: Its name, printable.
        place: Its pod and container; None outside of pods.
        mounted: ID of the allocation that is mounted in its container, or empty.
        inner: Its PID in its own PID namespace; 0 when unknown.
    """

    pid: int
    name: str
    place: Place | None
    mounted: str
    inner: int = 0


def read_process(pid: int, root: Path = PROC) -> ProcessInfo | None:
    """Reads one process below ROOT; None when it does not exist."""
    directory = root / str(pid)
    name = _text(directory / "comm")
    if name is None:
        return None
    mounts = _MOUNT.findall(_text(directory / "mountinfo") or "")
    printable = "".join(letter if letter.isprintable() else "?" for letter in name.strip())[:15]
    inner = _INNER.search(_text(directory / "status") or "")
    return ProcessInfo(
        pid,
        printable,
        parse(_text(directory / "cgroup") or ""),
        mounts[-1] if mounts else "",
        int(inner[1]) if inner else 0,
    )


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return None
