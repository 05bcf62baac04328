"""Checks a pack: that every byte of it is what its listing and its digests say."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gigaslice.dataset.errors import ImageError, ListingError
from gigaslice.dataset.image import LAYOUT_VERSION, ImagePlan, plan
from gigaslice.dataset.listing import Listing
from gigaslice.dataset.pack_manifest import PackManifest
from gigaslice.dataset_node.packing.make import ProgressShown, image_hashed, read_manifest
from gigaslice.dataset_node.sources.posix import PosixSource
from gigaslice.runtime.files import read_file

__all__ = ["check_pack"]


def check_pack(pack: Path, source: Path | None = None, progress: ProgressShown | None = None) -> PackManifest:
    """Reads all of PACK.

    Args:
        pack: The directory.
        source: If given: the pack must be of what this directory has now.
        progress: Is called while the image is read.

    Returns:
        The manifest.

    Raises:
        RequestError: There is no pack.
        ImageError: It is not what it should be; the text says what differs.
        SourceError: SOURCE cannot be read.
    """
    manifest = read_manifest(pack)
    if manifest.layout != LAYOUT_VERSION:
        raise ImageError(
            f"{pack} has layout {manifest.layout}, and this version makes {LAYOUT_VERSION}; pack it anew"
        )
    try:
        listing = Listing.decode(_bounded(pack / manifest.listing, manifest.listing_size))
    except ListingError as error:
        raise ImageError(f"{pack / manifest.listing}: {error}; make the pack anew") from error
    if listing.digest.hex() != manifest.listing_digest or (listing.files, listing.bytes) != (
        manifest.files,
        manifest.bytes,
    ):
        raise ImageError(f"{pack / manifest.listing} is not the listing of the manifest; make the pack anew")
    if source is not None and asyncio.run(_listed(source)).digest != listing.digest:
        raise ImageError(f"{source} has changed since {pack} was made; make the pack anew with --force")
    made = plan(listing)
    image = pack / manifest.image
    try:
        size = image.stat().st_size
        if size != made.size or size != manifest.size:
            raise ImageError(
                f"{image} has {size} bytes, and its listing needs {made.size}; make the pack anew"
            )
        parts, digest = image_hashed(image, made, progress or (lambda done, total: None))
        for one, promised in zip(parts, manifest.ranges, strict=False):
            if one != promised:
                raise ImageError(
                    f"{image} differs from its manifest between bytes {one.offset} and {one.offset + one.size}; "
                    "copy it again, or make the pack anew"
                )
        if parts != manifest.ranges or digest != manifest.image_digest:
            raise ImageError(f"{image} is not the image of its manifest; make the pack anew")
        _laid_out(image, made)
    except OSError as error:
        raise ImageError(f"{image} cannot be read: {error.strerror}; copy it again") from error
    return manifest


def _laid_out(image: Path, made: ImagePlan) -> None:
    """That the metadata is what follows from the listing: digests in a manifest are right for a hostile image, too."""
    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for offset, data in made.metadata():
            if os.pread(fd, len(data), offset) != data:
                raise ImageError(
                    f"{image} is not laid out as its listing says, at byte {offset}; do not use it"
                )
    finally:
        os.close(fd)


def _bounded(path: Path, size: int) -> bytes:
    try:
        data = read_file(path, size + 1)
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error.strerror}; copy the pack again") from None
    if len(data) != size:
        raise ImageError(f"{path} has not the {size} bytes that the manifest says; copy the pack again")
    return data


async def _listed(source: Path) -> Listing:
    reader = PosixSource(source)
    try:
        return await reader.list()
    finally:
        await reader.close()
