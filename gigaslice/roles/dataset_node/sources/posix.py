# SPDX-License-Identifier: Apache-2.0
"""A directory tree as a source: local disks, and every network file system that the kernel has mounted.

One directory is one step of the walk; several threads take steps, since on a network file system each costs the time
of some round trips. Only plain files, directories and symbolic links are a dataset: devices, sockets and pipes are
refused by name, and mounts below the root are walked like directories.

A file's version is its size and time of modification. It is compared when the file is opened and again when its last
byte has been read, so bytes written meanwhile are found. What is not found: contents changed by a program that sets
the time of modification back and keeps the size, as rsync without --checksum does not find it either.
Whether a file may be executed is what its owner's bit says when it is listed.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from pathlib import Path

from gigaslice.core.dataset.errors import ListingError, SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing, shown
from gigaslice.roles.dataset_node.sources._tree import look_up, read_file, read_names
from gigaslice.roles.dataset_node.sources.beneath import HOW, NO_OPENAT2, open_beneath, openat2_missing
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag, Sink, changed, in_thread

__all__ = ["PosixSource"]

_CHECK = 4096
_WALKERS = 16
_CHUNK = 1 << 20
_PATIENCE_SECONDS = 1.0  # of who gives a walk up, and is to close the root that it uses
_SETTLE_NS = 50_000_000  # at least one tick of a kernel's clock, by which files get their times
_WALK_SECONDS, _WALK_BUSY = (
    0.005,
    0.25,
)  # time of a judgement, and what share of it a thread works that does not wait
_RETRIED = frozenset((errno.EIO, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EHOSTDOWN, errno.ENETDOWN,
                      errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNRESET, errno.ENOMEM, errno.ENFILE,
                      errno.EMFILE, errno.EREMOTEIO))  # fmt: skip


class PosixSource:
    """The tree below ROOT.

    Args:
        root: The directory.
        below: What it is relative to, where its author may be another than that of the path: then no part of the path
            may be a symbolic link, by which who may write above it would choose what is read.
        keep_cached: Leave large files in the page cache. By default they are dropped from it, since data that is
            copied once would displace what the node's programs use. Small ones are left to the kernel, which drops
            first what was read once: a call for each would cost as much as reading it.
        parallel: How many reads at once; a local disk is slower with many.
        large: From this size on the kernel is told what is read next, and what can leave its cache. Smaller files are
            read by one call.
    """

    def __init__(
        self,
        root: Path,
        *,
        below: Path | None = None,
        keep_cached: bool = False,
        parallel: int = 64,
        large: int = 1 << 20,
    ) -> None:
        self.parallel = parallel
        self.image = None
        self.weak = False
        self._keep_cached = keep_cached
        self._large = large
        try:
            self._root = _open(root) if below is None else _open_without_links(below, root)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise SourceError(
                    f"{root} is no directory, or a part of it is a symbolic link; name the directory that is meant"
                ) from None
            raise SourceError(
                f"{root} cannot be opened: {error.strerror}; name a directory that the node can read",
                retry=error.errno in _RETRIED,
            ) from None

    async def list(self, limits: Limits = Limits()) -> Listing:  # noqa: B008  (frozen)
        """Walks the whole tree. Raises as `DataSource.list`."""
        return await in_thread(
            "dataset-walk", lambda stop: self._list(limits, stop), patience=_PATIENCE_SECONDS
        )

    def _list(self, limits: Limits, stop: CancelFlag) -> Listing:
        walk = _Walk(self._root, limits, stop)
        entries = walk.run()
        return Listing.of(_settled(self._root, entries, walk.new, stop), limits)

    def read_into(self, entry: Entry, offset: int, size: int, sink: Sink) -> None:
        """Reads a range of a file. Raises as `DataSource.read_into`."""
        if entry.size < self._large and self._read_small(entry, offset, size, sink):
            return
        try:
            fd = open_beneath(self._root, entry.path)
        except OSError as error:
            raise _unreadable(entry.path, error) from None
        try:
            self._read(fd, entry, offset, size, sink)
        finally:
            os.close(fd)

    def _read_small(self, entry: Entry, offset: int, size: int, sink: Sink) -> bool:
        """Reads as `read_into` does, by one call. Returns whether it could be done so."""
        path, version = entry.path, entry.version
        if openat2_missing() or not 0 <= size <= entry.size or not version.isascii():
            return False
        try:
            data = read_file(self._root, path, HOW, version, offset, size)
        except OSError as error:
            if error.errno in NO_OPENAT2:
                return False
            raise _unreadable(path, error) from None
        if isinstance(data, str):
            raise changed(path, data)
        if data:
            sink(offset, data)
        return data is not None

    def _read(self, fd: int, entry: Entry, offset: int, size: int, sink: Sink) -> None:
        before = _status(fd, entry)
        if not stat.S_ISREG(before.st_mode):
            raise changed(entry.path, "became something else than a file")
        if _version(before) != entry.version:
            raise changed(entry.path, "was changed")
        large = entry.size >= self._large
        if large:
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)
        at, end = offset, offset + size
        while at < end:
            try:
                data = os.pread(fd, min(_CHUNK, end - at), at)
            except OSError as error:
                raise _unreadable(entry.path, error) from None
            if not data:
                raise changed(entry.path, "became shorter")
            sink(at, data)
            at += len(data)
        after = _status(fd, entry)
        if _version(after) != entry.version or after.st_ctime_ns != before.st_ctime_ns:
            raise changed(entry.path, "was changed")
        if large and not self._keep_cached:
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)

    async def close(self) -> None:
        """Closes the root."""
        root, self._root = self._root, -1
        if root >= 0:
            os.close(root)


def _open(root: Path) -> int:
    return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_without_links(below: Path, root: Path) -> int:
    start = _open(below)
    try:
        return open_beneath(start, os.fsencode(root.relative_to(below)), directory=True)
    finally:
        os.close(start)


def _status(fd: int, entry: Entry) -> os.stat_result:
    try:
        return os.fstat(fd)
    except OSError as error:
        raise _unreadable(entry.path, error) from None


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}"


class _BusyCount:
    """Whether a thread works or waits."""

    def __init__(self) -> None:
        self._since, self._used = time.monotonic(), time.thread_time()

    def waits(self) -> bool:
        """Whether it has mostly waited since it was last asked, or some milliseconds ago."""
        now = time.monotonic()
        seconds = now - self._since
        if seconds < _WALK_SECONDS:
            return False
        used, self._since = self._used, now
        self._used = time.thread_time()
        return self._used - used < seconds * _WALK_BUSY


class _Walk:
    """One walk of a tree. Directories wait on a stack, so that few are known at once.

    There is one thread more, up to a bound, whenever one finds that it has mostly waited: where a look-up takes the
    time of a round trip there are soon many. On a local disk they would only wait for each other.
    """

    def __init__(self, root: int, limits: Limits, stop: CancelFlag) -> None:
        self._root = root
        self._limits = limits
        self._stop = stop
        self._wake = threading.Condition()
        self._waiting: list[bytes] = [b""]
        self._walking = 0
        self._threads: list[threading.Thread] = []
        self._found: list[Entry] = []
        self._text = 0
        self._failure: BaseException | None = None
        self.new: set[bytes] = set()
        """Paths of files that had just been written when they were looked up."""

    def run(self) -> list[Entry]:
        self._work()
        while self._threads:
            self._threads.pop().join()
        if self._failure is not None:
            raise self._failure
        if self._stop:
            raise SourceError("the listing was given up", retry=True)
        return self._found

    def _work(self) -> None:
        busy = _BusyCount()
        while (path := self._next()) is not None:
            entries: list[Entry] = []
            below: list[bytes] = []
            new: list[bytes] = []
            failure: BaseException | None = None
            text = 0
            try:
                text = self._directory(path, entries, below, new, busy)
            except (SourceError, ListingError) as error:
                failure = error
            except OSError as error:
                failure = _unreadable(path, error)
            except BaseException as error:  # noqa: BLE001  (the other threads wait for this directory)
                failure = error
            with self._wake:
                self._found += entries
                self._text += text
                self._waiting += below
                self.new.update(new)
                self._walking -= 1
                try:
                    self._limits.check(len(self._found), self._text)
                except (SourceError, ListingError) as error:
                    failure = failure or error
                self._failure = self._failure or failure
                self._wake.notify_all()

    def _next(self) -> bytes | None:
        with self._wake:
            while True:
                if self._failure is not None or self._stop or not (self._waiting or self._walking):
                    self._wake.notify_all()
                    return None
                if self._waiting:
                    self._walking += 1
                    return self._waiting.pop()
                self._wake.wait()

    def _help(self) -> None:
        """Has one thread more, where a directory waits for one."""
        with self._wake:
            if self._waiting and len(self._threads) < _WALKERS - 1 and self._failure is None:
                thread = threading.Thread(target=self._work, name="dataset-walk", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _directory(
        self, path: bytes, entries: list[Entry], below: list[bytes], new: list[bytes], busy: _BusyCount
    ) -> int:
        """Lists one directory. Returns the bytes of its entries' texts."""
        fd = open_beneath(self._root, path or b".", directory=True)
        prefix = path + b"/" if path else b""
        newest = time.time_ns() - _SETTLE_NS
        text, checked = 0, _CHECK
        others: list[tuple[bytes, int]] = []
        try:
            while names := read_names(fd):
                at, end = 0, len(names)
                while at < end:
                    if self._stop:
                        return text
                    if busy.waits():
                        self._help()
                    at, more = look_up(
                        fd, names, at, prefix, newest, Entry, EntryKind.FILE, entries, others, new
                    )
                    text += more
                    for name, mode in others:
                        entry = _other(fd, prefix, name, mode)
                        if entry is not None:
                            entries.append(entry)
                            text += len(entry.path) + len(entry.version) + len(entry.target)
                            if entry.kind is EntryKind.DIRECTORY:
                                below.append(entry.path)
                    others.clear()
                    if len(entries) >= checked:
                        checked = len(entries) + _CHECK
                        self._limits.check(len(self._found) + len(entries), self._text + text)
            return text
        finally:
            os.close(fd)


def _entry(directory: int, prefix: bytes, name: bytes) -> Entry | None:
    """The entry of NAME; none where it was removed. Raises SourceError and OSError."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode):
        executable = bool(status.st_mode & stat.S_IXUSR)
        return Entry(prefix + name, EntryKind.FILE, status.st_size, _version(status), executable=executable)
    return _other(directory, prefix, name, status.st_mode)


def _other(directory: int, prefix: bytes, name: bytes, mode: int) -> Entry | None:
    """The entry of what `look_up` has handed back; none where it was removed. Raises SourceError and OSError."""
    path = prefix + name
    if stat.S_ISDIR(mode):
        return Entry(path, EntryKind.DIRECTORY)
    if stat.S_ISLNK(mode):
        try:
            target = os.readlink(name, dir_fd=directory)
        except FileNotFoundError:
            return None
        return Entry(path, EntryKind.SYMLINK, len(target), "", target)
    if stat.S_ISREG(mode):
        return _entry(directory, prefix, name)
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise SourceError(f"{shown(path)} is {kind}; a dataset has files, directories and links: remove it")


def _settled(root: int, entries: list[Entry], new: set[bytes], stop: CancelFlag) -> list[Entry]:
    """ENTRIES, with the files that were written just before they were looked up, NEW, looked up once more.

    A file's time has the grain of the kernel's clock: a file that is written again within one tick keeps its version.
    After a tick it cannot, so what is so new is looked up again.
    """
    if not new or stop.wait(_SETTLE_NS / 1e9):
        return entries
    gone: set[int] = set()
    for index in [index for index, entry in enumerate(entries) if entry.path in new]:
        path = entries[index].path
        parent, slash, name = path.rpartition(b"/")
        try:
            fd = open_beneath(root, parent or b".", directory=True)
        except OSError:
            gone.add(index)
            continue
        try:
            entry = _entry(fd, parent + slash, name)
        finally:
            os.close(fd)
        if entry is None:
            gone.add(index)
        else:
            entries[index] = entry
    return [entry for index, entry in enumerate(entries) if index not in gone] if gone else entries


def _unreadable(path: bytes, error: OSError) -> SourceError:
    where = f"file {shown(path)}" if path else "the directory"
    if error.errno in (errno.ELOOP, errno.EXDEV):
        return SourceError(
            f"{where} is reached by a link now; it was none when it was listed, and it is not followed",
            changed=True,
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE) and path:
        return changed(path, "was removed")
    if error.errno in (errno.EACCES, errno.EPERM):
        return SourceError(
            f"{where} may not be read ({error.strerror}); give the node's user the right to read it"
        )
    return SourceError(
        f"{where} cannot be read: {error.strerror}; look after the storage", retry=error.errno in _RETRIED
    )
