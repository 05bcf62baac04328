# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a pack, from a directory, or as a node reads them from elsewhere."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from gigaslice.core.dataset.errors import ImageError, RequestError, SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind
from gigaslice.core.dataset.pack_manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, PackManifest
from gigaslice.roles.dataset_node.packing.image_file import chunks_of
from gigaslice.roles.dataset_node.packing.pack_target import read_manifest
from gigaslice.roles.dataset_node.sources.opening import OpenedSource
from gigaslice.roles.dataset_node.sources.protocol import read_bytes
from gigaslice.roles.dataset_node.sources.retry import TRIES, backoff
from gigaslice.roles.dataset_node.sources.web_files import WebSource

__all__ = ["DirectoryPackReader", "PackReader", "SourcePackReader"]

_RANGE = 8 << 20
_AT_ONCE = 8


class PackReader(Protocol):
    """The files of a pack. Every method but `manifest` raises ImageError, or what the source raises."""

    def manifest(self) -> PackManifest:
        """As `read_manifest`."""

    def size(self, name: str) -> int:
        """Of a file."""

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """The SIZE bytes of a file, in order."""

    def called(self, name: str) -> str:
        """A file, in texts."""


class DirectoryPackReader:
    """The files of a directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def manifest(self) -> PackManifest:
        """As `PackReader.manifest`."""
        return read_manifest(self._directory)

    def size(self, name: str) -> int:
        """As `PackReader.size`."""
        try:
            return (self._directory / name).stat().st_size
        except OSError as error:
            raise self._unreadable(name, error) from error

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """As `PackReader.chunks`."""
        try:
            yield from chunks_of(self._directory / name)
        except OSError as error:
            raise self._unreadable(name, error) from error

    def called(self, name: str) -> str:
        """As `PackReader.called`."""
        return os.fspath(self._directory / name)

    def _unreadable(self, name: str, error: OSError) -> ImageError:
        return ImageError(f"{self.called(name)} cannot be read: {error.strerror}; copy the pack again")


class SourcePackReader:
    """The files of a source: several ranges are read at once, and given on in order.

    Args:
        source: Left open.
        text: How the pack is called.
    """

    def __init__(self, source: OpenedSource, text: str) -> None:
        self._source = source.inner
        self._text = text
        self._find: Callable[[str], Entry | None]
        if isinstance(source.inner, WebSource):
            self._find = source.inner.find
        else:
            listing = asyncio.run(source.inner.list())
            files = {entry.path: entry for entry in listing.entries if entry.kind is EntryKind.FILE}
            self._find = lambda name: files.get(name.encode())

    def manifest(self) -> PackManifest:
        """As `PackReader.manifest`."""
        entry = self._find(MANIFEST_NAME)
        if entry is None:
            raise RequestError(f"{self._text} is no pack; `gigaslice dataset pack SRC DST` makes one")
        if entry.size > MAX_MANIFEST_BYTES:
            raise ImageError(f"{self._text}: {MANIFEST_NAME} is too large for a manifest")
        return PackManifest.parse(b"".join(self.chunks(MANIFEST_NAME, entry.size)), self._text)

    def size(self, name: str) -> int:
        """As `PackReader.size`."""
        return self._entry(name).size

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """As `PackReader.chunks`."""
        entry = self._entry(name)
        waiting: deque[Future[bytes]] = deque()
        threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dataset-check")
        try:
            for at in range(0, size, _RANGE):
                waiting.append(threads.submit(self._read, entry, at, min(_RANGE, size - at)))
                if len(waiting) == _AT_ONCE:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def called(self, name: str) -> str:
        """As `PackReader.called`."""
        return f"{name} of {self._text}"

    def _entry(self, name: str) -> Entry:
        entry = self._find(name)
        if entry is None:
            raise ImageError(f"{self.called(name)} is not there; copy the pack again")
        return entry

    def _read(self, entry: Entry, offset: int, size: int) -> bytes:
        failures = 0
        while True:
            try:
                return read_bytes(self._source, entry, offset, size)
            except SourceError as error:
                failures += 1
                if not error.retry or failures >= TRIES:
                    raise
                time.sleep(backoff(failures))
