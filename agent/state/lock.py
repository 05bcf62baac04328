"""One agent per resource and state directory: a lock file that the kernel frees when its holder dies.

The file holds the holder's process number for people to read; only the lock itself counts, so a file left by a
killed agent is no obstacle.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from agent.errors import LockedError, MissingError, StorageError

__all__ = ["LockFile"]


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
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except PermissionError as error:
            raise MissingError(
                f"no permission to write {self._path}; run as the user who owns it, or root"
            ) from error
        except OSError as error:
            raise StorageError(
                f"cannot open the lock file {self._path}: {error.strerror}; the directory must be writable"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise LockedError(f"{self._what} is served by {who} already; stop that one first") from error
        self._fd = fd
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Gives the lock back. The file stays: removing it would let two holders lock two files of one name."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
