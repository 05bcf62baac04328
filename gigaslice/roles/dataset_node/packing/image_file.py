# SPDX-License-Identifier: Apache-2.0
"""The image of a pack in the making: a file of this machine, filled by the fetch engine as on a node.

What was written of it is kept after an error, or when the process is killed, and used by the next attempt, as long as
the source has not changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import CacheFullError, DatasetError, ImageError, SourceError
from gigaslice.core.dataset.image import ImagePlan, ranges
from gigaslice.core.dataset.pack_manifest import PackRange
from gigaslice.core.units import format_bytes
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.fetching.progress import ProgressMeter
from gigaslice.roles.dataset_node.sources.protocol import DataSource

__all__ = ["NAME_DIGITS", "ImageFile", "ProgressShown", "chunks_of", "hashed", "leftovers", "removed"]

ProgressShown = Callable[[str, int, int], None]
"""Is told what is done, bytes done and in all, now and then. It is called from threads, by one at a time."""

NAME_DIGITS = 16
"""How much of a digest is in a name."""
_LEFT = re.compile(rf"\.[0-9a-f]{{{NAME_DIGITS}}}\.(image|image\.link|bits)")
_POLL_SECONDS = 0.2
_CHUNK = 1 << 20
_NO_PREALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class ImageFile:
    """An image in DIRECTORY, with what has arrived of it beside it; those of other listings are removed.

    Attributes:
        image: The file.
        bits: What has arrived.
        resumed: Whether an earlier attempt has written to it.
    """

    def __init__(self, directory: Path, layout: ImagePlan) -> None:
        stem = f".{layout.listing.digest.hex()[:NAME_DIGITS]}"
        self.image, self.bits = directory / f"{stem}.image", directory / f"{stem}.bits"
        self._made = layout
        removed(path for path in leftovers(directory) if path not in (self.image, self.bits))
        self.resumed = self.image.exists() and self.bits.exists()

    def fill(self, reader: DataSource, progress: ProgressShown) -> tuple[str, tuple[PackRange, ...]]:
        """Fetches what is missing, and reads the image back.

        Returns:
            The image's BLAKE3, and its parts with theirs.

        Raises:
            SourceError: The source cannot be read, or changed meanwhile.
            CacheFullError: There is no room for the image.
            ImageError: The disk gives back other bytes than were written.
        """
        self._allocate()
        try:
            digest = asyncio.run(self._fetched(reader, progress))
        except SourceError as error:
            if error.changed:
                self.remove()
            raise
        parts, computed = hashed(chunks_of(self.image), self._made, lambda at, of: progress("hashed", at, of))
        if computed != digest:
            self.remove()
            raise ImageError(
                f"{self.image} was read back with other bytes than were written; check the disk, and pack again"
            )
        return digest, parts

    def remove(self) -> None:
        """Removes both files."""
        removed((self.image, self.bits))

    async def _fetched(self, reader: DataSource, progress: ProgressShown) -> str:
        meters: list[ProgressMeter] = []
        layout = self._made
        task = asyncio.ensure_future(
            fetch(
                layout, layout.listing, reader, self, bounds=FetchLimits(), task="pack", started=meters.append
            )
        )
        try:
            while not (await asyncio.wait((task,), timeout=_POLL_SECONDS))[0]:
                if meters:
                    now = meters[0].now()
                    progress("read", now.bytes, now.total_bytes)
        except BaseException:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, DatasetError):
                await task
            raise
        return task.result()

    def _allocate(self) -> None:
        """Makes the file, with all its room on the disk."""
        size = self._made.size
        fd = os.open(self.image, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            room = os.fstatvfs(fd)
            free = room.f_bavail * room.f_frsize
            if size - os.fstat(fd).st_blocks * 512 > free:
                raise self._no_room(free)
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise self._no_room(free) from None
                if error.errno not in _NO_PREALLOCATION:
                    raise
            os.ftruncate(fd, size)
        except CacheFullError:
            if not self.resumed:
                self.image.unlink()
            raise
        finally:
            os.close(fd)

    def _no_room(self, free: int) -> CacheFullError:
        return CacheFullError(
            f"no room for the image in {self.image.parent}: it has {format_bytes(self._made.size)}, and "
            f"{format_bytes(free)} are free; make room, or choose another file system"
        )


def leftovers(directory: Path) -> Iterator[Path]:
    """What attempts have left in DIRECTORY."""
    return (path for path in directory.glob(".*") if _LEFT.fullmatch(path.name))


def chunks_of(image: Path) -> Iterator[bytes]:
    """The bytes of a file in order."""
    with image.open("rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            yield data


def hashed(
    chunks: Iterable[bytes], layout: ImagePlan, progress: Callable[[int, int], None]
) -> tuple[tuple[PackRange, ...], str]:
    """The ranges of an image with their digests, and the digest of all.

    Raises:
        ImageError: There are too few bytes.
    """
    cuts = iter(ranges(layout))
    cut = next(cuts, None)
    parts = []
    whole, digest, at = hasher(), hasher(), 0
    for data in chunks:
        whole.update(data)
        view = memoryview(data)
        while cut is not None and view:
            piece = view[: cut.offset + cut.size - at]
            digest.update(piece)
            at += len(piece)
            view = view[len(piece) :]
            if at == cut.offset + cut.size:
                parts.append(PackRange(cut.offset, cut.size, cut.files, digest.hexdigest()))
                cut, digest = next(cuts, None), hasher()
        progress(at, layout.size)
    if at != layout.size:
        raise ImageError(f"the image ends at byte {at} of {layout.size}; make the pack anew")
    return tuple(parts), whole.hexdigest()


def removed(paths: Iterable[Path]) -> None:
    """Removes files, those that are gone already too."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
