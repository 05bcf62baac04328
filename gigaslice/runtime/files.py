# SPDX-License-Identifier: Apache-2.0
"""Files in places where another user can put something else, and what to do about their errors.

Opening a named pipe waits for the other end, a directory or a device has its own surprises, reading one may never end,
and a lease of another process keeps an opener waiting, too. None of that may happen to a program that serves others. So
files are opened without waiting, and checked before they are read or written. A file that others read while it is
written is replaced in one step.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gigaslice.core.errors import GigasliceError, StorageError

__all__ = ["is_directory", "open_file", "os_errors_as", "read_file", "remedy", "replace_file"]

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_REMEDIES = {
    errno.ENOSPC: "make room on that file system",
    errno.EDQUOT: "raise the disk quota, or make room within it",
    errno.EROFS: "see dmesg, and mount it writable again",
    errno.EIO: "the disk fails; see dmesg",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EACCES: "run as root, or as the user who owns it",
    errno.EPERM: "run as root, or as the user who owns it; it may be immutable (lsattr)",
    errno.ENOTDIR: "a part of the path is no directory; move that away or choose another path",
    errno.ENOENT: "create it, or name another",
    errno.ELOOP: "symbolic links lead in a circle, or are not followed here; name the file itself",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the machine has too many open files",
    errno.EINVAL: "move it away",
}


def remedy(error: OSError) -> str:
    """What to do about ERROR, for the end of a sentence."""
    return _REMEDIES.get(error.errno or 0, "make room and check the permissions")


@contextlib.contextmanager
def os_errors_as(kind: type[GigasliceError], what: str) -> Iterator[None]:
    """Raises an error of KIND in place of an OSError; WHAT begins its text."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}; {remedy(error)}") from error


def is_directory(path: Path) -> bool:
    """Whether a directory is at PATH. Raises StorageError where that cannot be found out."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {error.strerror}; {remedy(error)}") from error


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """A descriptor of the regular file at PATH, opened without waiting. Raises OSError, EINVAL for anything else."""
    try:
        fd = os.open(path, flags | _FLAGS, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe without a reader, a socket, a device that is not there
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_regular(path)
    return fd


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The first MOST bytes of the regular file at PATH. Raises OSError."""
    with contextlib.closing(os.fdopen(open_file(path, os.O_RDONLY), "rb")) as file:
        return file.read(most)


def replace_file(
    path: Path, data: bytes, *, mode: int | None = None, sync: bool = False, suffix: str = "new"
) -> None:
    """Writes a file in one step: a reader finds the old content or the new, and so does one after a crash with SYNC.

    Args:
        path: The file. One writer at a time, or each with a SUFFIX of its own: the new file has a name beside it.
        data: The new content.
        mode: The permissions; None: what the process's umask leaves.
        sync: Whether the content is on the disk before the file gets its name.
        suffix: The end of the new file's name.

    Raises:
        OSError: The file is as it was, and the new one is removed.
    """
    fresh = path.with_name(f".{path.name}.{suffix}")
    try:
        fresh.unlink(missing_ok=True)  # whatever it is: nothing else has this name
        fd = open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(fd, "wb") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            file.write(data)
            file.flush()
            if sync:
                os.fsync(fd)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def _not_regular(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", os.fspath(path))
