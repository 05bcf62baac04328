"""Makes a pack of a directory: its image, written by the fetch engine as on a node, its listing, and the manifest.

The image and the listing get names that follow from their digests, and the manifest is replaced last and in one step.
So a pack that is replaced is complete at every moment, for who has read the old manifest until the old files are
removed, which is after the new one is on the disk. What was written of an image is kept after an error and used by the
next attempt, as long as the source has not changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gigaslice.dataset.digest import hasher
from gigaslice.dataset.errors import CacheFullError, DatasetError, ImageError, RequestError, SourceError
from gigaslice.dataset.image import LAYOUT_VERSION, ImagePlan, plan, ranges
from gigaslice.dataset.listing import Listing
from gigaslice.dataset.pack_manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, PackManifest, PackRange
from gigaslice.dataset_node.fetching.bounds import Bounds
from gigaslice.dataset_node.fetching.engine import fetch
from gigaslice.dataset_node.fetching.progress import Meter
from gigaslice.dataset_node.sources.posix import PosixSource
from gigaslice.runtime.files import read_file, remedy, replace_file
from gigaslice.units import format_bytes

__all__ = ["ProgressShown", "image_hashed", "make_pack", "read_manifest"]

ProgressShown = Callable[[int, int], None]
"""Is told bytes done and in all, now and then."""

_POLL_SECONDS = 0.2
_CHUNK = 1 << 20
_NAME_DIGITS = 16
_PARTIAL = re.compile(r"\.[0-9a-f]{16}\.(image|bits)")
_OWN = re.compile(r"[0-9a-f]{16}\.(img|listing)")
_NO_PREALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class _Partial:
    """An image in the making, as the engine takes it."""

    image: Path
    bits: Path
    resumed: bool


def make_pack(
    source: Path, pack: Path, *, force: bool = False, progress: ProgressShown | None = None
) -> PackManifest:
    """Makes the directory PACK a pack of the files below SOURCE.

    Args:
        source: A directory; only read.
        pack: A directory; made where there is none.
        force: Replace a pack of something else.
        progress: Is called while bytes are read, and again while they are hashed.

    Returns:
        The manifest; that of the pack that is there already, when it is of the same listing.

    Raises:
        RequestError: PACK is in SOURCE, or has something else and FORCE is not given.
        SourceError: SOURCE cannot be read, or changed meanwhile.
        CacheFullError: There is no room for the image.
        DatasetError: PACK cannot be written.
    """
    source, pack = source.resolve(), pack.absolute()
    if pack.resolve() == source or source in pack.resolve().parents:
        raise RequestError(
            f"{pack} is in {source}, and the pack would be packed with it; choose a place outside of it"
        )
    shown = progress or (lambda done, total: None)
    try:
        return _make(source, pack, force, shown)
    except OSError as error:
        raise DatasetError(
            f"cannot write {error.filename or pack}: {error.strerror or error}; {remedy(error)}"
        ) from error


def _make(source: Path, pack: Path, force: bool, progress: ProgressShown) -> PackManifest:
    reader = PosixSource(source)
    try:
        listing = asyncio.run(reader.list())
        old = _accepted(pack, listing, force)
        if old is not None and _is_of(pack, old, listing):
            return old
        made = plan(listing)
        pack.mkdir(exist_ok=True)
        with _locked(pack):
            manifest = _write(reader, source, pack, made, progress)
            if old is not None:
                _remove(
                    pack / name
                    for name in (old.image, old.listing)
                    if _OWN.fullmatch(name) and name not in (manifest.image, manifest.listing)
                )
            return manifest
    finally:
        asyncio.run(reader.close())


def _accepted(pack: Path, listing: Listing, force: bool) -> PackManifest | None:
    """The pack that is there. Raises RequestError when something is that must not be replaced."""
    try:
        old = read_manifest(pack)
    except (ImageError, RequestError):
        old = None
        names = (
            sorted(one.name for one in pack.iterdir() if not one.name.startswith("."))
            if pack.is_dir()
            else []
        )
        if pack.exists() and not pack.is_dir():
            raise RequestError(f"{pack} is no directory; choose another place for the pack") from None
        if names and not force:
            raise RequestError(
                f"{pack} has other files ({names[0]}) and no pack; choose an empty directory, or --force adds one to it"
            ) from None
    if old is not None and old.listing_digest != listing.digest.hex() and not force:
        raise RequestError(
            f"{pack} is a pack of {old.source} with {old.files} files, {format_bytes(old.bytes)}; now there are "
            f"{listing.files} files, {format_bytes(listing.bytes)}, of other names, sizes, times; --force replaces it"
        )
    return old


def _is_of(pack: Path, old: PackManifest, listing: Listing) -> bool:
    """Whether the pack is complete and of LISTING; not whether its bytes are right, which takes as long as packing."""
    if old.listing_digest != listing.digest.hex() or old.layout != LAYOUT_VERSION:
        return False
    try:
        sizes = [(pack / name).stat().st_size for name in (old.image, old.listing)]
    except OSError:
        return False
    return sizes == [old.size, old.listing_size]


def read_manifest(pack: Path) -> PackManifest:
    """The manifest of PACK.

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
    return PackManifest.parse(data)


def _write(
    reader: PosixSource, source: Path, pack: Path, made: ImagePlan, progress: ProgressShown
) -> PackManifest:
    listing = made.listing
    stem = f".{listing.digest.hex()[:_NAME_DIGITS]}"
    image, bits = pack / f"{stem}.image", pack / f"{stem}.bits"
    _remove(
        one for one in pack.glob(".*") if one.name.endswith((".image", ".bits")) and one not in (image, bits)
    )
    partial = _Partial(image, bits, resumed=image.exists() and bits.exists())
    _allocated(image, made.size)
    try:
        digest = asyncio.run(_fetched(made, reader, partial, progress))
    except SourceError as error:
        if error.changed:
            _remove((image, bits))
        raise
    parts, found = image_hashed(image, made, progress)
    if found != digest:
        _remove((image, bits))
        raise ImageError(
            f"{image} was read back with other bytes than were written; check the disk, and pack again"
        )
    encoded = listing.encoded()
    manifest = PackManifest(
        source=str(source),
        layout=LAYOUT_VERSION,
        image=f"{digest[:_NAME_DIGITS]}.img",
        size=made.size,
        image_digest=digest,
        listing=f"{listing.digest.hex()[:_NAME_DIGITS]}.listing",
        listing_size=len(encoded),
        listing_digest=listing.digest.hex(),
        files=listing.files,
        bytes=listing.bytes,
        ranges=parts,
    )
    _synced(image)
    image.chmod(0o644)
    image.replace(pack / manifest.image)
    replace_file(pack / manifest.listing, encoded, mode=0o644, sync=True)
    _synced(pack)
    replace_file(pack / MANIFEST_NAME, manifest.text().encode(), mode=0o644, sync=True)
    _synced(pack)
    _remove((bits,))
    return manifest


async def _fetched(made: ImagePlan, reader: PosixSource, partial: _Partial, progress: ProgressShown) -> str:
    meters: list[Meter] = []
    task = asyncio.ensure_future(
        fetch(made, made.listing, reader, partial, bounds=Bounds(), task="pack", started=meters.append)
    )
    try:
        while not (await asyncio.wait((task,), timeout=_POLL_SECONDS))[0]:
            if meters:
                now = meters[0].now()
                progress(now.bytes, now.total_bytes)
    except BaseException:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, DatasetError):
            await task
        raise
    return task.result()


def image_hashed(image: Path, made: ImagePlan, progress: ProgressShown) -> tuple[tuple[PackRange, ...], str]:
    """The ranges of an image with their digests, and the digest of all, read from its file."""
    parts = []
    whole = hasher()
    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for one in ranges(made):
            digest, at, end = hasher(), one.offset, one.offset + one.size
            while at < end:
                data = os.pread(fd, min(_CHUNK, end - at), at)
                if not data:
                    raise ImageError(f"{image} ends at byte {at} of {made.size}; make the pack anew")
                digest.update(data)
                whole.update(data)
                at += len(data)
                progress(at, made.size)
            parts.append(PackRange(one.offset, one.size, one.files, digest.hexdigest()))
    finally:
        os.close(fd)
    return tuple(parts), whole.hexdigest()


def _allocated(image: Path, size: int) -> None:
    """Makes the file, with all its room on the disk."""
    fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        room = os.fstatvfs(fd)
        if size - os.fstat(fd).st_blocks * 512 > room.f_bavail * room.f_frsize:
            raise _no_room(image, size, room.f_bavail * room.f_frsize)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _no_room(image, size, room.f_bavail * room.f_frsize) from None
            if error.errno not in _NO_PREALLOCATION:
                raise
        os.ftruncate(fd, size)
    except CacheFullError:
        if not os.fstat(fd).st_size:
            image.unlink()
        raise
    finally:
        os.close(fd)


def _no_room(image: Path, size: int, free: int) -> CacheFullError:
    return CacheFullError(
        f"no room for the image in {image.parent}: it has {format_bytes(size)}, and {format_bytes(free)} are free; "
        "make room, or choose another file system"
    )


@contextlib.contextmanager
def _locked(pack: Path) -> Iterator[None]:
    fd = os.open(pack, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(f"another process is packing into {pack}; wait for its end") from None
        yield
    finally:
        os.close(fd)


def _remove(paths: Iterable[Path]) -> None:
    for one in paths:
        with contextlib.suppress(FileNotFoundError):
            one.unlink()


def _synced(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
