"""The checkpoint file: replaced whole, with the one before kept beside it.

A save writes under another name and renames, so killing the agent between any two steps leaves a complete file under
one of the two names. Surviving a power failure takes a sync besides, which costs a disk more than all the rest; it is
a step of its own, so that a container's start can wait for it and the kubelet's admission loop does not.
What is in the file is the business of `codec`; what to do when both are damaged, of `store`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from agent.errors import CheckpointError, CheckpointVersionError, MissingError, StorageError
from agent.state import codec
from agent.state.records import Book

__all__ = ["CheckpointFile", "Loaded"]

_MAX_BYTES = 64 << 20
_ENDED = ".ended-"
_MAX_ENDED = 32  # predecessors kept until `tidy` comes round


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found: the book (None: no usable file), and sentences for the log about what was damaged."""

    book: Book | None
    notes: tuple[str, ...] = ()


class CheckpointFile:
    """The file at PATH and its predecessor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._previous = path.with_name(path.name + ".previous")
        self._new = path.with_name(path.name + ".new")
        self._ended = deque[str]()  # filled by one thread, emptied by two
        self._number = itertools.count()

    def save(self, book: Book) -> None:
        """Replaces the file by BOOK. Raises StorageError; one of the two files is then as it was.

        Giving up allocations is what makes room on a full disk, and has to be written first: there the predecessor
        goes.
        """
        data = codec.encode_book(book)
        try:
            try:
                self._write(data)
            except OSError as error:
                if error.errno != errno.ENOSPC or not self._path.exists():
                    raise
                self._previous.unlink(missing_ok=True)
                self.tidy()
                self._write(data)
            self._rotate()
        except OSError as error:
            raise StorageError(
                f"cannot write {self._path}: {error.strerror}; make room and check that it may be written"
            ) from error

    def sync(self) -> None:
        """Returns when what was saved last is on the disk. Blocks; may run beside a save. Raises StorageError."""
        try:
            for path, flags in ((self._path, os.O_RDONLY), (self._path.parent, os.O_RDONLY | os.O_DIRECTORY)):
                with contextlib.suppress(FileNotFoundError):
                    fd = os.open(path, flags | os.O_CLOEXEC)
                    try:
                        os.fsync(fd)
                    finally:
                        os.close(fd)
        except OSError as error:
            raise StorageError(f"cannot sync {self._path}: {error.strerror}; check the disk") from error

    def tidy(self) -> None:
        """Removes predecessors' predecessors. Blocks; may run beside a save. Raises OSError."""
        with contextlib.suppress(IndexError):
            while True:
                Path(self._ended.popleft()).unlink(missing_ok=True)

    def make_ahead(self) -> None:
        """Makes the next file, empty. May run beside a save, which makes it where it is missing."""
        with contextlib.suppress(OSError):
            os.close(os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def load(self) -> Loaded:
        """Reads the newest usable file. A damaged one is put aside under another name, never deleted.

        Raises CheckpointVersionError for a file of a newer agent, and StorageError for one that cannot be read.
        """
        notes: list[str] = []
        left = self._path.parent.glob(f"{self._path.name}{_ENDED}*")  # by an agent that was killed
        self._ended.extend(map(str, left))
        for path in (self._path, self._previous):
            raw = _read(path)
            if raw is None:
                continue
            try:
                return Loaded(codec.decode_book(raw), tuple(notes))
            except CheckpointVersionError as error:
                raise CheckpointVersionError(
                    f"{path} cannot be used: {error}; start the newer gigaslice again, or move the file away"
                ) from error
            except CheckpointError as error:
                kept = self._put_aside(path)
                notes.append(f"{path} is damaged: {error}; kept as {kept.name}")
        return Loaded(None, tuple(notes))

    def peek(self) -> Book:
        """The book in the newest usable file, without touching any. An empty one where there is no file.

        Raises CheckpointError when there are only damaged ones, CheckpointVersionError, StorageError.
        """
        damage: CheckpointError | None = None
        for path in (self._path, self._previous):
            raw = _read(path)
            try:
                if raw is not None:
                    return codec.decode_book(raw)
            except CheckpointError as error:
                damage = CheckpointError(
                    f"{path} is damaged: {error}; the running agent replaces it at its next change"
                )
        if damage:
            raise damage
        return Book()

    def _write(self, data: bytes) -> None:
        fd = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size:  # what a killed agent left; else O_TRUNC has ext4 write out at once
                os.ftruncate(fd, 0)
            _write_all(fd, data)
        finally:
            os.close(fd)

    def _rotate(self) -> None:
        """Gives the three files their new names; at any moment there is a complete one under one of the two names.

        The predecessor makes place first because renaming over a file makes some file systems write out at once. It is
        renamed, since removing files is what takes long: `tidy` does that. (`Path.rename` makes a path of the new name,
        which takes as long as the renaming.)
        """
        if self._path.exists():
            ended = f"{self._path}{_ENDED}{next(self._number)}"
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._previous, ended)  # noqa: PTH104
                self._ended.append(ended)
            if len(self._ended) > _MAX_ENDED:
                self.tidy()
            os.rename(self._path, self._previous)  # noqa: PTH104
        os.rename(self._new, self._path)  # noqa: PTH104

    def _put_aside(self, path: Path) -> Path:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        target = path.with_name(f"{path.name}.corrupt-{stamp}")
        number = 1
        while target.exists():
            number += 1
            target = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
        try:
            path.rename(target)
        except OSError as error:
            raise StorageError(f"cannot put the damaged {path} aside: {error.strerror}") from error
        return target


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise MissingError(
            f"no permission to read {path}; run as the user of the agent, or as root"
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {error.strerror}; it must be readable by the agent"
        ) from error


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
