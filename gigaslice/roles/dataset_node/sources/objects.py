# SPDX-License-Identifier: Apache-2.0
"""Object stores as sources: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage, by obstore.

obstore's requests run without the interpreter's lock, and its connections, signatures and pages of listings are tested
by more people than ours would be. It retries without regard to what else waits: reads are retried by the fetch.

A read names the ETag of the listing (If-Match), and the answer's ETag and size are compared as well, since not every
server heeds the condition.
"""

from __future__ import annotations

from typing import Any

import obstore
from obstore import exceptions

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing, shown
from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.sources.object_stores import FAILURES, ObjectStores
from gigaslice.roles.dataset_node.sources.panics import panics_raised
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag, Sink, changed, give_range, in_thread

__all__ = ["ObjectSource"]

_STREAMED = 2 << 20  # larger ranges come in chunks, so that 64 of them do not fill the memory
_CHUNK = 1 << 20
_PAGE = 1000
_LIST_TRIES = 6


class ObjectSource:
    """The objects below PREFIX, or the one object of that name.

    Args:
        stores: Makes the clients.
        prefix: Without a last "/".
        parallel: How many reads at once.
    """

    def __init__(self, stores: ObjectStores, prefix: str, *, parallel: int = 64) -> None:
        self.parallel = parallel
        self.image = None
        self.weak = False
        self._stores = stores
        self._reading = stores.client(0)
        self._listing = stores.client(_LIST_TRIES)
        self._prefix = prefix.strip("/")
        self._what = stores.what
        self._single = False

    async def list(self, limits: Limits = Limits()) -> Listing:  # noqa: B008  (frozen)
        """Lists every object below the prefix. Raises as `DataSource.list`."""
        return await in_thread("dataset-list", lambda stop: self._list(limits, stop))

    def _list(self, limits: Limits, stop: CancelFlag) -> Listing:
        listed: list[Entry] = []
        text = 0
        try:
            with panics_raised():
                for page in obstore.list(self._listing, self._prefix or None, chunk_size=_PAGE):
                    entries = [self._entry(item) for item in page]
                    listed += entries
                    text += sum(len(entry.path) + len(entry.version) for entry in entries)
                    limits.check(len(listed), text)
                    if stop:
                        break
                if not listed and self._prefix:
                    item = self._listing.head(self._prefix)
                    self._single = True
                    listed.append(self._entry(item))
        except FileNotFoundError:
            raise SourceError(
                f"{self._what} has nothing at {shown(self._prefix.encode())}; check bucket and prefix"
            ) from None
        except (*FAILURES, OSError) as error:
            raise self._stores.failure(error, "the listing") from None
        return Listing.of(_without_markers(listed), limits)

    def _entry(self, item: Any) -> Entry:
        path = str(item["path"])
        name = (
            path.rpartition("/")[2] if self._single else path[len(self._prefix) + 1 if self._prefix else 0 :]
        )
        version = _quoted(item.get("e_tag")) or plain(
            str(item.get("version") or f"{item['size']}:{item['last_modified'].timestamp():.6f}")
        )
        return Entry(name.encode("utf-8", "surrogatepass"), EntryKind.FILE, int(item["size"]), version)

    def read_into(self, entry: Entry, offset: int, size: int, sink: Sink) -> None:
        """Reads a range of an object. Raises as `DataSource.read_into`."""
        key = self._prefix if self._single else "/".join(filter(None, (self._prefix, entry.path.decode())))
        tag = entry.version if entry.version.endswith('"') else ""
        # a weak tag matches no condition, and is compared all the same
        options: dict[str, Any] = {"if_match": tag} if tag.startswith('"') else {}
        if size != entry.size:
            options["range"] = (offset, offset + size)
        try:
            with panics_raised():
                answer = obstore.get(self._reading, key, options=options)  # type: ignore[arg-type]
                self._check(answer, entry, (offset, size), tag)
                chunks = (answer.bytes(),) if size <= _STREAMED else answer.stream(min_chunk_size=_CHUNK)
                give_range(entry, (offset, size), map(memoryview, chunks), sink, self._what)
        except FileNotFoundError:
            raise changed(entry.path, "was removed") from None
        except exceptions.PreconditionError:
            raise changed(entry.path, "was changed") from None
        except FAILURES as error:
            raise self._stores.failure(error, shown(entry.path), entry) from None

    def _check(self, answer: Any, entry: Entry, span: tuple[int, int], tag: str) -> None:
        offset, size = span
        meta = answer.meta
        if meta["size"] != entry.size:
            raise changed(entry.path, f"changed its size from {entry.size} to {meta['size']} bytes")
        if tag and meta["e_tag"] and _quoted(meta["e_tag"]) != tag:
            raise changed(entry.path, "was changed")
        if tuple(answer.range) != (offset, offset + size):
            raise SourceError(
                f"{self._what} gives another range of {shown(entry.path)} than asked", retry=True
            )

    async def close(self) -> None:
        """Connections end with the object."""
        self._stores.close()


def _quoted(tag: str | None) -> str:
    """An ETag in its quotes, which some servers leave out of listings."""
    if not tag:
        return ""
    return plain(tag) if tag.endswith('"') else f'"{plain(tag)}"'


def _without_markers(entries: list[Entry]) -> list[Entry]:
    """ENTRIES with empty objects that only stand for a directory made directories: consoles of stores create such."""
    parents: set[bytes] = set()
    for entry in entries:
        parent = entry.path.rpartition(b"/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            parent = parent.rpartition(b"/")[0]
    return [
        Entry(entry.path, EntryKind.DIRECTORY) if not entry.size and entry.path in parents else entry
        for entry in entries
        if entry.path
    ]
