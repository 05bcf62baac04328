# SPDX-License-Identifier: Apache-2.0
"""A pack in an object store: made in a scratch directory of this machine, and put there in parts.

An object is there as a whole or not at all, so nothing that is killed leaves half of one; the parts that a killed
upload leaves are no object, and a rule of the bucket removes them. The listing is put there first, being small: a
bucket that is missing, or that may not be written to, is found before hours are spent. Sizes are read back before the
manifest is put there, which makes a pack of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import obstore

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import DatasetError, ImageError, RequestError, SourceError
from gigaslice.core.dataset.pack_manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, PackManifest
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.packing.image_file import ProgressShown
from gigaslice.roles.dataset_node.packing.pack_target import OWN_NAME, locked, tidied
from gigaslice.roles.dataset_node.sources.object_stores import FAILURES, ObjectStores
from gigaslice.roles.dataset_node.sources.panics import panics_raised
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag

__all__ = ["ObjectStoreTarget", "part_bytes", "parts_at_once"]

_MOST_PARTS = 10_000
_LEAST_PART, _GRAIN = 16 << 20, 1 << 20
_MEMORY, _MOST_AT_ONCE = 256 << 20, 16
_TRIES = 8
_PIECE = 1 << 20
_DIGITS = 16


def part_bytes(size: int) -> int:
    """The size of the parts of an object of SIZE bytes: stores take 10,000 parts at most."""
    return max(_LEAST_PART, -(-size // (_MOST_PARTS * _GRAIN)) * _GRAIN)


def parts_at_once(part: int) -> int:
    """How many parts are sent at once: as many as 256 MiB hold, and one of any size."""
    return max(1, min(_MOST_AT_ONCE, _MEMORY // part))


class ObjectStoreTarget:
    """A prefix of a bucket.

    Args:
        stores: Makes the clients.
        spec: The place, with what the credentials say about it.
        scratch: A directory of this machine for the image.
    """

    def __init__(self, stores: ObjectStores, spec: SourceSpec, scratch: Path) -> None:
        self._stores = stores
        self._client = stores.client(_TRIES, writing=True)
        self._prefix = spec.path.strip("/")
        self._text = spec.canonical
        self._scratch = scratch
        self._own = scratch / f"gigaslice-pack-{hasher(self._text.encode()).hexdigest()[:_DIGITS]}"
        self._begun = ""

    def manifest(self) -> PackManifest:
        """As `PackTarget.manifest`."""
        what = f"{self._text} is no pack"
        with self._explained(f"reading {MANIFEST_NAME}"):
            try:
                answer = obstore.get(self._client, self._key(MANIFEST_NAME))
                if answer.meta["size"] > MAX_MANIFEST_BYTES:
                    raise ImageError(f"{what}: {MANIFEST_NAME} is too large for a manifest")
                data = bytes(answer.bytes())
            except FileNotFoundError:
                raise RequestError(f"{what}; `gigaslice dataset pack SRC DST` makes one") from None
        return PackManifest.parse(data, self._text)

    def other_file(self) -> str:
        """As `PackTarget.other_file`. A bucket that is not there is an error here."""
        with self._explained("the listing"):
            for page in obstore.list(self._client, self._prefix or None, chunk_size=1000):
                for item in page:
                    name = str(item["path"])[len(self._prefix) + 1 if self._prefix else 0 :]
                    if name and not OWN_NAME.fullmatch(name):
                        return plain(name)
        return ""

    def size(self, name: str) -> int | None:
        """As `PackTarget.size`."""
        with self._explained(f"asking for {name}"):
            try:
                return int(obstore.head(self._client, self._key(name))["size"])
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """As `PackTarget.workspace`: a directory below the scratch directory that is this place's alone."""
        where = self._own
        try:
            with contextlib.suppress(FileExistsError):
                where.mkdir(0o700)
            mine = _is_mine(where)
        except OSError as error:
            raise DatasetError(
                f"no room for the image in {self._scratch}: {error.strerror}; name another directory with --scratch"
            ) from None
        if not mine:
            raise DatasetError(
                f"{where} is not this user's own directory; remove it, or name another place with --scratch"
            )
        with locked(where, f"another process is packing into {self._text}"):
            try:
                yield where
            finally:
                with contextlib.suppress(OSError):  # after an error it has the image
                    where.rmdir()

    def tidy(self) -> None:
        """As `PackTarget.tidy`."""
        with contextlib.suppress(OSError):
            if _is_mine(self._own):
                tidied(self._own)
                self._own.rmdir()

    def begin(self, name: str, listing: bytes) -> None:
        """As `PackTarget.begin`: puts the listing there."""
        there = self.size(name)
        self._put(name, listing)
        if there is None:
            self._begun = name

    def finish(
        self, image: Path, manifest: PackManifest, listing: bytes, progress: ProgressShown, stop: CancelFlag
    ) -> None:
        """As `PackTarget.finish`."""
        self._upload(image, manifest, progress, stop)
        self._compare(manifest)
        if stop:
            raise _given_up()
        self._begun = ""
        self._put(MANIFEST_NAME, manifest.text().encode())
        if self.manifest() != manifest:
            raise SourceError(
                f"{self._text} has another manifest than was put there, perhaps another process's; "
                "check the pack with --check"
            )
        self._compare(manifest)  # another process that packs to here may have taken its own back

    def _compare(self, manifest: PackManifest) -> None:
        for name, size in ((manifest.image, manifest.size), (manifest.listing, manifest.listing_size)):
            if (stored_size := self.size(name)) != size:
                stored = "no" if stored_size is None else stored_size
                raise SourceError(
                    f"{self._text} has {stored} bytes of {name}, and {size} were put there; pack again"
                )

    def abandon(self) -> None:
        """As `PackTarget.abandon`."""
        if self._begun:
            with contextlib.suppress(DatasetError):
                self.remove((self._begun,))
            self._begun = ""

    def remove(self, names: Iterable[str]) -> None:
        """As `PackTarget.remove`."""
        for name in names:
            with self._explained(f"removing {name}"), contextlib.suppress(FileNotFoundError):
                obstore.delete(self._client, self._key(name))

    def _upload(self, image: Path, manifest: PackManifest, progress: ProgressShown, stop: CancelFlag) -> None:
        done, size = 0, manifest.size

        def pieces() -> Iterator[bytes]:
            nonlocal done
            with image.open("rb", buffering=0) as file:
                while data := file.read(_PIECE):
                    if stop:
                        raise _given_up()
                    yield data
                    done += len(data)
                    progress("uploaded", done, size)

        part = part_bytes(size)
        if size <= part:
            self._put(manifest.image, b"".join(pieces()))
            return
        with self._explained(f"writing {manifest.image}"):
            # an error of `pieces`, and one of the store, aborts the upload, and its parts are gone
            obstore.put(self._client, self._key(manifest.image), pieces(), use_multipart=True,
                        chunk_size=part, max_concurrency=parts_at_once(part))  # fmt: skip

    def _put(self, name: str, data: bytes) -> None:
        with self._explained(f"writing {name}"):
            obstore.put(self._client, self._key(name), data, use_multipart=len(data) > part_bytes(len(data)),
                        chunk_size=part_bytes(len(data)))  # fmt: skip

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    @contextlib.contextmanager
    def _explained(self, subject: str) -> Iterator[Any]:
        try:
            with panics_raised():
                yield
        except DatasetError:
            raise
        except OSError as error:
            if error.errno is not None:
                raise  # of a file of this machine
            if not isinstance(error, FileNotFoundError):
                raise self._stores.failure(error, subject) from None
            raise SourceError(
                f"{self._stores.what} is not there, or has nothing for {subject}; create the bucket, or check its name"
            ) from None
        except FAILURES as error:
            raise self._stores.failure(error, subject) from None


def _is_mine(directory: Path) -> bool:
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _given_up() -> DatasetError:
    return DatasetError("packing was given up; run the same command again to go on")
