# SPDX-License-Identifier: Apache-2.0
"""The units that a dataset is fetched in: each file, and each 8 MiB of a large one.

A unit is what a bit of the bitmap stands for, what a read asks for, and what is fetched again when it fails. Which
units there are follows from the plan alone, so a bitmap of another process means the same ones. They are numbered by
their place in the image. A million files cost some megabytes: three numbers each, and no object.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gigaslice.core.dataset.listing import Entry, EntryKind

__all__ = ["UNIT_BYTES", "FetchUnit", "Units"]

UNIT_BYTES = 8 << 20


class FetchUnit(NamedTuple):
    """A range of one file, and where it belongs."""

    number: int
    entry: Entry
    offset: int
    """In the file."""
    size: int
    place: int
    """In the image."""


class Units:
    """All units of a dataset.

    Args:
        entries: Of the listing; all but files are passed over.
        extents: Offset in the image and size of each file, in the listing's order.
        unit_bytes: The largest unit.
    """

    def __init__(
        self, entries: Sequence[Entry], extents: Iterable[tuple[int, int]], unit_bytes: int = UNIT_BYTES
    ) -> None:
        self._unit_bytes = unit_bytes
        self._entries: list[Entry] = []
        places = array("Q")
        files = (entry for entry in entries if entry.kind is EntryKind.FILE)
        for entry, (place, size) in zip(files, extents, strict=True):
            if size != entry.size:
                raise ValueError(f"the plan has {size} bytes for a file of {entry.size}")
            if size:
                self._entries.append(entry)
                places.append(place)
        order = range(len(places))
        if any(places[index] > places[index + 1] for index in range(len(places) - 1)):
            by_place = sorted(order, key=places.__getitem__)
            self._entries = [self._entries[index] for index in by_place]
            places = array("Q", [places[index] for index in by_place])
        self._paths = places
        self._first = array("Q")
        count = 0
        for entry in self._entries:
            self._first.append(count)
            count += -(-entry.size // unit_bytes)
        self.count = count
        self.bytes = sum(entry.size for entry in self._entries)
        self._simple = count == len(self._entries)
        self.fingerprint = zlib.crc32(places.tobytes(), unit_bytes)
        """Of where the units are: a bitmap of another layout means others."""

    def __getitem__(self, number: int) -> FetchUnit:
        file = number if self._simple else bisect_right(self._first, number) - 1
        entry = self._entries[file]
        offset = (number - self._first[file]) * self._unit_bytes
        return FetchUnit(
            number, entry, offset, min(self._unit_bytes, entry.size - offset), self._paths[file] + offset
        )

    def place(self, number: int) -> int:
        """Where the unit NUMBER begins in the image."""
        if self._simple:
            return self._paths[number]
        return self[number].place
