# SPDX-License-Identifier: Apache-2.0
"""Sources for tests of fetching: bytes that follow from the path, with delays, failures and counts."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing

LIMITS = Limits()


def contents(path: bytes, size: int, version: str = "1") -> bytes:
    """The bytes of a file: random, and always the same for the same path and version."""
    return random.Random(path + version.encode()).randbytes(size)


def files(sizes: dict[str, int], version: str = "1") -> Listing:
    """A listing of files of these sizes."""
    return Listing.of([Entry(path.encode(), EntryKind.FILE, size, version) for path, size in sizes.items()])


class MemorySource:
    """Gives `contents`; counts what it gives."""

    def __init__(
        self, listing: Listing, *, parallel: int = 64, delay: float = 0.0, chunk: int = 1 << 16
    ) -> None:
        self.parallel = parallel
        self.weak = False
        self.image = None
        self.listing = listing
        self.delay = delay
        self.chunk = chunk
        self.asked: Counter[tuple[bytes, int]] = Counter()
        self.given = 0
        self.under_way = self.most_under_way = 0
        self.before: Callable[[Entry, int], None] = lambda entry, offset: None
        self._lock = threading.Lock()
        self._made: dict[bytes, bytes] = {}

    async def list(self, limits: Limits = LIMITS) -> Listing:
        await asyncio.sleep(0)
        return self.listing

    def read_into(self, entry, offset, size, sink):
        with self._lock:
            self.asked[entry.path, offset] += 1
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            self.before(entry, offset)
            if self.delay:
                time.sleep(self.delay)
            data = self._made.get(entry.path)
            if data is None:
                data = self._made.setdefault(entry.path, contents(entry.path, entry.size, entry.version))
            for at in range(offset, offset + size, self.chunk):
                piece = data[at : min(at + self.chunk, offset + size)]
                sink(at, piece)
                with self._lock:
                    self.given += len(piece)
        finally:
            with self._lock:
                self.under_way -= 1

    async def close(self) -> None:
        pass


class Slow:
    """A source whose every read takes longer, as one on the other side of a network does."""

    def __init__(self, source, seconds: float) -> None:
        self._source = source
        self._seconds = seconds
        self.parallel = source.parallel
        self.weak = source.weak
        self.image = None

    async def list(self, limits: Limits = LIMITS) -> Listing:
        return await self._source.list(limits)

    def read_into(self, entry, offset, size, sink):
        time.sleep(self._seconds)
        self._source.read_into(entry, offset, size, sink)

    async def close(self) -> None:
        await self._source.close()


def refuse(text: str = "no", **attributes) -> Callable[[Entry, int], None]:
    """For `MemorySource.before`: every read fails."""

    def fail(entry: Entry, offset: int) -> None:
        raise SourceError(text, **attributes)

    return fail
