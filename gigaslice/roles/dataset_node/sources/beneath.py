# SPDX-License-Identifier: Apache-2.0
"""Opens files below a directory, and nothing else, even while others change that directory.

A check of a path before it is opened proves nothing: between the two, a segment may become a symbolic link to anywhere.
So the kernel resolves the whole path under rules, by openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, or, where
a kernel or a seccomp profile has no openat2, segment by segment with O_NOFOLLOW. Links are never followed at all: a
listing has them as links.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

__all__ = ["HOW", "NO_OPENAT2", "open_beneath", "open_by_segments", "openat2_missing"]

_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08
_HOW = struct.Struct("=QQQ")
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_AGAIN = 8

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
HOW = _HOW.pack(_FLAGS, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
"""The struct open_how by which a file is opened."""
NO_OPENAT2 = frozenset((errno.ENOSYS, errno.EPERM, errno.E2BIG))
"""What openat2 says where it cannot be used; EPERM has other causes, too."""
_how_directory = _HOW.pack(
    _FLAGS | os.O_DIRECTORY, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
)
_missing = False


def openat2_missing() -> bool:
    """Whether it was found out that the kernel has no openat2."""
    return _missing


def open_beneath(root: int, path: bytes, *, directory: bool = False) -> int:
    """Opens PATH, relative to the open directory ROOT, for reading; no segment of it may be a symbolic link.

    A pipe or device is opened without waiting for it, and reading from it is the caller's to refuse (`fstat`).

    Returns:
        The file descriptor.

    Raises:
        OSError: ELOOP for a symbolic link, EXDEV for a path that leaves ROOT, and what open(2) says otherwise.
    """
    global _missing  # noqa: PLW0603  (found out once)
    if not _missing:
        how = _how_directory if directory else HOW
        for _ in range(_AGAIN):
            result = _syscall(_OPENAT2, root, path, how, len(how))
            if result >= 0:
                return int(result)
            number = ctypes.get_errno()
            if number not in (errno.EAGAIN, errno.EINTR):  # a rename during the look-up
                break
        if number not in NO_OPENAT2:
            raise OSError(number, os.strerror(number), path)
        if number == errno.ENOSYS:
            _missing = True
    return open_by_segments(root, path, directory=directory)


def open_by_segments(root: int, path: bytes, *, directory: bool = False) -> int:
    """Opens PATH as `open_beneath` does, without openat2: one open(2) for each segment."""
    if path.startswith(b"/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    *parents, name = path.split(b"/")
    where = root
    try:
        for segment in parents:
            if segment == b"..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            below = os.open(segment, _FLAGS | os.O_DIRECTORY, dir_fd=where)
            if where != root:
                os.close(where)
            where = below
        if name == b"..":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        return os.open(name or b".", _FLAGS | (os.O_DIRECTORY if directory else 0), dir_fd=where)
    finally:
        if where != root:
            os.close(where)
