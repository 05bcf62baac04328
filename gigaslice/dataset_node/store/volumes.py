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

from gigaslice.dataset.errors import DatasetError, RequestError
from gigaslice.dataset_node.mounts import MountEntry, MountError, Mounts, top_at
from gigaslice.dataset_node.mounts.linux import EMPTY_SOURCE
from gigaslice.dataset_node.store.documents import (
    DocumentError,
    Piece,
    Record,
    Volume,
    read_record,
    write_document,
)
from gigaslice.dataset_node.store.places import Places, is_volume_id
from gigaslice.runtime.logs import get_logger

__all__ = ["Volumes"]

_MOST_LAYERS = 16  # of mounts at one point: an unmount that changes nothing must not be repeated for ever


class Volumes:
    """The volumes below PLACES, mounted by MOUNTS."""

    def __init__(self, places: Places, mounts: Mounts, clock: Callable[[], float]) -> None:
        self._places = places
        self._mounts = mounts
        self._clock = clock
        self._records: dict[str, Record] = {}
        self._log = get_logger("dataset")

    @property
    def records(self) -> dict[str, Record]:
        """By the volume's ID."""
        return dict(self._records)

    def holders(self, key: str) -> tuple[Volume, ...]:
        """The volumes that a dataset is in."""
        return tuple(
            record.volume for record in self._records.values() if any(one.key == key for one in record.pieces)
        )

    def keys_in_use(self, table: Sequence[MountEntry]) -> frozenset[str]:
        """The datasets that a volume has, or that are mounted anywhere but at their own mount points."""
        held = {one.key for record in self._records.values() for one in record.pieces if one.key}
        own = str(self._places.mounted)
        for one in table:
            if not one.point.startswith(f"{own}/"):
                held |= _keys_of(one)
        return frozenset(held)

    def write(self, volume: Volume, pieces: Sequence[Piece] = ()) -> Record:
        """Writes the record of a volume; `know` takes it up. Without the lock of the records: it waits for the disk.

        Raises:
            RequestError: The volume's ID or target cannot be right.
            DatasetError: The record cannot be written.
        """
        if not is_volume_id(volume.id):
            raise RequestError(f"{volume.id!r} is no volume ID")
        if not Path(volume.target).is_absolute() or os.path.normpath(volume.target) != volume.target:
            raise RequestError(f"{volume.target!r} is no absolute path")
        known = self._records.get(volume.id)
        record = Record(volume, tuple(pieces), known.created if known else self._clock())
        if record == known:
            return record
        try:
            write_document(self._places.record(volume.id), record)
        except OSError as error:
            raise DatasetError(
                f"the record of {volume.namespace}/{volume.pod} not written: {error.strerror}"
            ) from error
        return record

    def know(self, record: Record) -> None:
        """Counts a volume, whose record is on the disk."""
        self._records[record.volume.id] = record

    def prepare(self, volume: Volume, directories: Sequence[str]) -> None:
        """Mounts an empty placeholder, where nothing is mounted yet. Raises MountError."""
        where = Path(volume.target)
        if top_at(self._mounts.table(), volume.target) is not None:
            return
        try:
            where.mkdir(mode=0o750, exist_ok=True)
        except OSError as error:
            raise MountError(f"cannot make {where}: {error.strerror}", error.errno or 0) from error
        self._mounts.empty(where, directories)

    def show(self, volume: Volume, pieces: Sequence[Piece], sources: Sequence[Path]) -> None:
        """Mounts what is not mounted yet of a volume: SOURCES in the order of PIECES. Raises MountError."""
        directories = [one.directory for one in pieces if one.directory]
        if directories:
            self.prepare(volume, directories)
        for piece, source in zip(pieces, sources, strict=True):
            where = Path(volume.target) / piece.directory
            top = top_at(self._mounts.table(), str(where))
            if top is not None and top.source != EMPTY_SOURCE:
                if piece.key and piece.key not in _keys_of(top):
                    raise MountError(f"{where} is taken: {top.source} is mounted there; unmount it")
                continue
            if top is None and not piece.directory:
                try:
                    where.mkdir(mode=0o750, exist_ok=True)
                except OSError as error:
                    raise MountError(f"cannot make {where}: {error.strerror}", error.errno or 0) from error
            self._mounts.bind(source, where)

    def shown(self, volume: Volume, pieces: Sequence[Piece]) -> bool:
        """Whether all of a volume is mounted."""
        table = self._mounts.table()
        tops = [(one, top_at(table, str(Path(volume.target) / one.directory))) for one in pieces]
        return bool(tops) and all(
            top is not None and top.source != EMPTY_SOURCE and (not piece.key or piece.key in _keys_of(top))
            for piece, top in tops
        )

    def clear(self, volume_id: str, target: str) -> None:
        """Unmounts a volume, and removes its record. There may be neither. Raises MountError."""
        record = self._records.get(volume_id)
        for where in {target, record.volume.target if record else target}:
            self._clear(where)
        if record is None:
            return
        try:
            self._places.record(volume_id).unlink(missing_ok=True)
        except OSError as error:
            raise MountError(
                f"the record of {volume_id} not removed: {error.strerror}", error.errno or 0
            ) from error

    def forget(self, volume_id: str) -> tuple[str, ...]:
        """Counts a volume no more that `clear` has unmounted. Returns the keys that it had; it may be unknown."""
        record = self._records.pop(volume_id, None)
        return tuple(one.key for one in record.pieces if one.key) if record is not None else ()

    def reconcile(self, pod_is_there: Callable[[Volume], bool]) -> None:
        """Reads the records after a start, and forgets those of pods that are gone and have nothing mounted.

        Raises:
            OSError: The directory cannot be read.
            MountError: The mount table cannot be read.
        """
        self._records = {}
        for path in sorted(self._places.records.iterdir()):
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
                one.point == volume.target or one.point.startswith(f"{volume.target}/") for one in table
            )
            if not mounted and not pod_is_there(volume):
                self._places.record(volume.id).unlink(missing_ok=True)
                del self._records[volume.id]

    def _clear(self, target: str) -> None:
        for _ in range(_MOST_LAYERS):
            below = [
                one.point
                for one in self._mounts.table()
                if one.point == target or one.point.startswith(f"{target}/")
            ]
            if not below:
                break
            for point in sorted(below, key=len, reverse=True):
                self._mounts.unmount(Path(point))
        else:
            raise MountError(f"{target} is still mounted; unmount it by hand")
        try:
            Path(target).rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise MountError(f"cannot remove {target}: {error.strerror}", error.errno or 0) from error


def _keys_of(mount: MountEntry) -> frozenset[str]:
    """The dataset that a mount shows: its source is the image, or its root is the directory."""
    found = set()
    for path, suffix in ((mount.source, ".img"), (mount.root, ".tree")):
        parent, _, name = path.rpartition("/")
        if parent.endswith("/objects") and name.endswith(suffix):
            found.add(name.removesuffix(suffix))
    return frozenset(found)
