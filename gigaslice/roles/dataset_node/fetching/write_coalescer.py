# SPDX-License-Identifier: Apache-2.0
"""Joins writes of one thread to places side by side in the image, so that one call does for many small files.

A write costs the file system about as much as copying 16 KiB. Small files that are read one after the other are also
neighbours in the image. Their bytes are gathered, up to a few hundred KiB, and written when bytes for another place
follow, or when the thread asks for it. A unit may only count as fetched after that.

A file that begins with a block has its blocks to itself, with zeros behind its end. Where such zeros are all that is
between two files, they are written with them. Any other gap may hold metadata, and is not touched.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["WriteCoalescer"]

_ROOM = 256 << 10
_WHOLE = 64 << 10  # what is as large is written as it is: copying it would cost more than the call


class WriteCoalescer:
    """The writes of one thread.

    Args:
        write: Writes bytes at a place of the image.
        block: Bytes of the image's blocks.
    """

    def __init__(self, write: Callable[[int, bytes | bytearray | memoryview], None], block: int) -> None:
        self._write = write
        self._block = block
        self._room = memoryview(bytearray(_ROOM))
        self._start = self._end = 0
        self._unit = -1

    def begin(self, place: int) -> None:
        """Says that a unit's bytes follow, the first of them at PLACE."""
        gap = place - self._end
        if (
            0 < gap < self._block
            and self._end > self._start
            and not place % self._block
            and not self._unit % self._block
            and place - self._start <= _ROOM
        ):
            self._room[self._end - self._start : place - self._start] = bytes(gap)
            self._end = place
        self._unit = place

    def add(self, place: int, data: bytes | bytearray | memoryview) -> None:
        """Takes bytes of the unit that was begun, in order. Raises OSError."""
        size = len(data)
        after = place + size
        if place != self._end or after - self._start > _ROOM:
            self.flush()
            self._start = self._end = place
        if size >= _WHOLE:
            self.flush()
            self._write(place, data)
            self._start = self._end = after
        else:
            self._room[place - self._start : after - self._start] = data
            self._end = after

    def undo(self) -> None:
        """Leaves out what was not written yet of the unit that was begun last."""
        self._end = max(self._start, min(self._end, self._unit))
        self._unit = -1

    def flush(self) -> None:
        """Writes what was gathered. After an OSError, which it raises, the gathered bytes are gone."""
        start, end = self._start, self._end
        self._start = end
        if end > start:
            self._write(start, self._room[: end - start])
