# SPDX-License-Identifier: Apache-2.0
"""A layout of a dataset's image for tests of fetching: files one after another, and between them bytes of no file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gigaslice.core.dataset.listing import EntryKind, Listing

GAP = b"\xa5" * 7


class FlatLayout:
    """Every file is followed by a gap of metadata."""

    block_size = 1

    def __init__(self, listing: Listing, head: bytes = b"head" * 64) -> None:
        self._head = head
        self._extents = []
        at = len(head)
        for entry in listing.entries:
            if entry.kind is EntryKind.FILE:
                self._extents.append((at, entry.size))
                at += entry.size + len(GAP)
        self.size = at

    def extents(self):
        return iter(self._extents)

    def metadata(self):
        yield 0, self._head
        for offset, size in self._extents:
            yield offset + size, GAP


class PartFiles(NamedTuple):
    """What the store gives a fetch."""

    image: Path
    bits: Path
    size: int
    resumed: bool

    @staticmethod
    def begin(where: Path, size: int) -> PartFiles:
        """A new one, or the one that is there."""
        image, bits = where / "part.img", where / "part.bits"
        resumed = image.exists()
        if not resumed:
            bits.unlink(missing_ok=True)
            with image.open("wb") as file:
                file.truncate(size)
        return PartFiles(image, bits, size, resumed)
