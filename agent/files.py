"""Files that others can put something else in the place of, and what to do about their errors.

Opening them, without waiting and for regular files alone, is that of `vcuda.files`.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from agent.errors import StorageError
from vcuda.files import open_regular as open_file
from vcuda.files import read_regular as read_file

__all__ = ["is_directory", "open_file", "read_file", "remedy"]

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


def is_directory(path: Path) -> bool:
    """Whether a directory is at PATH. Raises StorageError where nobody can tell."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {error.strerror}; {remedy(error)}") from error
