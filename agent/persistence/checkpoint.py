# SPDX-License-Identifier: Apache-2.0
"""The checkpoint file: replaced whole, with the one before kept beside it.

A save writes under another name and renames, so killing the agent between any two steps leaves a complete file under
one of the two names. Surviving a power failure takes a sync besides, which costs a disk more than all the rest; it is
a step of its own, so that a container's start can wait for it and the kubelet's admission loop does not. Between two
syncs a power failure may take the contents of every file that was written, whatever its name: so the one synced last is
kept until another one is, however many have come since (docs/adr/0049-what-was-synced-is-kept.md).
`codec` has the format of the file, `store` what happens when both are damaged.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from agent.persistence.codec import Codec
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.errors import CheckpointError, CheckpointVersionError, MissingError, StorageError
from gigaslice.runtime.files import open_file, os_errors_as, read_file, remedy

__all__ = ["CheckpointFile", "Loaded"]

_MAX_BYTES = 64 << 20
_PROBE_BYTES = 4096
_ENDED = ".ended-"
_MAX_ENDED = 32  # predecessors kept until the next `tidy`


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint as read: the allocation table (None: no usable file), and sentences for the log about damage."""

    table: AllocationTable | None
    notes: tuple[str, ...] = ()


class CheckpointFile:
    """The file at PATH and its predecessor, in the format of CODEC."""

    def __init__(self, path: Path, codec: Codec) -> None:
        self._path = path
        self._codec = codec
        self._previous = path.with_name(path.name + ".previous")
        self._new = path.with_name(path.name + ".new")
        self._ended = deque[str]()  # filled by one thread, emptied by two
        self._number = itertools.count()
        self._names = threading.Lock()  # held while names change, and while one is opened to be synced
        self._synced: int | None = None  # inode of the file that was synced last

    def save(self, table: AllocationTable) -> None:
        """Replaces the file by TABLE. Raises StorageError; one of the two files is then as it was.

        Releasing allocations makes room on a full disk, and has to be written first: there the predecessor is removed.
        """
        data = self._codec.encode_table(table)
        with os_errors_as(StorageError, f"cannot write {self._path}"):
            try:
                self._write(data)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._path.exists():
                    raise
                self.sync()  # the file that stays is the only one
                self._previous.unlink(missing_ok=True)
                self.tidy()
                self._write(data)
            self._rotate()

    def sync(self) -> None:
        """Returns when what was saved last is on the disk. Blocks; may run beside a save. Raises StorageError.

        The file first, then its name. Never while a save changes names: it would find none, or one that is leaving.
        """
        with os_errors_as(StorageError, f"cannot sync {self._path}"):
            with self._names:
                fd = self._open_last()
            if fd is not None:
                try:
                    os.fsync(fd)
                    inode = os.fstat(fd).st_ino
                finally:
                    os.close(fd)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
            if fd is not None:
                self._synced = inode

    def _open_last(self) -> int | None:
        """The file saved last, or the one before where a save has failed halfway; None: there is none."""
        for path in (self._path, self._previous):
            with contextlib.suppress(FileNotFoundError):
                return open_file(path, os.O_RDONLY)
        return None

    def tidy(self) -> None:
        """Removes predecessors' predecessors, but the one that was synced last. Blocks; may run beside a save.

        Nothing goes before anything was synced. Raises OSError.
        """
        kept = []
        with contextlib.suppress(IndexError):
            while self._synced is not None:
                path = self._ended.popleft()
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(path).st_ino == self._synced:  # noqa: PTH116
                        kept.append(path)
                    else:
                        os.unlink(path)  # noqa: PTH108
        self._ended.extend(kept)

    def make_ahead(self) -> None:
        """Makes the next file, empty. May run beside a save, which makes it where it is missing."""
        with contextlib.suppress(OSError):
            os.close(os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def load(self) -> Loaded:
        """Reads the newest usable file. A damaged one is put aside under another name, never deleted.

        Raises CheckpointVersionError for a file of a newer agent, and StorageError for one that cannot be read.
        """
        notes: list[str] = []
        ended = self._find_ended()  # by an agent that was killed
        self._ended.extend(map(str, ended))
        if ended:
            self._number = itertools.count(_number(ended[-1]) + 1)
        for path in (self._path, self._previous, *reversed(ended)):
            raw = _read(path)
            if raw is None:
                continue
            try:
                return Loaded(self._codec.decode_table(raw), tuple(notes))
            except CheckpointVersionError as error:
                raise CheckpointVersionError(
                    f"{path} cannot be used: {error}; start the newer gigaslice again, or move the file away"
                ) from error
            except CheckpointError as error:
                kept = self._put_aside(path)
                notes.append(f"{path} is damaged: {error}; kept as {kept.name}")
        return Loaded(None, tuple(notes))

    def peek(self) -> AllocationTable:
        """The allocation table in the newest usable file, without touching any. An empty one where there is no file.

        Raises CheckpointError when there are only damaged ones, CheckpointVersionError, StorageError.
        """
        damage: CheckpointError | None = None
        for path in (self._path, self._previous, self._path):  # an agent may be about to rename them
            raw = _read(path)
            try:
                if raw is not None:
                    return self._codec.decode_table(raw)
            except CheckpointError as error:
                damage = CheckpointError(
                    f"{path} is damaged: {error}; the running agent replaces it at its next change"
                )
        if damage:
            raise damage
        return AllocationTable()

    def _write(self, data: bytes) -> None:
        fd = self._fresh()
        try:
            if os.fstat(fd).st_size:  # what a killed agent left; else O_TRUNC has ext4 write out at once
                os.ftruncate(fd, 0)
            _write_all(fd, data)
        finally:
            os.close(fd)

    def _fresh(self) -> int:
        """The next file, open for writing. A file there that cannot be written is removed: the name is reserved."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        try:
            return open_file(self._new, flags)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ELOOP):
                raise
            self._new.unlink(missing_ok=True)
            return open_file(self._new, flags | os.O_EXCL)

    def probe(self) -> None:
        """Finds out whether a save would succeed: writes as much under another name, syncs it, and removes it.

        Blocks; may run beside a save. Raises StorageError.
        """
        trial = self._path.with_name(f"{self._path.name}.probe")
        with os_errors_as(StorageError, f"cannot write below {self._path.parent}"):
            size = self._path.stat().st_size if self._path.exists() else 0
            trial.unlink(missing_ok=True)
            fd = open_file(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                _write_all(fd, b"\n" * max(size, _PROBE_BYTES))
                os.fsync(fd)
            finally:
                os.close(fd)
                trial.unlink(missing_ok=True)

    def _rotate(self) -> None:
        """Gives the three files their new names; at any moment there is a complete one under one of the two names.

        The predecessor makes place first because renaming over a file makes some file systems write out at once. It is
        renamed, since removing files is what takes long: `tidy` does that. (`Path.rename` makes a path of the new name,
        which takes as long as the renaming.)
        """
        if len(self._ended) > _MAX_ENDED:
            self.sync()  # nothing may be removed before a sync
            self.tidy()
        with self._names:
            if self._path.exists():
                ended = f"{self._path}{_ENDED}{next(self._number)}"
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self._previous, ended)  # noqa: PTH104
                    self._ended.append(ended)
                os.rename(self._path, self._previous)  # noqa: PTH104
            os.rename(self._new, self._path)  # noqa: PTH104

    def _find_ended(self) -> list[Path]:
        """Predecessors' predecessors, the oldest first."""
        paths = self._path.parent.glob(f"{self._path.name}{_ENDED}[0-9]*")
        return sorted((path for path in paths if _number(path) >= 0), key=_number)

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


def _number(ended: Path) -> int:
    digits = ended.name.rpartition(_ENDED)[2]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def _read(path: Path) -> bytes | None:
    try:
        return read_file(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise MissingError(
            f"no permission to read {path}; run as the user of the agent, or as root"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; {remedy(error)}") from error


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
