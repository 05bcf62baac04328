# SPDX-License-Identifier: Apache-2.0
"""What has been deleted from the cache and still takes room on the disk.

To delete a dataset is to rename its file into a directory from which nothing comes back. A thread gives the room back
afterwards, without the store's lock: freeing the blocks of some GB takes a file system a second and more, most of all
where it tells the disk of every freed block.

A large file is cut from its end, some MiB at a time, with a pause in between. To unlink it whole puts all of its blocks
into one transaction of the journal, and every program that syncs a file then waits for that one. A file that anything
still has open is only unlinked: who reads it goes on reading, and its room comes back after the last reader.

What cannot be removed is tried again later, ever more seldom, and no fetch waits for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import signal
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from gigaslice.roles.dataset_node.store.state_paths import StatePaths, sync_directory
from gigaslice.runtime.files import remedy
from gigaslice.runtime.logs import get_logger

__all__ = ["Trash", "TrashPace"]

_END_SECONDS = 10.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class TrashPace:
    """How fast room is given back, and how soon what failed is tried again.

    Attributes:
        step: Bytes that one step gives back; then comes a pause.
        files: Files of a tree that are removed before a pause.
        pause: Seconds of a pause.
        retry: Seconds until what could not be removed is tried again, after the first failure. Then twice as long.
        longest_retry: Seconds at most.
    """

    step: int = 32 << 20
    files: int = 500
    pause: float = 0.02
    retry: float = 5.0
    longest_retry: float = 300.0


@dataclass(slots=True)
class _TrashItem:
    """One file or tree in the trash.

    paths: what is left of it. home: the directory that it was renamed from. pause: seconds after its next failure.
    """

    number: int
    size: int
    paths: list[Path]
    home: Path | None
    tree: bool
    pause: float
    freed: int = 0
    retry_at: float = 0.0

    @property
    def failing(self) -> bool:
        return self.retry_at > 0

    @property
    def left(self) -> int:
        """Bytes of the disk that its removal still gives back."""
        if self.tree:
            return max(0, self.size - self.freed)
        try:
            return min(self.size, self.paths[0].stat(follow_symlinks=False).st_blocks * 512)
        except (OSError, IndexError):
            return 0  # it is unlinked


class Trash:
    """The trash of the store at PLACES. `open` starts the thread that empties it."""

    def __init__(self, paths: StatePaths, pace: TrashPace = TrashPace()) -> None:
        self.failures = 0
        """Attempts to remove something that failed."""
        self._paths = paths
        self._pace = pace
        self._changed = threading.Condition()
        self._items: list[_TrashItem] = []
        self._numbers = itertools.count(1)
        self._steps = 0
        self._waiting = 0
        self._closed = True
        self._thread: threading.Thread | None = None
        self._since_pause = (0, 0)  # bytes, files
        self._log = get_logger("dataset")

    def open(self) -> None:
        """Takes what an earlier service has left, and begins to remove it. Raises OSError."""
        self._closed = False
        for path in sorted(self._paths.trash.iterdir()):
            status = path.lstat()
            tree = stat.S_ISDIR(status.st_mode)
            size = 0 if tree else status.st_size
            self._add(_TrashItem(next(self._numbers), size, [path], None, tree, self._pace.retry))
        self._thread = threading.Thread(target=self._run, name="dataset-trash", daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Ends every `wait`, and the thread as soon as it can. What is left is removed after the next start."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread, and waits until it has ended."""
        self.interrupt()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_END_SECONDS)

    @property
    def closed(self) -> bool:
        """Whether nothing is removed any more."""
        return self._closed

    def take(self, path: Path, size: int) -> None:
        """Renames a file or a tree of SIZE bytes into the trash. There may be none. Raises OSError."""
        try:
            tree = stat.S_ISDIR(path.lstat().st_mode)
            target = self._paths.trash / f"{path.stem}.{secrets.token_hex(8)}{path.suffix}"
            path.replace(target)
        except FileNotFoundError:
            return
        self._add(_TrashItem(next(self._numbers), size, [target], path.parent, tree, self._pace.retry))

    # Its room

    @property
    def coming(self) -> int:
        """The bytes that come back without anything else being done."""
        return sum(item.left for item in self._listed() if not item.failing)

    @property
    def stuck(self) -> int:
        """The bytes of what could not be removed when it was last tried."""
        return sum(item.left for item in self._listed() if item.failing)

    @property
    def last(self) -> int:
        """The number of what was thrown away last; 0 where nothing is here."""
        return max((item.number for item in self._listed()), default=0)

    @property
    def steps(self) -> int:
        """Changes at every step of a removal."""
        return self._steps

    def wait(self, steps: int, last: int) -> bool:
        """Waits for the next step after STEPS.

        Returns:
            Whether anything up to the number LAST was still to be removed; False where the trash was closed.
        """
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                while not self._closed and any(
                    item.number <= last and not item.failing for item in self._items
                ):
                    if self._steps != steps:
                        return True
                    self._changed.wait()
            finally:
                self._waiting -= 1
        return False

    # The thread

    def _listed(self) -> list[_TrashItem]:
        with self._changed:
            return list(self._items)

    def _add(self, item: _TrashItem) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._remove(item)
            except Exception as error:  # noqa: BLE001  (a fetch may wait for this thread)
                self._fail(item, error)
            else:
                self._step()

    def _next(self) -> _TrashItem | None:
        """What is to be removed now; None at the end."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                first = min(self._items, key=lambda item: (item.retry_at, item.number), default=None)
                if first is not None and first.retry_at <= now:
                    return first
                self._changed.wait(None if first is None else first.retry_at - now)
        return None

    def _fail(self, item: _TrashItem, error: Exception) -> None:
        with self._changed:
            self.failures += 1
            first = not item.failing
            item.retry_at = time.monotonic() + item.pause
            item.pause = min(2 * item.pause, self._pace.longest_retry)
        if first:
            text = f"{error.strerror}; {remedy(error)}" if isinstance(error, OSError) else repr(error)
            self._log.warning("not removed", path=" ".join(map(str, item.paths[-1:])), detail=text)
        self._step()

    def _step(self) -> None:
        with self._changed:
            self._steps += 1
            self._changed.notify_all()

    def _remove(self, item: _TrashItem) -> None:
        """Removes one, or a part of it when the end comes. Raises OSError."""
        if item.home is not None:  # only what can have no other name after a crash is destroyed
            sync_directory(item.home)
            sync_directory(self._paths.trash)
            item.home = None
        while item.paths and not self._closed:
            path = item.paths[-1]
            try:
                status = path.lstat()
            except FileNotFoundError:
                item.paths.pop()
                continue
            if stat.S_ISDIR(status.st_mode):
                self._empty(item, path)
            else:
                self._remove_file(path, status)
        if not item.paths:
            with self._changed:
                self._items.remove(item)

    def _remove_file(self, path: Path, status: os.stat_result) -> None:
        if stat.S_ISREG(status.st_mode) and status.st_size > self._pace.step and status.st_nlink == 1:
            with contextlib.suppress(PermissionError):
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    size = status.st_size if _is_only_opener(fd) else 0
                    while size > 0 and not self._closed:
                        size = max(0, size - self._pace.step)
                        os.ftruncate(fd, size)
                        self._step()
                        self._rest(self._pace.step)
                finally:
                    os.close(fd)
        if not self._closed:
            path.unlink(missing_ok=True)

    def _empty(self, item: _TrashItem, path: Path) -> None:
        """Removes the files of a directory, moves its directories beside it, and removes it.

        So a tree may be as deep as it likes, and no path is followed.
        """
        fd = os.open(path, _DIRECTORY)
        try:
            os.fchmod(fd, 0o700)
            while names := _some_names(fd, self._pace.files):
                for name in names:
                    if self._closed:
                        return
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        item.paths.insert(0, self._move_up(fd, name))
                    else:
                        os.unlink(name, dir_fd=fd)
                        item.freed += status.st_blocks * 512
                        self._rest(status.st_blocks * 512)
        finally:
            os.close(fd)
        path.rmdir()

    def _move_up(self, fd: int, name: str) -> Path:
        beside = self._paths.trash / f"{secrets.token_hex(8)}.tree"
        inner = os.open(name, _DIRECTORY, dir_fd=fd)
        try:
            os.fchmod(inner, 0o700)  # what is above it is another directory then
        finally:
            os.close(inner)
        os.rename(name, beside, src_dir_fd=fd)
        return beside

    def _rest(self, freed: int) -> None:
        """Leaves the journal to others from time to time, unless a fetch waits for the room."""
        count, files = self._since_pause
        self._since_pause = (count + freed, files + 1)
        if count + freed < self._pace.step and files + 1 < self._pace.files:
            return
        self._since_pause = (0, 0)
        with self._changed:
            if not self._waiting and not self._closed:
                self._changed.wait_for(lambda: self._closed or self._waiting > 0, self._pace.pause)


def _some_names(directory: int, most: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in itertools.islice(entries, most)]


def _is_only_opener(fd: int) -> bool:
    """Whether nothing else has the file open: no program, no mount and no loop device.

    The kernel gives a lease for writing in this case only. It is given back at once; who opened the file in between
    would have this process sent a signal, for which one is chosen that is ignored.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True
