# SPDX-License-Identifier: Apache-2.0
"""Checks a pack: that every byte of it is what its listing and its digests say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from gigaslice.core.dataset.errors import ImageError, ListingError
from gigaslice.core.dataset.image import LAYOUT_VERSION, ImagePlan, plan
from gigaslice.core.dataset.listing import Listing
from gigaslice.core.dataset.pack_manifest import PackManifest
from gigaslice.roles.dataset_node.packing.image_file import ProgressShown, hashed
from gigaslice.roles.dataset_node.packing.pack_location import PackLocation, open_location
from gigaslice.roles.dataset_node.packing.pack_reader import DirectoryPackReader, PackReader, SourcePackReader

__all__ = ["check_pack"]


def check_pack(
    pack: PackLocation, source: PackLocation | None = None, progress: ProgressShown | None = None
) -> PackManifest:
    """Reads all of PACK.

    Args:
        pack: The directory, or where nodes read it.
        source: If given: the pack must be of what is there now.
        progress: Is called while the image is read.

    Returns:
        The manifest.

    Raises:
        RequestError: There is no pack.
        ImageError: It is not what it should be; the text says what differs.
        SourceError: SOURCE, or a pack elsewhere, cannot be read.
    """
    with _files(pack) as files:
        manifest = files.manifest()
        if manifest.layout != LAYOUT_VERSION:
            raise ImageError(
                f"{pack} has layout {manifest.layout}, and this version makes {LAYOUT_VERSION}; pack it anew"
            )
        listing = _listing(files, manifest)
        if source is not None and asyncio.run(_listed(source)).digest != listing.digest:
            raise ImageError(f"{source} has changed since {pack} was made; make the pack anew with --force")
        _check_image(files, manifest, plan(listing), progress or (lambda what, done, total: None))
        return manifest


@contextlib.contextmanager
def _files(pack: PackLocation) -> Iterator[PackReader]:
    if isinstance(pack, Path):
        yield DirectoryPackReader(pack)
        return
    source = asyncio.run(open_location(pack))
    try:
        yield SourcePackReader(source, str(pack))
    finally:
        asyncio.run(source.close())


def _listing(files: PackReader, manifest: PackManifest) -> Listing:
    what = files.called(manifest.listing)
    if files.size(manifest.listing) != manifest.listing_size:
        raise ImageError(
            f"{what} has not the {manifest.listing_size} bytes that the manifest says; copy the pack again"
        )
    try:
        listing = Listing.decode(b"".join(files.chunks(manifest.listing, manifest.listing_size)))
    except ListingError as error:
        raise ImageError(f"{what}: {error}; delete the pack, and make it anew") from error
    counts = listing.files, listing.bytes
    if listing.digest.hex() != manifest.listing_digest or counts != (manifest.files, manifest.bytes):
        raise ImageError(f"{what} is not the listing of the manifest; delete the pack, and make it anew")
    return listing


def _check_image(
    files: PackReader, manifest: PackManifest, layout: ImagePlan, progress: ProgressShown
) -> None:
    what = files.called(manifest.image)
    size = files.size(manifest.image)
    if size != layout.size or size != manifest.size:
        raise ImageError(
            f"{what} has {size} bytes, and its listing needs {layout.size}; delete the pack, and make it anew"
        )
    metadata = _Metadata(layout)
    parts, digest = hashed(
        metadata.compared(files.chunks(manifest.image, size)),
        layout,
        lambda done, total: progress("checked", done, total),
    )
    for computed, promised in zip(parts, manifest.ranges, strict=False):
        if computed != promised:
            end = computed.offset + computed.size
            raise ImageError(
                f"{what} differs from its manifest between bytes {computed.offset} and {end}; "
                "copy it again, or delete the pack and make it anew"
            )
    if parts != manifest.ranges or digest != manifest.image_digest:
        raise ImageError(f"{what} is not the image of its manifest; delete the pack, and make it anew")
    if metadata.differs is not None:
        raise ImageError(
            f"{what} is not laid out as its listing says, at byte {metadata.differs}; do not use it"
        )


class _Metadata:
    """Compares an image's metadata with what follows from the listing: a hostile image may have right digests, too.

    Attributes:
        differs: The first place where they differ; None so far.
    """

    def __init__(self, layout: ImagePlan) -> None:
        self._pieces = layout.metadata()
        self.differs: int | None = None

    def compared(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Gives CHUNKS on, which are the image in order."""
        at = 0
        piece = next(self._pieces, None)
        for chunk in chunks:
            end = at + len(chunk)
            while piece is not None and piece[0] < end:
                offset, data = piece
                mine = chunk[offset - at : offset - at + len(data)]
                if data[: len(mine)] != mine and self.differs is None:
                    self.differs = offset
                # the rest of what ends beyond the chunk is in the next one
                piece = (end, data[len(mine) :]) if offset + len(data) > end else next(self._pieces, None)
            yield chunk
            at = end


async def _listed(source: PackLocation) -> Listing:
    reader = await open_location(source)
    try:
        return await reader.list()
    finally:
        await reader.close()
