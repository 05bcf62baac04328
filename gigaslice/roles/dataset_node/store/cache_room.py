# SPDX-License-Identifier: Apache-2.0
"""The room of the cache: what is in use, what is free, and what is deleted to make room.

A dataset is in use, and never deleted, while a volume has it, while it is mounted, and while it is pinned.
`gigaslice.core.dataset.eviction` chooses among the others. Not for several threads at once: `DatasetStore` locks.

Deleted files take room on the disk until the trash is empty. When datasets are chosen for deletion, that room counts as
free, since it will be. Room that is promised to fetches which wait for it counts as taken. `has_room` says when such a
wait is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gigaslice.core.dataset.errors import CacheFullError, QuotaError
from gigaslice.core.dataset.eviction import EvictionCandidate, idle_since, room_for, to_evict
from gigaslice.core.errors import StorageError
from gigaslice.core.units import format_bytes
from gigaslice.roles.dataset_node.mounts import MountError, Mounts, top_at
from gigaslice.roles.dataset_node.store.budget import Budget, DiskSpace
from gigaslice.roles.dataset_node.store.cache import Cache
from gigaslice.roles.dataset_node.store.documents import DatasetMetadata
from gigaslice.roles.dataset_node.store.pins import Pins
from gigaslice.roles.dataset_node.store.state_paths import StatePaths
from gigaslice.roles.dataset_node.store.trash import Trash
from gigaslice.roles.dataset_node.store.volumes import PublishedVolumes
from gigaslice.runtime.files import os_errors_as, remedy
from gigaslice.runtime.logs import get_logger

__all__ = ["CacheRoom", "StoreParts"]


_MOST_READINGS = (
    5  # of a disk that gets room all the time; the last one counts too little as free, not too much
)


@dataclass(frozen=True, slots=True)
class StoreParts:
    """All that a store has: its files, and who uses them."""

    paths: StatePaths
    mounts: Mounts
    cache: Cache
    trash: Trash
    volumes: PublishedVolumes
    pins: Pins


class CacheRoom:
    """The room of one store.

    Args:
        have: What the store has.
        budget: How much it may have.
        disk: The file system's size.
        quotas: Bytes in use by namespace.
        default_quota: The same for other namespaces; None: no limit.
    """

    def __init__(
        self,
        have: StoreParts,
        budget: Budget,
        disk: Callable[[], DiskSpace],
        *,
        quotas: Mapping[str, int],
        default_quota: int | None,
    ) -> None:
        self.disk = disk
        self.evictions = 0
        """Complete datasets that were deleted."""
        self._have = have
        self._budget = budget
        self._quotas = quotas
        self._default_quota = default_quota
        self._log = get_logger("dataset")

    def free(self) -> int:
        """The bytes that are free for datasets, with those that the trash gives back soon. Raises StorageError."""
        cache, trash = self._have.cache, self._have.trash
        missing, _ = cache.promised()
        disk, coming = self._looked()
        available = disk.available + coming - missing
        return self._budget.free(cache.used_bytes() + trash.stuck, DiskSpace(disk.size, available))

    def has_room(self, key: str, size: int) -> bool:
        """Whether the disk has room for SIZE bytes now, beside what was promised to others before this dataset.

        Raises:
            StorageError: The file system does not say its size.
        """
        cache, trash = self._have.cache, self._have.trash
        missing, later = cache.promised(key)
        disk, coming = self._looked()
        used = cache.used_bytes() - later + coming + trash.stuck
        return self._budget.free(used, DiskSpace(disk.size, disk.available - missing)) >= size

    def _looked(self) -> tuple[DiskSpace, int]:
        """The disk, and what the trash was about to give back at the same instant."""
        with os_errors_as(StorageError, f"cannot look at {self._have.paths.root}"):
            coming = self._have.trash.coming
            for _ in range(_MOST_READINGS):
                before, disk = coming, self.disk()
                coming = self._have.trash.coming
                if coming == before:
                    break
            return disk, coming

    def make(self, metadata: DatasetMetadata) -> None:
        """Deletes what has to be deleted for a dataset.

        Raises:
            CacheFullError: There is no room, and nothing was deleted; or something cannot be deleted.
            StorageError: The file system does not say its size.
        """
        free = self.free()
        chosen = to_evict(
            free, [entry for entry in self._entries() if entry.name != metadata.key], metadata.size
        )
        if chosen is None:
            raise CacheFullError(
                f"no room for {metadata.source}: it has {format_bytes(metadata.size)} and needs "
                f"{format_bytes(room_for(metadata.size))} free, {format_bytes(max(free, 0))} are, and what is in use "
                "cannot be deleted; give the cache more room, or use mode: local"
            )
        for key in chosen:
            try:
                self._delete(key)
            except OSError as error:
                raise CacheFullError(
                    f"no room for {metadata.source}: dataset {key[:12]}, which no pod uses, cannot be deleted: "
                    f"{error.strerror}; {remedy(error)}"
                ) from error
            self._log.info("evicted", key=key, room_for=metadata.source)

    def evict(self, keys: Collection[str]) -> Mapping[str, str]:
        """Deletes datasets. Returns why not, by key, for those that stay."""
        in_use, refused = self._in_use(), {}
        for key in keys:
            if key in in_use:
                refused[key] = self._why_in_use(key)
            elif key in self._have.cache.ready or key in self._have.cache.parts:
                try:
                    self._delete(key)
                except OSError as error:
                    refused[key] = f"not deleted: {error.strerror}; {remedy(error)}"
            else:
                refused[key] = "not in the cache"
        return refused

    def idle(self, before: float) -> tuple[str, ...]:
        """The keys of what has not been used since that time, the longest unused first."""
        return idle_since(self._entries(), before)

    def drop(self, key: str) -> None:
        """Deletes a complete dataset. Those who still read it go on; its room comes back when they are gone.

        Raises:
            OSError: It cannot be deleted, and stays.
        """
        where = self._have.paths.mount(key)
        with contextlib.suppress(MountError):
            self._have.mounts.unmount(where)
        with contextlib.suppress(OSError):
            where.rmdir()
        self._have.cache.delete(key)

    def tidy(self) -> None:
        """Unmounts at the store's own mount points what is not of a complete dataset, and removes the empty ones."""
        table, ready = self._have.mounts.table(), self._have.cache.ready
        for path in self._have.paths.mounted.iterdir():
            if path.name not in ready and top_at(table, str(path)) is not None:
                self._have.mounts.unmount(path)
            if path.name not in ready:
                with contextlib.suppress(OSError):
                    path.rmdir()

    def check_quota(self, namespace: str, metadata: DatasetMetadata) -> None:
        """Raises QuotaError: the namespace would use more bytes than it may."""
        quota = self._quotas.get(namespace, self._default_quota)
        if quota is None:
            return
        used = self._used_by(namespace, besides=metadata.key)
        if used + metadata.size > quota:
            raise QuotaError(
                f"namespace {namespace} may use {format_bytes(quota)} of datasets on a node, uses "
                f"{format_bytes(used)}, and {metadata.source} has {format_bytes(metadata.size)}; end a pod that uses "
                "another dataset, or have the quota raised"
            )

    def _delete(self, key: str) -> None:
        if key in self._have.cache.ready:
            self.drop(key)
            self.evictions += 1
        else:
            self._have.cache.discard(key)

    def _entries(self) -> list[EvictionCandidate]:
        in_use, cache = self._in_use(), self._have.cache
        ready = [
            EvictionCandidate(key, metadata.size, cache.last_used(key), key in in_use)
            for key, metadata in cache.ready.items()
        ]
        return ready + [
            EvictionCandidate(key, metadata.size, metadata.created, key in in_use)
            for key, metadata in cache.parts.items()
        ]

    def _in_use(self) -> frozenset[str]:
        return self._have.volumes.keys_in_use(self._have.mounts.table()) | self._have.pins.keys()

    def _why_in_use(self, key: str) -> str:
        users = {*self._have.volumes.holders(key), *self._have.pins.waiting(key)}
        if users:
            return f"in use by {', '.join(sorted({f'{user.namespace}/{user.pod}' for user in users}))}"
        fetching = self._have.pins.fetching(key)
        return "in use: it is being fetched" if fetching else "in use: it is still mounted"

    def _used_by(self, namespace: str, besides: str) -> int:
        sizes, ready = self._have.pins.sizes(namespace), self._have.cache.ready
        for record in self._have.volumes.records.values():
            if record.volume.namespace == namespace:
                sizes.update(
                    {
                        volume_source.key: ready[volume_source.key].size
                        for volume_source in record.volume_sources
                        if volume_source.key in ready
                    }
                )
        sizes.pop(besides, None)
        return sum(sizes.values())
