# SPDX-License-Identifier: Apache-2.0
"""Where a pack is put. This module has the directory; `object_place` has the object stores.

The image and the listing get names that follow from their digests, and the manifest is replaced last and in one step.
So a pack that is replaced is complete at every moment, for who has read the old manifest until the old files are
removed, which is after the new one is there to stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from gigaslice.core.dataset.errors import DatasetError, RequestError
from gigaslice.core.dataset.pack_manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, PackManifest
from gigaslice.roles.dataset_node.packing.image_file import ProgressShown, leftovers, removed
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag
from gigaslice.runtime.files import read_file, replace_file

__all__ = ["OWN_NAME", "DirectoryTarget", "PackTarget", "locked", "read_manifest", "tidied"]

OWN_NAME = re.compile(r"[0-9a-f]{16}\.(img|listing)")
"""The names that packing gives, and removes; no others."""


class PackTarget(Protocol):
    """Where a pack is put. Every method raises DatasetError, or OSError for a file of this machine."""

    def manifest(self) -> PackManifest:
        """The manifest of the pack that is there.

        Raises:
            RequestError: There is none.
            ImageError: It is damaged.
        """

    def other_file(self) -> str:
        """The name of something that is there and no pack's; "" where there is nothing. RequestError: no place."""

    def size(self, name: str) -> int | None:
        """Of one of the pack's files; none where it is not there."""

    def workspace(self) -> AbstractContextManager[Path]:
        """The directory in which the image is made, locked against another process."""

    def tidy(self) -> None:
        """Removes what an attempt that was killed has left on this machine, unless a process is packing to here."""

    def begin(self, name: str, listing: bytes) -> None:
        """Finds out whether the place can be written to, before hours are spent on the image."""

    def finish(
        self, image: Path, manifest: PackManifest, listing: bytes, progress: ProgressShown, stop: CancelFlag
    ) -> None:
        """Puts the pack there, its manifest last. IMAGE may be moved. It ends early once STOP is set."""

    def abandon(self) -> None:
        """Takes back what `begin` has done, after an error."""

    def remove(self, names: Iterable[str]) -> None:
        """Removes files of the pack that was replaced."""


class DirectoryTarget:
    """A directory of this machine, made where there is none. The image is made in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def manifest(self) -> PackManifest:
        """As `PackTarget.manifest`."""
        return read_manifest(self._directory)

    def other_file(self) -> str:
        """As `PackTarget.other_file`."""
        where = self._directory
        if not where.is_dir():
            if where.exists():
                raise RequestError(f"{where} is no directory; choose another place for the pack")
            return ""
        names = (path.name for path in where.iterdir() if not path.name.startswith("."))
        return min((name for name in names if not OWN_NAME.fullmatch(name)), default="")

    def size(self, name: str) -> int | None:
        """As `PackTarget.size`."""
        try:
            return (self._directory / name).stat().st_size
        except OSError:
            return None

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """As `PackTarget.workspace`."""
        self._directory.mkdir(exist_ok=True)
        with locked(self._directory, f"another process is packing into {self._directory}"):
            yield self._directory

    def tidy(self) -> None:
        """As `PackTarget.tidy`."""
        tidied(self._directory)

    def begin(self, name: str, listing: bytes) -> None:
        """Nothing: the image is made in the same place."""

    def finish(
        self, image: Path, manifest: PackManifest, listing: bytes, progress: ProgressShown, stop: CancelFlag
    ) -> None:
        """As `PackTarget.finish`. The image keeps its first name as well until all is done, for the next attempt."""
        where = self._directory
        _synced(image)
        image.chmod(0o644)
        replace_file(where / manifest.listing, listing, mode=0o644, sync=True)
        second = image.with_name(f"{image.name}.link")
        try:
            second.unlink(missing_ok=True)
            second.hardlink_to(image)
        except OSError:  # a file system without a second name for a file
            image.replace(where / manifest.image)
        else:
            second.replace(where / manifest.image)
            second.unlink(missing_ok=True)  # still there where both were names of the same file
        _synced(where)
        replace_file(where / MANIFEST_NAME, manifest.text().encode(), mode=0o644, sync=True)
        _synced(where)

    def abandon(self) -> None:
        """Nothing: the image is kept for the next attempt."""

    def remove(self, names: Iterable[str]) -> None:
        """As `PackTarget.remove`."""
        removed(self._directory / name for name in names)


def read_manifest(pack: Path) -> PackManifest:
    """The manifest of the directory PACK.

    Raises:
        RequestError: There is none.
        ImageError: It is damaged.
    """
    try:
        data = read_file(pack / MANIFEST_NAME, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise RequestError(
            f"{pack} is no pack: {MANIFEST_NAME}: {error.strerror}; `gigaslice dataset pack SRC DST` makes one"
        ) from None
    return PackManifest.parse(data, str(pack))


@contextlib.contextmanager
def locked(directory: Path, busy: str) -> Iterator[None]:
    """Holds DIRECTORY against another process. Raises DatasetError with BUSY where one has it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(f"{busy}; wait for its end") from None
        yield
    finally:
        os.close(fd)


def tidied(directory: Path) -> None:
    """Removes what attempts have left in DIRECTORY, unless another process has it, or it may only be read."""
    with contextlib.suppress(DatasetError, OSError), locked(directory, ""):
        removed(leftovers(directory))


def _synced(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
