# SPDX-License-Identifier: Apache-2.0
"""A prepared pack as a source: a few large ranges of one image instead of a read for each file.

`gigaslice dataset pack` has laid the image out as a node does it, so the place of every file in it is the place in the
node's image. The node plans the pack's listing itself, writes all of the metadata itself, and takes only the files'
bytes from the pack: no kernel mounts what a pack's author made. At the end the copy must have the digest of the
manifest; where it has not, the digests of the parts say which range is damaged.

The image's digest is a part of every file's version, so a pack that is made anew with other bytes is another dataset.
"""

from __future__ import annotations

from collections.abc import Callable

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import ImageError, ListingError, SourceError
from gigaslice.core.dataset.image import LAYOUT_VERSION
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing
from gigaslice.core.dataset.pack_manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, PackManifest
from gigaslice.roles.dataset_node.sources.protocol import DataSource, Sink, read_bytes

__all__ = ["Pack", "read_pack"]

_MOST_LISTING = 256 << 20
_CHUNK = 8 << 20


class Pack:
    """The image of a pack.

    Args:
        source: Where the pack's files are.
        manifest: Of the pack.
        image: The file of the image.
        what: How the pack is called in texts.
    """

    def __init__(self, source: DataSource, manifest: PackManifest, image: Entry, what: str) -> None:
        self._source = source
        self._manifest = manifest
        self._image = image
        self._what = what

    def read_into(self, offset: int, size: int, sink: Sink) -> None:
        """Gives SINK a range of the image. Raises as `ImageReader.read_into`."""
        self._source.read_into(self._image, offset, size, sink)

    def check(self, digest: str, read: Callable[[int, int], bytes]) -> None:
        """Compares the copy with the manifest. Raises as `ImageReader.check`."""
        manifest = self._manifest
        if digest == manifest.image_digest:
            return
        for part in manifest.ranges:
            digest_of_part = hasher()
            for at in range(part.offset, part.offset + part.size, _CHUNK):
                digest_of_part.update(read(at, min(_CHUNK, part.offset + part.size - at)))
            if digest_of_part.hexdigest() != part.blake3:
                raise SourceError(
                    f"the pack {self._what} is damaged between bytes {part.offset} and {part.offset + part.size} of "
                    f"{manifest.image}; copy it again, or make the pack anew"
                )
        raise SourceError(f"the pack {self._what} is not the one of its manifest; make the pack anew")


def read_pack(
    source: DataSource, find: Callable[[str], Entry | None], what: str, limits: Limits
) -> tuple[Pack, Listing] | None:
    """The pack in SOURCE, and its listing; none where there is no manifest of one. Blocking.

    Args:
        source: Where to read.
        find: A file of SOURCE by its name; none where there is none.
        what: How the pack is called in texts.
        limits: Of the listing.

    Raises:
        SourceError: The pack is damaged, of another layout, or cannot be read.
        ListingError: Its listing is no dataset.
    """
    entry = find(MANIFEST_NAME)
    if entry is None or not 0 < entry.size <= MAX_MANIFEST_BYTES:
        return None
    text = _read(source, entry)
    if b'"gigaslice-dataset-pack"' not in text:
        return None  # a file of the user's that has the same name
    try:
        manifest = PackManifest.parse(text)
    except ImageError as error:
        raise SourceError(f"{what}: {error}") from None
    if manifest.layout != LAYOUT_VERSION:
        raise SourceError(
            f"the pack {what} has layout {manifest.layout}, and this node makes {LAYOUT_VERSION}; make the pack anew"
        )
    image, listed = find(manifest.image), find(manifest.listing)
    if image is None or listed is None:
        raise SourceError(f"the pack {what} lacks {manifest.image} or {manifest.listing}; copy it again")
    if (image.size, listed.size) != (manifest.size, manifest.listing_size):
        raise SourceError(f"the pack {what} has files of other sizes than its manifest says; copy it again")
    if listed.size > _MOST_LISTING:
        raise ListingError(
            f"the listing of the pack {what} has {listed.size} bytes, and may have {_MOST_LISTING}; split the dataset"
        )
    limits.check(0, listed.size)
    data = _read(source, listed)
    if hasher(data).hexdigest() != manifest.listing_digest:
        raise SourceError(f"the pack {what} has another listing than its manifest says; copy it again")
    try:
        listing = Listing.decode(data, limits)
    except ListingError as error:
        raise ListingError(f"{what}: {error}") from None
    version = f"pack:{manifest.image_digest}"
    renamed = [
        entry._replace(version=version) if entry.kind is EntryKind.FILE else entry
        for entry in listing.entries
    ]
    return Pack(source, manifest, image, what), Listing.of(renamed, limits)


def _read(source: DataSource, entry: Entry) -> bytes:
    ranges = ((at, min(_CHUNK, entry.size - at)) for at in range(0, entry.size, _CHUNK))
    return b"".join(read_bytes(source, entry, at, size) for at, size in ranges)
