# SPDX-License-Identifier: Apache-2.0
"""Where things are below the dataset service's state directory.

    objects/<key>.img    the image of one dataset version, complete; or <key>.tree, a directory, without EROFS
    objects/<key>.json   what is known of it; its mtime is the end of the last use
    partial/<key>.img    an image that is being fetched, with <key>.bits (what has arrived) and <key>.json
    records/<volume>.json   a volume that was published, or is about to be
    mnt/<key>            where the image is mounted
    trash/<name>         what has been deleted; it still takes room, and is never a dataset again
    lock                 held by the one service of this directory

No name comes from a user: a key is 64 hexadecimal digits, a volume's ID is checked before it gets here.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["StatePaths", "is_key", "is_volume_id", "sync_directory"]

_KEY = re.compile(r"[0-9a-f]{64}")
_VOLUME_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_key(text: str) -> bool:
    """Whether this is the key of a dataset version."""
    return _KEY.fullmatch(text) is not None


def is_volume_id(text: str) -> bool:
    """Whether this can be the name of a record."""
    return _VOLUME_ID.fullmatch(text) is not None


def sync_directory(path: Path) -> None:
    """Has what was renamed and removed in a directory on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class StatePaths:
    """The paths below one state directory."""

    root: Path

    @property
    def objects(self) -> Path:
        """Complete datasets."""
        return self.root / "objects"

    @property
    def partial(self) -> Path:
        """Datasets that are being fetched."""
        return self.root / "partial"

    @property
    def records(self) -> Path:
        """Published volumes."""
        return self.root / "records"

    @property
    def mounted(self) -> Path:
        """Mount points of datasets."""
        return self.root / "mnt"

    @property
    def trash(self) -> Path:
        """What has been deleted and not yet removed."""
        return self.root / "trash"

    @property
    def lock(self) -> Path:
        """The file that the running service has locked."""
        return self.root / "lock"

    @property
    def directories(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.objects, self.partial, self.records, self.mounted, self.trash)

    def image(self, key: str) -> Path:
        """A complete image."""
        return self.objects / f"{key}.img"

    def tree(self, key: str) -> Path:
        """A complete dataset as a directory."""
        return self.objects / f"{key}.tree"

    def metadata(self, key: str) -> Path:
        """What is known of a complete dataset."""
        return self.objects / f"{key}.json"

    def partial_image(self, key: str) -> Path:
        """An image that is being fetched."""
        return self.partial / f"{key}.img"

    def partial_tree(self, key: str) -> Path:
        """A directory that is being made of an image."""
        return self.partial / f"{key}.tree"

    def bits(self, key: str) -> Path:
        """What has arrived of it."""
        return self.partial / f"{key}.bits"

    def partial_metadata(self, key: str) -> Path:
        """What is known of it."""
        return self.partial / f"{key}.json"

    def mount(self, key: str) -> Path:
        """Where a complete image is mounted."""
        return self.mounted / key

    def record(self, volume_id: str) -> Path:
        """The record of a volume."""
        return self.records / f"{volume_id}.json"
