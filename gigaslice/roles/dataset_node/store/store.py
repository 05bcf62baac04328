# SPDX-License-Identifier: Apache-2.0
"""The node's cache of datasets: what is on the disk, what is mounted where, and for whom.

One lock for all of it, held for what is in memory, for renames and unlinks of small files, and for mounting an image.
What waits for the disk or for storage on a network is done without it: reading, syncing and unpacking an image,
reserving its room, removing what was deleted, writing records, mounting and unmounting volumes. What is done to one
volume, or to one partial dataset, is done one after the other all the same: each has a lock of its own. Everything
blocks; callers use threads. What is in use is what a volume has, what is mounted, what a task waits for (`pin`), and
what is being fetched (`begin_fetch`); nothing in use is ever deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.dataset.errors import CacheFullError, DatasetError, ImageError, LostWritesError
from gigaslice.core.dataset.eviction import room_for
from gigaslice.core.errors import LockedError, StorageError
from gigaslice.core.units import format_bytes
from gigaslice.roles.dataset_node.mounts import MountError, Mounts, top_at
from gigaslice.roles.dataset_node.store.budget import Budget, DiskSpace, disk_of
from gigaslice.roles.dataset_node.store.cache import Cache, PartialImage
from gigaslice.roles.dataset_node.store.cache_room import CacheRoom, StoreParts
from gigaslice.roles.dataset_node.store.documents import DatasetMetadata, Volume, VolumeRecord, VolumeSource
from gigaslice.roles.dataset_node.store.pins import Pins
from gigaslice.roles.dataset_node.store.state_paths import StatePaths, sync_directory
from gigaslice.roles.dataset_node.store.trash import Trash, TrashPace
from gigaslice.roles.dataset_node.store.volumes import PublishedVolumes
from gigaslice.runtime.clock import steady
from gigaslice.runtime.files import os_errors_as, remedy
from gigaslice.runtime.keyed_locks import KeyedLocks
from gigaslice.runtime.logs import get_logger

__all__ = ["DatasetStore", "StoredDataset"]

_STALE_SECONDS = 7 * 86400.0  # a partial dataset that no task has asked for again


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """One dataset of the cache, for those who show it. complete: else it is being fetched, or was."""

    metadata: DatasetMetadata
    complete: bool
    last_used: float
    holders: tuple[Volume, ...]
    waiting: int  # tasks
    mounted: bool


class DatasetStore:
    """The cache below ROOT. `open` before anything else."""

    def __init__(
        self,
        root: Path,
        mounts: Mounts,
        *,
        budget: Budget | None = None,
        quotas: Mapping[str, int] | None = None,
        default_quota: int | None = None,
        unpack: Callable[[Path, Path], None] | None = None,
        pod_is_there: Callable[[Volume], bool] = lambda volume: Path(volume.target).parent.exists(),
        disk: Callable[[], DiskSpace] | None = None,
        clock: Callable[[], float] | None = None,
        trash_pace: TrashPace = TrashPace(),  # noqa: B008  (frozen)
    ) -> None:
        """Initializes the store.

        Args:
            root: Its directory.
            mounts: The node's mounts.
            budget: How much it may hold.
            quotas: Bytes in use by namespace.
            default_quota: The same for other namespaces; None: no limit.
            unpack: Writes the files of an image into a directory, for kernels without EROFS.
            pod_is_there: Whether the kubelet still has a volume's pod.
            disk: The file system's size.
            clock: Unix time; None: one that no change of the machine's time disturbs.
            trash_pace: How fast the room of deleted datasets is given back.
        """
        self._paths = StatePaths(root)
        self._mounts = mounts
        self._unpack = unpack
        self._pod_is_there = pod_is_there
        self._clock = clock or steady()
        self._trash = Trash(self._paths, trash_pace)
        self._cache = Cache(self._paths, self._trash, self._clock)
        self._volumes = PublishedVolumes(self._paths, mounts, self._clock)
        self._pins = Pins()
        self._room = CacheRoom(
            StoreParts(self._paths, mounts, self._cache, self._trash, self._volumes, self._pins),
            budget or Budget(),
            disk or disk_of(root),
            quotas=dict(quotas or {}),
            default_quota=default_quota,
        )
        self._mutex = threading.RLock()
        # Both are taken before the mutex, and never one inside the other.
        self._showing = KeyedLocks()  # by the volume's ID
        self._changing = KeyedLocks()  # by the key of a partial dataset
        self._unpacking = threading.Lock()
        self._lock_fd = -1
        self._log = get_logger("dataset")

    def open(self) -> None:
        """Takes the directory and puts in order what an earlier service has left.

        Raises:
            LockedError: Another service has it.
            StorageError: It cannot be written.
            MountError: The mount table cannot be read.
        """
        try:
            for directory in (self._paths.root, *self._paths.directories):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(self._paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise LockedError(
                f"{self._paths.root} is in use by another dataset service; stop it first"
            ) from error
        except OSError as error:
            self.close()
            raise StorageError(f"cannot use {self._paths.root}: {error.strerror}; {remedy(error)}") from error
        with self._mutex:
            with os_errors_as(StorageError, f"cannot read {self._paths.root}"):
                self._trash.open()
                self._cache.reconcile()
                self._volumes.reconcile(self._pod_is_there)
                self._room.tidy()
            oldest = self._clock() - _STALE_SECONDS
            for key, metadata in self._cache.parts.items():
                if metadata.created < oldest:
                    self._cache.discard(key)

    def interrupt(self) -> None:
        """Has no fetch wait for room any more; the end is near."""
        self._trash.interrupt()

    def close(self) -> None:
        """Gives the directory back; what is mounted stays, and what is in the trash."""
        self._trash.close()
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)

    # What is in the cache

    @property
    def evictions(self) -> int:
        """Complete datasets that were deleted since the start to make room or on request."""
        return self._room.evictions

    def ready(self, key: str) -> DatasetMetadata | None:
        """What is known of a complete dataset; None where there is none.

        One whose file is not what it was is read again, and removed unless its digest is the same.
        """
        if key not in self._cache.ready:
            return None
        with self._pinned(key):
            sound = self._cache.intact(key)
        with self._mutex:
            if sound:
                return self._cache.ready.get(key)
            if key in self._cache.ready:
                self._log.error("removed from the cache: the image is damaged", key=key)
                try:
                    self._room.drop(key)
                except OSError as error:
                    self._cache.forget(key)
                    self._log.warning("not removed", key=key, detail=f"{error.strerror}; {remedy(error)}")
            return None

    def stored(self) -> tuple[StoredDataset, ...]:
        """Everything that is in the cache."""
        with self._mutex:
            points = {mount.point for mount in self._mounts.table()}
            datasets = [(metadata, True) for metadata in self._cache.ready.values()]
            datasets += [(metadata, False) for metadata in self._cache.parts.values()]
            return tuple(
                StoredDataset(
                    metadata,
                    complete,
                    self._cache.last_used(metadata.key) if complete else metadata.created,
                    self._volumes.holders(metadata.key),
                    len(self._pins.waiting(metadata.key)),
                    str(self._paths.mount(metadata.key)) in points,
                )
                for metadata, complete in datasets
            )

    def records(self) -> Mapping[str, VolumeRecord]:
        """The volumes by ID, those of which nothing is mounted yet included."""
        with self._mutex:
            return self._volumes.records

    def room(self) -> int:
        """The bytes that are free for datasets, those in the trash included. Raises StorageError."""
        with self._mutex:
            return self._room.free()

    @property
    def trash_bytes(self) -> int:
        """The bytes of the disk that what was deleted still takes."""
        return self._trash.coming + self._trash.stuck

    @property
    def trash_failures(self) -> int:
        """Attempts since the start to remove something from the trash that failed."""
        return self._trash.failures

    # Fetching

    def pin(self, volume: Volume, metadata: DatasetMetadata) -> None:
        """Counts a volume's task among those that wait for a dataset or use it, until `unpin` or `remove`.

        Raises:
            QuotaError: The namespace would use more bytes than it may.
        """
        with self._mutex:
            self._room.check_quota(volume.namespace, metadata)
            self._pins.add(volume, metadata.key, metadata.size)

    def unpin(self, volume_id: str, key: str) -> None:
        """Ends what `pin` began. The dataset may still be in use as a mounted one."""
        with self._mutex:
            self._pins.remove(volume_id, key)
            self._cache.touch(key)

    def begin_fetch(self, metadata: DatasetMetadata) -> PartialImage:
        """Makes room for a dataset and the file that it is fetched into, or takes the one that is there.

        It is in use from now on, whichever pod waits for it, until `complete`, `discard` or `rest`. The room may be
        that of datasets that have just been deleted: it is promised at once, and waited for without the lock.

        Raises:
            CacheFullError: There is no room, and nothing was deleted; or the file system refuses it after all.
            DatasetError: It cannot be written.
        """
        with self._changing.held(metadata.key):
            with self._mutex:
                recorded = self._cache.parts.get(metadata.key)
                if recorded is None or recorded.size != metadata.size:
                    self._room.make(metadata)
                part = self._cache.promise(metadata)
                self._pins.begin_fetch(metadata.key)
            try:
                if not part.resumed:
                    self._await_room(metadata.key, room_for(metadata.size))
                self._cache.reserve(part)
            except BaseException:
                with self._mutex:
                    self._pins.end_fetch(metadata.key)
                    if not part.resumed:
                        self._cache.discard(metadata.key)
                raise
            with self._mutex:
                self._cache.keep_promise(metadata.key)
            return part

    def _await_room(self, key: str, size: int) -> None:
        """Waits until the trash has given back so much room, or all that it has.

        Raises:
            DatasetError: The service ends.
            StorageError: The file system does not say its size.
        """
        last = self._trash.last
        while True:
            steps = self._trash.steps
            with self._mutex:
                if self._room.has_room(key, size):
                    return
            if not self._trash.wait(steps, last):
                if self._trash.closed:
                    raise DatasetError("the dataset service ends; ask again")
                return  # nothing more comes; the file system has the last word

    def complete(self, part: PartialImage, digest: str) -> DatasetMetadata:
        """Takes a dataset all of whose bytes have arrived; DIGEST is the BLAKE3 of its file.

        Raises:
            ImageError: Its file has not the size it was begun with.
            LostWritesError: The disk has not kept its bytes; it is discarded.
            DatasetError: It was removed meanwhile, or cannot be stored; it is being fetched still.
        """
        try:
            with self._changing.held(part.key):
                self._cache.sync(part.key)  # it stays there, since it is being fetched
                metadata = self._cache.store(part.key, digest)
                with self._mutex:
                    self._cache.complete(metadata)
                    self._pins.end_fetch(part.key)
                    return metadata
        except LostWritesError:
            self.discard(part.key)
            raise

    def discard(self, key: str) -> None:
        """Removes what was fetched of a dataset."""
        with self._changing.held(key), self._mutex:
            self._pins.end_fetch(key)
            self._cache.discard(key)

    def end_fetch(self, key: str) -> None:
        """Ends a fetch. What has arrived stays, to be resumed, for as long as no other dataset needs the room."""
        with self._mutex:
            self._pins.end_fetch(key)

    # Volumes

    def placeholder(self, volume: Volume, directories: Sequence[str] = ()) -> None:
        """Publishes an empty volume, to be covered by `publish`. Raises RequestError, DatasetError and MountError."""
        with self._showing.held(volume.id):
            record = self._volumes.records.get(volume.id)
            self._note(volume, record.volume_sources if record else ())
            self._volumes.prepare(volume, directories)

    def publish(self, volume: Volume, volume_sources: Sequence[VolumeSource]) -> None:
        """Mounts a volume. What is mounted already is left as it is.

        Raises:
            ImageError: A dataset is not in the cache, or its image is damaged; it is removed then.
            RequestError: The volume's ID or target cannot be right.
            MountError: The kernel refuses.
            DatasetError: A file cannot be written.
        """
        for volume_source in volume_sources:
            if volume_source.key and self.ready(volume_source.key) is None:
                raise ImageError(
                    f"dataset {volume_source.name or volume_source.key} is not in the cache; it has to be fetched again"
                )
        keys = sorted({volume_source.key for volume_source in volume_sources if volume_source.key})
        with self._showing.held(volume.id), contextlib.ExitStack() as pinned:
            for key in keys:  # until its record keeps it from being deleted
                pinned.enter_context(self._pinned(key))
            for volume_source in volume_sources:
                if volume_source.key and volume_source.key not in self._cache.ready:
                    raise ImageError(
                        f"dataset {volume_source.name or volume_source.key} has just been removed; ask again"
                    )
            self._note(volume, volume_sources)
            sources = [
                Path(volume_source.path) if volume_source.path else self._mounted(volume_source.key)
                for volume_source in volume_sources
            ]
            self._volumes.show(volume, volume_sources, sources)

    def published(self, volume_id: str) -> bool:
        """Whether all of a volume is mounted."""
        with self._mutex:
            record = self._volumes.records.get(volume_id)
            return record is not None and self._volumes.shown(record.volume, record.volume_sources)

    def remove(self, volume_id: str, target: str) -> None:
        """Unmounts a volume and forgets it; there may be none. Raises MountError."""
        with self._showing.held(volume_id):
            self._volumes.clear(volume_id, target)
            with self._mutex:
                keys = self._volumes.forget(volume_id)
                for key in self._pins.of(volume_id):
                    self.unpin(volume_id, key)
                for key in keys:
                    self._cache.touch(key)

    # Deleting

    def evict(self, keys: Collection[str]) -> Mapping[str, str]:
        """Deletes datasets; their room comes back soon. Returns why not, by key, for those that stay."""
        with self._mutex:
            return self._room.evict(keys)

    def idle(self, seconds: float = 0.0) -> tuple[str, ...]:
        """The keys of what has not been used for so long, the longest unused first."""
        with self._mutex:
            return self._room.idle(self._clock() - seconds + (0.001 if seconds == 0 else 0.0))

    # Below

    def _note(self, volume: Volume, volume_sources: Sequence[VolumeSource]) -> None:
        record = self._volumes.write(volume, volume_sources)
        with self._mutex:
            self._volumes.know(record)

    @contextlib.contextmanager
    def _pinned(self, key: str) -> Iterator[None]:
        """Keeps a dataset from being deleted while the lock is not held."""
        with self._mutex:
            self._pins.begin_check(key)
        try:
            yield
        finally:
            with self._mutex:
                self._pins.end_check(key)

    def _mounted(self, key: str) -> Path:
        """Where a complete dataset can be read; it is mounted, or unpacked, where it is not yet."""
        if not self._mounts.has_erofs or self._paths.tree(key).is_dir():
            return self._unpacked(key)
        where = self._paths.mount(key)
        with self._mutex:
            if top_at(self._mounts.table(), str(where)) is None:
                try:
                    where.mkdir(mode=0o700, exist_ok=True)
                    self._mounts.image(self._paths.image(key), where)
                except OSError as error:
                    raise MountError(f"cannot make {where}: {error.strerror}", error.errno or 0) from error
                except MountError as error:
                    if error.number in (errno.EUCLEAN, errno.EINVAL):
                        raise ImageError(f"the kernel refuses the image {key}: {error}") from error
                    raise
        return where

    def _unpacked(self, key: str) -> Path:
        tree, fresh = self._paths.tree(key), self._paths.partial_tree(key)
        if tree.is_dir():
            return tree
        if self._unpack is None:
            raise MountError("the kernel has no EROFS; load its module (modprobe erofs)", errno.ENODEV)
        with self._pinned(key), self._unpacking:
            metadata = self._cache.ready.get(key)
            if tree.is_dir() or metadata is None:
                return tree
            with self._mutex:
                free = self._room.free()
            if free < metadata.size:
                raise CacheFullError(
                    f"no room to unpack {metadata.source}: the kernel has no EROFS, and its files need "
                    f"{format_bytes(metadata.size)} beside the image"
                )
            self._await_room("", metadata.size)
            try:
                self._unpack(self._paths.image(key), fresh)
                fresh.replace(tree)
                sync_directory(self._paths.objects)  # the image goes when the tree has its name for good
                self._cache.discard_image(key)
            except OSError as error:
                raise DatasetError(f"{metadata.source} not unpacked: {error.strerror or error}") from error
            finally:
                self._cache.discard_tree(key)
        return tree
