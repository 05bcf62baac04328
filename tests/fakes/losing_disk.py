# SPDX-License-Identifier: Apache-2.0
"""A disk that loses a page of what was written, says so once, and works again: what the kernel does after an EIO."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["losing_sync"]


def losing_sync(real: Callable[[int], None], suffix: str, lost: list[Path]) -> Callable[[int], None]:
    """A sync that fails once, for a file whose name has SUFFIX, and leaves zeros where its bytes were.

    Args:
        real: os.fsync or os.fdatasync.
        suffix: Of the file's name.
        lost: Is given the path of the file that was hit.
    """

    def sync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if not lost and path.name.endswith(suffix):
            lost.append(path)
            with path.open("r+b", buffering=0) as file:
                file.write(bytes(path.stat().st_size))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    return sync
