"""Opening files in directories where somebody may have put something else under their names.

Opening a named pipe waits for the other end, a directory or a device has its own surprises, reading one may never end,
and a lease of another process keeps an opener waiting, too. None of that may happen to a program that looks after
others. So files are opened without waiting, and looked at before they are read or written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

__all__ = ["open_regular", "read_regular"]

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_regular(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """A descriptor of the regular file at PATH, opened without waiting. Raises OSError, EINVAL for anything else."""
    try:
        fd = os.open(path, flags | _FLAGS, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, a socket, a device that is not there
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_regular(path)
    return fd


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The first MOST bytes of the regular file at PATH. Raises OSError."""
    with contextlib.closing(os.fdopen(open_regular(path, os.O_RDONLY), "rb")) as file:
        return file.read(most)


def _not_regular(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", os.fspath(path))
