"""What /proc says of a process: its name, its cgroup, and which allocation is mounted into its container.

A file that was removed from the host stays mounted, and is marked in the text.
All of it is readable without privilege over the process. One that ends meanwhile is as if it had never been.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from agent.accounting.cgroups import Place, parse
from vcuda import contract

__all__ = ["PROC", "Sighting", "sight"]

PROC = Path("/proc")
_MOST = 1 << 20
_MOUNT = re.compile(
    rf"^\d+ \d+ \S+ \S*/allocations/([0-9a-f]{{32}})/{re.escape(contract.LIMITS_FILE)}(?://deleted)? "
    rf"{re.escape(contract.CONTAINER_LIMITS)} ",
    re.MULTILINE,
)
_INNER = re.compile(r"^NSpid:.*\t(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sighting:
    """One process. place: None outside of pods. mounted: id of the allocation that its mounts name, or empty.

    inner: its PID in its own PID namespace, 0 when that is not told.
    """

    pid: int
    name: str
    place: Place | None
    mounted: str
    inner: int = 0


def sight(pid: int, root: Path = PROC) -> Sighting | None:
    """Looks at one process; None when it is not there."""
    directory = root / str(pid)
    name = _text(directory / "comm")
    if name is None:
        return None
    mounts = _MOUNT.findall(_text(directory / "mountinfo") or "")
    printable = "".join(letter if letter.isprintable() else "?" for letter in name.strip())[:15]
    inner = _INNER.search(_text(directory / "status") or "")
    return Sighting(
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
