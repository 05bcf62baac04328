# SPDX-License-Identifier: Apache-2.0
"""One agent per resource and state directory: a lock file that the kernel frees when its holder dies.

The file holds the holder's process number for people to read; only the lock itself counts, so a file left by a
killed agent is no obstacle.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

from gigaslice.core.errors import LockedError, MissingError, StorageError

__all__ = ["LockFile"]

# As gigaslice.runtime.files opens files, which a front cannot load: it brings the library's bindings with it.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

process: int | None = None
"""Whom people should stop to have a lock, where that is not this process itself."""


class LockFile:
    """An exclusive lock on the file at PATH, which guards WHAT (words for the message)."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._fd: int | None = None

    def acquire(self) -> None:
        """Takes the lock or raises LockedError at once, naming the holder.

        MissingError without permission for the file, StorageError where it cannot be made.
        """
        try:
            fd = _opened(self._path)
        except PermissionError as error:
            raise MissingError(
                f"no permission to write {self._path}; run as the user who owns it, or root"
            ) from error
        except OSError as error:
            raise StorageError(
                f"cannot open the lock file {self._path}: {error.strerror}; "
                "the directory must be writable, with room for a file, and nothing else at that name"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise LockedError(f"{self._what} is served by {who} already; stop that one first") from error
        self.adopt(fd)

    def adopt(self, fd: int) -> None:
        """Goes on with FD, which is open on the file and holds the lock: it may come from another process."""
        self._fd = fd
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            os.fchmod(fd, 0o600)  # whatever the umask is: the front takes its lock before the agent begins
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{process or os.getpid()}\n".encode("ascii"), 0)

    @property
    def descriptor(self) -> int | None:
        """What holds the lock, while it is held."""
        return self._fd

    def release(self) -> None:
        """Gives the lock back. The file stays: removing it would let two holders lock two files of one name."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _opened(path: Path) -> int:
    fd = os.open(path, _FLAGS, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return fd
