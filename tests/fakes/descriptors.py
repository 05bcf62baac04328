# SPDX-License-Identifier: Apache-2.0
"""What this process has open. Others' descriptors are not counted: garbage of earlier tests may be closed meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path


def open_below(directory: Path) -> list[str]:
    """The open files that lie in DIRECTORY, once for each descriptor."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.append(str(entry.readlink()))
    return sorted(one for one in found if one.startswith(f"{directory}/"))
