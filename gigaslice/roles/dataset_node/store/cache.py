# SPDX-License-Identifier: Apache-2.0
"""The complete and the partial datasets of the cache as files, and every step between the two.

A dataset becomes complete in steps that can each be the last before a crash: its bytes are on the disk; its digest is
written beside the partial image; the image is renamed; the digest is renamed after it. `reconcile` finishes what was
begun from the second step on. So nothing whose digest was not compared is ever in `objects`, and nothing that was
fetched is fetched again.

Nothing here decides what is deleted, and nothing here mounts. Images are never unlinked here: they go into the trash,
which is a rename. Not for several threads at once but for `reserve`, `sync` and `store`, which write to the disk for
the one dataset that the caller has begun; `DatasetStore` locks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import CacheFullError, DatasetError, ImageError, LostWritesError
from gigaslice.roles.dataset_node.store.documents import (
    DatasetMetadata,
    DocumentError,
    read_metadata,
    write_document,
)
from gigaslice.roles.dataset_node.store.state_paths import StatePaths, is_key, sync_directory
from gigaslice.roles.dataset_node.store.trash import Trash
from gigaslice.runtime.files import remedy
from gigaslice.runtime.logs import get_logger

__all__ = ["Cache", "PartialImage", "digest_of"]

_READ_BYTES = 256 << 10
_SMALL_BYTES = 1 << 20  # of a file that is unlinked at once
_SUFFIXES = (".img", ".json", ".bits", ".tree")


@dataclass(frozen=True, slots=True)
class PartialImage:
    """A dataset that is being fetched.

    image: the file that its bytes go into; it has its full size, and room on the disk. bits: where the fetcher keeps
    what has arrived. resumed: an earlier attempt has left something.
    """

    key: str
    image: Path
    bits: Path
    size: int
    resumed: bool


def digest_of(image: Path) -> str:
    """BLAKE3 of a whole file, hexadecimal. Raises OSError."""
    hashed, volume_source = hasher(), memoryview(bytearray(_READ_BYTES))
    with image.open("rb", buffering=0) as file:
        while count := file.readinto(volume_source):
            hashed.update(volume_source[:count])
    return hashed.hexdigest()


class Cache:
    """The files of the cache below PLACES. What is deleted goes into TRASH."""

    def __init__(self, paths: StatePaths, trash: Trash, clock: Callable[[], float]) -> None:
        self._paths = paths
        self._trash = trash
        self._clock = clock
        self._ready: dict[str, DatasetMetadata] = {}
        self._used: dict[str, float] = {}  # when the last use of a complete dataset ended
        self._parts: dict[str, DatasetMetadata] = {}
        self._promised: dict[str, int] = {}  # bytes of the disk by key, in the order of the promises
        self._log = get_logger("dataset")

    @property
    def ready(self) -> dict[str, DatasetMetadata]:
        """The complete datasets by key."""
        return dict(self._ready)

    @property
    def parts(self) -> dict[str, DatasetMetadata]:
        """The partial ones by key."""
        return dict(self._parts)

    def last_used(self, key: str) -> float:
        """Unix time of the end of the last use of a complete dataset."""
        return self._used.get(key, 0.0)

    def touch(self, key: str) -> None:
        """Notes that a use has just ended."""
        if key in self._ready:
            self._used[key] = now = self._clock()
            with contextlib.suppress(OSError):
                os.utime(self._paths.metadata(key), (now, now))

    def used_bytes(self) -> int:
        """The bytes of the disk that all of it takes, what has only been reserved included."""
        return sum(metadata.size for metadata in (*self._ready.values(), *self._parts.values()))

    def promised(self, before: str = "") -> tuple[int, int]:
        """What has been promised to datasets whose files do not have it yet.

        Args:
            before: Only what was promised before this dataset's part was.

        Returns:
            The bytes that they will still take of the disk; and the bytes of this dataset and of those after it.
        """
        missing = later = 0
        for key, size in list(self._promised.items()):
            if later or key == before:
                later += size
            else:
                missing += max(0, size - _allocated(self._paths.partial_image(key)))
        return missing, later

    def promise(self, metadata: DatasetMetadata) -> PartialImage:
        """Counts a dataset that is to be fetched as a partial one, or takes the one that is there.

        Its files are made by `reserve`. What was begun of it with another size is removed.
        """
        key, metadata = metadata.key, replace(metadata, created=self._clock(), digest="")
        part = PartialImage(
            key, self._paths.partial_image(key), self._paths.bits(key), metadata.size, resumed=False
        )
        recorded = self._parts.get(key)
        if recorded is not None and recorded.size == metadata.size == _size(part.image):
            part = replace(part, resumed=True)
        else:
            self.discard(key)
            self._promised[key] = metadata.size
        self._parts[key] = metadata
        return part

    def reserve(self, part: PartialImage) -> None:
        """Makes the files of a dataset that was promised; without the lock, since that may take seconds.

        Raises:
            CacheFullError: The file system has no room after all; the caller discards it.
            DatasetError: It cannot be written, or was discarded meanwhile.
        """
        metadata = self._parts.get(part.key)
        if metadata is None:
            raise _removed(part.key)
        try:
            if not part.resumed:
                self._reserve(part)
            write_document(self._paths.partial_metadata(part.key), metadata)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise CacheFullError(
                    f"no room for {metadata.size} bytes of {metadata.source}: {error.strerror}"
                ) from error
            raise DatasetError(f"cannot write {part.image}: {error.strerror}") from error

    def keep_promise(self, key: str) -> None:
        """The file has its room on the disk now."""
        self._promised.pop(key, None)

    def sync(self, key: str) -> None:
        """Has the bytes of a partial dataset on the disk; without the lock, since that may take seconds.

        Raises:
            LostWritesError: The disk has lost some; nothing of it may be used, and the caller discards it.
            DatasetError: They are gone, or cannot be opened.
        """
        try:
            fd = os.open(self._paths.partial_image(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                _sync(fd, key)
            finally:
                os.close(fd)
        except FileNotFoundError as error:
            raise _removed(key) from error
        except OSError as error:
            raise DatasetError(f"dataset {key[:12]} not stored: {error.strerror or error}") from error

    def store(self, key: str, digest: str) -> DatasetMetadata:
        """Has a partial dataset, all of whose bytes have arrived and been hashed, at the place of a complete one.

        Without the lock: it waits for the disk several times. `complete` takes note of it.

        Raises:
            ImageError: Its file has not the size it was begun with.
            LostWritesError: As `sync`.
            DatasetError: There is none, or a file cannot be written or renamed; it stays a partial one.
        """
        recorded, image = self._parts.get(key), self._paths.partial_image(key)
        if recorded is None:
            raise _removed(key)
        metadata = recorded
        try:
            fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _sync(fd, key)
                status = os.fstat(fd)
                with contextlib.suppress(OSError):
                    # The mount has a page cache of its own, and this would be a second copy of everything.
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
            if status.st_size != metadata.size:
                raise ImageError(f"{image} has {status.st_size} bytes in place of {metadata.size}")
            metadata = replace(metadata, digest=digest, stamp=(status.st_size, status.st_mtime_ns))
            write_document(self._paths.partial_metadata(key), metadata)
            sync_directory(self._paths.partial)
            self._rename(metadata)
        except OSError as error:
            raise DatasetError(f"{metadata.source} not stored: {error.strerror or error}") from error
        return metadata

    def complete(self, metadata: DatasetMetadata) -> None:
        """Counts a dataset as a complete one: its files are where `store` has left them."""
        now = self._clock()
        with contextlib.suppress(OSError):
            os.utime(self._paths.metadata(metadata.key), (now, now))
        self._ready[metadata.key], self._used[metadata.key] = metadata, now
        self.discard(metadata.key)

    def discard(self, key: str) -> None:
        """Removes a partial dataset. There may be none."""
        metadata = self._parts.pop(key, None)
        self._promised.pop(key, None)
        paths, size = self._paths, metadata.size if metadata is not None else 0
        self._remove(paths.partial_metadata(key), paths.bits(key))
        for path in (paths.partial_image(key), paths.partial_tree(key)):
            self._throw(path, size)

    def discard_tree(self, key: str) -> None:
        """Removes what a dataset was unpacked into in part. There may be none."""
        metadata = self._ready.get(key)
        self._throw(self._paths.partial_tree(key), metadata.size if metadata is not None else 0)

    def discard_image(self, key: str) -> None:
        """Removes the image of a complete dataset that is there as a tree. Raises OSError."""
        metadata = self._ready.get(key)
        self._trash.take(self._paths.image(key), metadata.size if metadata is not None else 0)

    def delete(self, key: str) -> None:
        """Deletes a complete dataset; whatever is mounted of it can still be read. Its room comes back later.

        Raises:
            OSError: It cannot be renamed, and stays.
        """
        paths, metadata = self._paths, self._ready.get(key)
        size = metadata.size if metadata is not None else 0
        # What is known of it goes last: a crash leaves no image that nothing is known of.
        self._trash.take(paths.image(key), size)
        self._trash.take(paths.tree(key), size)
        self.forget(key)
        self._remove(paths.metadata(key))

    def forget(self, key: str) -> None:
        """Has a complete dataset not used any more; its files stay."""
        self._ready.pop(key, None)
        self._used.pop(key, None)

    def intact(self, key: str) -> bool:
        """Whether the file of a complete dataset is the one whose digest was compared; it is read again if in doubt.

        May take a second per GB. A damaged one is left where it is: the caller deletes it.
        """
        metadata = self._ready.get(key)
        if metadata is None:
            return False
        image = self._paths.image(key)
        try:
            if self._paths.tree(key).is_dir():
                return True
            status = image.stat()
            if (status.st_size, status.st_mtime_ns) == metadata.stamp:
                return True
            self._log.warning("dataset changed on the disk; compared again", key=key, source=metadata.source)
            if status.st_size != metadata.size or digest_of(image) != metadata.digest:
                return False
            metadata = replace(metadata, stamp=(status.st_size, status.st_mtime_ns))
            used = self.last_used(key)
            write_document(self._paths.metadata(key), metadata)
            os.utime(self._paths.metadata(key), (used, used))
        except OSError:
            return False
        self._ready[key] = metadata
        return True

    def reconcile(self) -> None:
        """Reads what is there after a start, finishes what was begun, and removes what is of no use. Raises OSError."""
        self._ready, self._used, self._parts, self._promised = {}, {}, {}, {}
        self._sweep(self._paths.partial)
        self._sweep(self._paths.objects)
        for key in self._keys(self._paths.partial):
            self._take_part(key)
        now = self._clock()
        for key in self._keys(self._paths.objects):
            metadata = self._metadata(self._paths.metadata(key), key)
            image, tree = self._paths.image(key), self._paths.tree(key)
            if (
                metadata is None
                or not metadata.digest
                or not (tree.is_dir() or _size(image) == metadata.size)
            ):
                self._log.warning("removed from the cache: not complete", key=key)
                try:
                    self.delete(key)
                except OSError as error:
                    self._log.warning("not removed", key=key, detail=error.strerror)
                continue
            self._ready[key] = metadata
            if tree.is_dir():
                self._throw(image, metadata.size)  # the service ended when it had just unpacked it
            # A clock that was wrong when the last use ended must not protect a dataset for years.
            self._used[key] = min(self._paths.metadata(key).stat().st_mtime, now)

    def _reserve(self, part: PartialImage) -> None:
        fd = os.open(part.image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, max(part.size, 1))
            os.ftruncate(fd, part.size)
        finally:
            os.close(fd)

    def _take_part(self, key: str) -> None:
        metadata = self._metadata(self._paths.partial_metadata(key), key)
        if metadata is None:
            self.discard(key)
        elif metadata.digest and _size(self._paths.partial_image(key)) in (metadata.size, None):
            self._parts[key] = metadata
            if self._paths.image(key).exists() or self._paths.partial_image(key).exists():
                self._finish(metadata)
            else:
                self.discard(key)
        elif _size(self._paths.partial_image(key)) == metadata.size:
            self._parts[key] = replace(metadata, digest="")
        else:
            self.discard(key)

    def _finish(self, metadata: DatasetMetadata) -> None:
        self._rename(metadata)
        self.complete(metadata)

    def _rename(self, metadata: DatasetMetadata) -> None:
        paths, key = self._paths, metadata.key
        if paths.partial_image(key).exists():
            paths.partial_image(key).replace(paths.image(key))
            sync_directory(paths.objects)
        paths.partial_metadata(key).replace(paths.metadata(key))
        sync_directory(paths.objects)
        sync_directory(paths.partial)

    def _metadata(self, path: Path, key: str) -> DatasetMetadata | None:
        try:
            metadata = read_metadata(path)
        except DocumentError as error:
            if path.exists():
                self._log.warning("removed from the cache: its description cannot be used", detail=str(error))
            return None
        return metadata if metadata.key == key else None

    def _keys(self, directory: Path) -> list[str]:
        return sorted({path.stem for path in directory.iterdir() if is_key(path.stem)})

    def _sweep(self, directory: Path) -> None:
        """Removes what no version of the service keeps, such as a file that was being replaced."""
        for path in directory.iterdir():
            if not is_key(path.stem) or path.suffix not in _SUFFIXES:
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode) or status.st_size > _SMALL_BYTES:
                    self._throw(path, status.st_size)
                else:
                    self._remove(path)

    def _throw(self, path: Path, size: int) -> None:
        try:
            self._trash.take(path, size)
        except OSError as error:
            self._log.warning("not removed", path=str(path), detail=f"{error.strerror}; {remedy(error)}")

    def _remove(self, *paths: Path) -> None:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except IsADirectoryError:
                self._throw(path, 0)
            except OSError as error:
                self._log.warning("not removed", path=str(path), detail=f"{error.strerror}; {remedy(error)}")


def _sync(fd: int, key: str) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise LostWritesError(
            f"dataset {key[:12]} not stored: the node's disk has lost writes ({error.strerror}); what was fetched is "
            "removed, look after the disk"
        ) from error


def _removed(key: str) -> DatasetError:
    return DatasetError(
        f"dataset {key[:12]} not stored: what was fetched of it has been removed meanwhile; it is fetched again when "
        "it is asked for"
    )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
