# SPDX-License-Identifier: Apache-2.0
"""Published volumes: their records, and the mounts that make them.

A record is written before the first mount of its volume and removed after the last, so a crash leaves a record too many
and never a mount that is not accounted for. What is mounted decides in the end: an operation begins with the mount
table, does what is missing, and can be repeated at any time. `DatasetStore` locks: one thread at a time for a volume,
and for the records where they change or are gone through (`know`, `forget`, `holders`, `keys_in_use`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gigaslice.core.dataset.errors import DatasetError, RequestError
from gigaslice.roles.dataset_node.mounts import MountEntry, MountError, Mounts, mount_errors, top_at
from gigaslice.roles.dataset_node.mounts.linux import EMPTY_SOURCE
from gigaslice.roles.dataset_node.store.documents import (
    DocumentError,
    Volume,
    VolumeRecord,
    VolumeSource,
    read_record,
    write_document,
)
from gigaslice.roles.dataset_node.store.state_paths import StatePaths, is_volume_id
from gigaslice.runtime.logs import get_logger

__all__ = ["PublishedVolumes"]

_MOST_LAYERS = 16  # of mounts at one point: an unmount that changes nothing must not be repeated for ever


class PublishedVolumes:
    """The volumes below PLACES, mounted by MOUNTS."""

    def __init__(self, paths: StatePaths, mounts: Mounts, clock: Callable[[], float]) -> None:
        self._paths = paths
        self._mounts = mounts
        self._clock = clock
        self._records: dict[str, VolumeRecord] = {}
        self._log = get_logger("dataset")

    @property
    def records(self) -> dict[str, VolumeRecord]:
        """By the volume's ID."""
        return dict(self._records)

    def holders(self, key: str) -> tuple[Volume, ...]:
        """The volumes that a dataset is in."""
        return tuple(
            record.volume
            for record in self._records.values()
            if any(volume_source.key == key for volume_source in record.volume_sources)
        )

    def keys_in_use(self, table: Sequence[MountEntry]) -> frozenset[str]:
        """The datasets that a volume has, or that are mounted anywhere but at their own mount points."""
        held = {
            volume_source.key
            for record in self._records.values()
            for volume_source in record.volume_sources
            if volume_source.key
        }
        own = str(self._paths.mounted)
        for mount in table:
            if not mount.point.startswith(f"{own}/"):
                held |= _keys_of(mount)
        return frozenset(held)

    def write(self, volume: Volume, volume_sources: Sequence[VolumeSource] = ()) -> VolumeRecord:
        """Writes the record of a volume; `know` takes it up. Without the lock of the records: it waits for the disk.

        Raises:
            RequestError: The volume's ID or target cannot be right.
            DatasetError: The record cannot be written.
        """
        if not is_volume_id(volume.id):
            raise RequestError(f"{volume.id!r} is no volume ID")
        if not Path(volume.target).is_absolute() or os.path.normpath(volume.target) != volume.target:
            raise RequestError(f"{volume.target!r} is no absolute path")
        previous = self._records.get(volume.id)
        record = VolumeRecord(volume, tuple(volume_sources), previous.created if previous else self._clock())
        if record == previous:
            return record
        try:
            write_document(self._paths.record(volume.id), record)
        except OSError as error:
            raise DatasetError(
                f"the record of {volume.namespace}/{volume.pod} not written: {error.strerror}"
            ) from error
        return record

    def know(self, record: VolumeRecord) -> None:
        """Counts a volume, whose record is on the disk."""
        self._records[record.volume.id] = record

    def prepare(self, volume: Volume, directories: Sequence[str]) -> None:
        """Mounts an empty placeholder, where nothing is mounted yet. Raises MountError."""
        where = Path(volume.target)
        if top_at(self._mounts.table(), volume.target) is not None:
            return
        with mount_errors(f"cannot make {where}"):
            where.mkdir(mode=0o750, exist_ok=True)
        self._mounts.empty(where, directories)

    def show(self, volume: Volume, volume_sources: Sequence[VolumeSource], sources: Sequence[Path]) -> None:
        """Mounts what is not mounted yet of a volume: SOURCES in the order of VOLUME_SOURCES. Raises MountError."""
        directories = [volume_source.directory for volume_source in volume_sources if volume_source.directory]
        if directories:
            self.prepare(volume, directories)
        for volume_source, source in zip(volume_sources, sources, strict=True):
            where = Path(volume.target) / volume_source.directory
            top = top_at(self._mounts.table(), str(where))
            if top is not None and top.source != EMPTY_SOURCE:
                if volume_source.key and volume_source.key not in _keys_of(top):
                    raise MountError(f"{where} is taken: {top.source} is mounted there; unmount it")
                continue
            if top is None and not volume_source.directory:
                with mount_errors(f"cannot make {where}"):
                    where.mkdir(mode=0o750, exist_ok=True)
            self._mounts.bind(source, where)

    def shown(self, volume: Volume, volume_sources: Sequence[VolumeSource]) -> bool:
        """Whether all of a volume is mounted."""
        table = self._mounts.table()
        tops = [
            (volume_source, top_at(table, str(Path(volume.target) / volume_source.directory)))
            for volume_source in volume_sources
        ]
        return bool(tops) and all(
            top is not None
            and top.source != EMPTY_SOURCE
            and (not volume_source.key or volume_source.key in _keys_of(top))
            for volume_source, top in tops
        )

    def clear(self, volume_id: str, target: str) -> None:
        """Unmounts a volume, and removes its record. There may be neither. Raises MountError."""
        record = self._records.get(volume_id)
        for where in {target, record.volume.target if record else target}:
            self._clear(where)
        if record is None:
            return
        with mount_errors(f"the record of {volume_id} not removed"):
            self._paths.record(volume_id).unlink(missing_ok=True)

    def forget(self, volume_id: str) -> tuple[str, ...]:
        """Counts a volume no more that `clear` has unmounted. Returns the keys that it had; it may be unknown."""
        record = self._records.pop(volume_id, None)
        return (
            tuple(volume_source.key for volume_source in record.volume_sources if volume_source.key)
            if record is not None
            else ()
        )

    def reconcile(self, pod_is_there: Callable[[Volume], bool]) -> None:
        """Reads the records after a start, and forgets those of pods that are gone and have nothing mounted.

        Raises:
            OSError: The directory cannot be read.
            MountError: The mount table cannot be read.
        """
        self._records = {}
        for path in sorted(self._paths.records.iterdir()):
            if path.name.startswith("."):  # a record was being replaced when the service ended
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            try:
                record = read_record(path)
                if path.name != f"{record.volume.id}.json":
                    raise DocumentError(f"{path} is the record of {record.volume.id}")
            except DocumentError as error:
                self._log.warning(
                    "record left out: what it is about counts by what is mounted", detail=str(error)
                )
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            self._records[record.volume.id] = record
        table = self._mounts.table()
        for record in list(self._records.values()):
            volume = record.volume
            mounted = any(
                mount.point == volume.target or mount.point.startswith(f"{volume.target}/") for mount in table
            )
            if not mounted and not pod_is_there(volume):
                self._paths.record(volume.id).unlink(missing_ok=True)
                del self._records[volume.id]

    def _clear(self, target: str) -> None:
        for _ in range(_MOST_LAYERS):
            below = [
                mount.point
                for mount in self._mounts.table()
                if mount.point == target or mount.point.startswith(f"{target}/")
            ]
            if not below:
                break
            for point in sorted(below, key=len, reverse=True):
                self._mounts.unmount(Path(point))
        else:
            raise MountError(f"{target} is still mounted; unmount it by hand")
        with mount_errors(f"cannot remove {target}"), contextlib.suppress(FileNotFoundError):
            Path(target).rmdir()


def _keys_of(mount: MountEntry) -> frozenset[str]:
    """The dataset that a mount shows: its source is the image, or its root is the directory."""
    keys = set()
    for path, suffix in ((mount.source, ".img"), (mount.root, ".tree")):
        parent, _, name = path.rpartition("/")
        if parent.endswith("/objects") and name.endswith(suffix):
            keys.add(name.removesuffix(suffix))
    return frozenset(keys)
