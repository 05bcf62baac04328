# SPDX-License-Identifier: Apache-2.0
"""Writes what is in an image into a directory: the form of a dataset for kernels that have no EROFS.

A fetch always makes an image, so resuming, hashing and packs are the same everywhere; only a kernel without EROFS pays
for the files. The directory is what a mount of the image would be: files 0444, directories 0555, times of 1980; the
owner is who runs this. The image may be of unknown origin: the reader takes only safe names, everything is made
relative to its directory by calls that follow no link, and links are made when nothing else is left to make.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from gigaslice.core.dataset.errors import ImageError
from gigaslice.core.dataset.image import ImageEntry, read_tree
from gigaslice.core.dataset.listing import EntryKind, shown

__all__ = ["unpack_image"]

_CHUNK = 1 << 20
_TIME = (315532800, 315532800)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack_image(image: Path, into: Path) -> None:
    """Makes the directory INTO with everything that is in IMAGE, and has it on the disk on return.

    Raises:
        ImageError: The image is damaged, or none.
        OSError: As when there is no room. What was written is left; so it is with ImageError.
    """
    source = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(source).st_size
        entries = list(read_tree(lambda offset, count: os.pread(source, count, offset), size))
        into.mkdir(mode=0o700)
        root = os.open(into, _DIRECTORY)
        try:
            with _Parents(root) as parents:
                _write(source, entries, parents)
            _sync(root)
        finally:
            os.close(root)
    finally:
        os.close(source)


class _Parents:
    """Descriptors of the directories below ROOT. Only the last one stays open: entries of one follow each other."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._path = b""
        self._fd = root

    def __enter__(self) -> _Parents:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def of(self, path: bytes) -> tuple[int, bytes]:
        """The directory that PATH is in, and its name there."""
        parent, _, name = path.rpartition(b"/")
        if parent != self._path:
            self._leave()
            self._fd = self._opened(parent)
            self._path = parent
        return self._fd, name

    def _opened(self, path: bytes) -> int:
        fd = os.dup(self._root)
        for name in path.split(b"/") if path else ():
            try:
                inner = os.open(name, _DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _leave(self) -> None:
        if self._fd != self._root:
            os.close(self._fd)
        self._fd, self._path = self._root, b""


def _write(source: int, entries: Iterable[ImageEntry], parents: _Parents) -> None:
    """Parents come before what is in them; modes are set from below, when nothing is made in a directory any more."""
    entries = list(entries)
    for entry in entries:
        if entry.kind is EntryKind.DIRECTORY:
            where, name = parents.of(entry.path)
            os.mkdir(name, 0o700, dir_fd=where)
    for entry in entries:
        if entry.kind is EntryKind.FILE:
            where, name = parents.of(entry.path)
            target = os.open(name, _NEW, 0o400, dir_fd=where)
            try:
                _copy(source, target, entry)
                os.fchmod(target, 0o555 if entry.mode & 0o111 else 0o444)
                os.utime(target, _TIME)
            finally:
                os.close(target)
    for entry in entries:
        if entry.kind is EntryKind.SYMLINK:
            where, name = parents.of(entry.path)
            os.symlink(entry.target, name, dir_fd=where)
            os.utime(name, _TIME, dir_fd=where, follow_symlinks=False)
    for entry in reversed(entries):
        if entry.kind is EntryKind.DIRECTORY:
            where, name = parents.of(entry.path)
            inner = os.open(name, _DIRECTORY, dir_fd=where)
            try:
                os.utime(inner, _TIME)
                os.fchmod(inner, 0o555)
            finally:
                os.close(inner)
    root, _ = parents.of(b".")
    os.fchmod(root, 0o755)  # its owner can rename and remove it
    os.utime(root, _TIME)


def _copy(source: int, target: int, entry: ImageEntry) -> None:
    at, left = entry.offset, entry.size
    while left:
        data = os.pread(source, min(left, _CHUNK), at)
        if not data:
            raise ImageError(f"the image ends within {shown(entry.path)}; fetch it again")
        written = os.write(target, data)
        at, left = at + written, left - written


def _sync(fd: int) -> None:
    """Writes out the file system of FD. Not fsync of each file: that takes minutes for what this does in a second."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
