# SPDX-License-Identifier: Apache-2.0
"""Files behind HTTP: those that an index lists, or one file that the address names.

HTTP has no listing of a directory; the pages that servers make for people differ and say no exact sizes. So a directory
needs an index beside its files, one JSON document: {"files": [{"path": "a/b.jpg", "size": 123, "version": "..."}]}.
Without a version the file's ETag, or its size and Last-Modified, is had by one HEAD for each. A version that is no ETag
is its author's word: the index is read again after the last file, and the ranges of one file must have one ETag. A
prepared pack is the better form of the same (`pack`), and rclone's `http` reads pages of servers that make them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote_to_bytes

from gigaslice.core.dataset.errors import ListingError, SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing, shown
from gigaslice.roles.dataset_node.sources.http_client import HttpClient, HttpResponse
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag, Sink, changed, give_range, in_thread
from gigaslice.roles.dataset_node.sources.web_index import index_entries

__all__ = ["WebSource", "read_range", "version_of"]

_HEADS = 32
_ETAG = ('"', 'W/"')
_Entries = list[Entry]


class WebSource:
    """The files below PATH on CLIENT's server.

    Args:
        client: The server.
        path: The path of the address, unquoted, without a last "/".
        index: Name of the index file; the address is one file where the server has none of that name.
        parallel: How many reads at once.
        index_bytes: A longer index is refused.
    """

    def __init__(
        self,
        client: HttpClient,
        path: str,
        *,
        index: str = "index.json",
        parallel: int = 64,
        index_bytes: int = 1 << 30,
    ) -> None:
        self.parallel = parallel
        self.image = None
        self.weak = False
        self._client = client
        self._base = quote(path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self._index = index
        self._index_bytes = index_bytes
        self._single = b""
        self._etags: dict[bytes, str] = {}  # of files that are read by several ranges

    async def list(self, limits: Limits = Limits()) -> Listing:  # noqa: B008  (frozen)
        """Reads the index, or asks for the one file. Raises as `DataSource.list`."""
        return await in_thread("dataset-list", lambda stop: self._list(limits, stop))

    def find(self, name: str) -> Entry | None:
        """A file by its name, which no listing has; none where the server has none. Blocking. Raises SourceError."""
        where = f"{self._base}/{quote(name)}"
        with self._client.request(where, "HEAD") as answer:
            if answer.status in (400, 403, 404, 405, 410) or answer.length is None:
                return None
            if answer.status != 200:
                raise self._client.failure(answer, where)
            return Entry(name.encode(), EntryKind.FILE, answer.length, version_of(answer, answer.length))

    def _list(self, limits: Limits, stop: CancelFlag) -> Listing:
        where = f"{self._base}/{quote(self._index)}"
        with self._client.request(where) as answer:
            if answer.status == 200:
                document = _document(self._client, answer, self._index_bytes)
                entries = list(index_entries(document, where, limits))
                return Listing.of(self._versions(entries, stop), limits)
            if answer.status not in (400, 403, 404, 405, 410):
                raise self._client.failure(answer, where)
        return Listing.of([self._one_file()], limits)

    def _one_file(self) -> Entry:
        name = unquote_to_bytes(self._base.rpartition("/")[2])
        what = self._base or "/"
        with self._client.request(what, "HEAD") as answer:
            if answer.status != 200:
                raise self._client.failure(answer, what)
            if not name or answer.length is None:
                raise SourceError(
                    f"{self._client.base.netloc}{what} is a directory without {self._index}, or a file without a size; "
                    "prepare a pack (gigaslice dataset pack), add an index, or use rclone's http"
                )
            self._single = name
            self.weak = not answer.header("ETag")
            return Entry(name, EntryKind.FILE, answer.length, version_of(answer, answer.length))

    def _versions(self, entries: _Entries, stop: CancelFlag) -> _Entries:
        """ENTRIES with versions where the index has none, by one HEAD each."""
        missing: list[int] = []
        for index, entry in enumerate(entries):
            if not entry.version:
                missing.append(index)
            elif not entry.version.startswith(_ETAG):
                self.weak = True
        left = iter(missing)  # each thread takes the next one
        failures: list[BaseException] = []

        def work() -> None:
            for index in left:
                if failures or stop:
                    return
                try:
                    entries[index] = self._with_version(entries[index])
                except BaseException as error:  # noqa: BLE001  (of a file without a version nothing would be compared)
                    failures.append(error)

        threads = [threading.Thread(target=work, name="dataset-list", daemon=True) for _ in range(_HEADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return entries

    def _with_version(self, entry: Entry) -> Entry:
        where = self._target(entry)
        with self._client.request(where, "HEAD") as answer:
            if answer.status != 200:
                raise self._client.failure(answer, where)
            if answer.length is not None and answer.length != entry.size:
                raise SourceError(
                    f"{shown(entry.path)} has {answer.length} bytes, and {self._index} says {entry.size}; "
                    "make the index anew"
                )
            if not answer.header("ETag"):
                self.weak = True
            return entry._replace(version=version_of(answer, entry.size))

    def _target(self, entry: Entry) -> str:
        return self._base if self._single else f"{self._base}/{quote(entry.path)}"

    def read_into(self, entry: Entry, offset: int, size: int, sink: Sink) -> None:
        """Reads a range of a file. Raises as `DataSource.read_into`."""
        read_range(self._client, self._target(entry), entry, (offset, size), sink, etags=self._etags)

    async def close(self) -> None:
        """Closes the connections."""
        self._client.close()


def read_range(
    client: HttpClient,
    target: str,
    entry: Entry,
    span: tuple[int, int],
    sink: Sink,
    *,
    etags: dict[bytes, str] | None = None,
) -> None:
    """Gives SINK the SPAN (offset and size) of ENTRY, which is at TARGET; every claim of the server is checked.

    ETAGS keeps, by path, what the first range of a file had, so that no file is of two versions.

    Raises:
        SourceError: As `DataSource.read_into`.
    """
    offset, size = span
    whole = offset == 0 and size == entry.size
    headers = {} if whole else {"Range": f"bytes={offset}-{offset + size - 1}"}
    if entry.version.startswith('"'):
        headers["If-Match"] = entry.version
    with client.request(target, headers=headers) as answer:
        _check(client, answer, entry, span)
        etag = answer.header("ETag")
        if etags is not None and etag and not whole and etags.setdefault(entry.path, etag) != etag:
            raise changed(entry.path, "was changed")
        give_range(entry, span, client.body(answer, size), sink, client.base.netloc or "rclone")


def _check(client: HttpClient, answer: HttpResponse, entry: Entry, span: tuple[int, int]) -> None:
    offset, size = span
    if answer.status in (404, 410):
        raise changed(entry.path, "was removed")
    if answer.status in (412, 416):
        raise changed(entry.path, "was changed")
    if answer.status not in (200, 206):
        raise client.failure(answer, shown(entry.path))
    if answer.header("Content-Encoding") not in ("", "identity"):
        raise SourceError(
            f"{client.base.netloc} compresses {shown(entry.path)} though told not to; mend the server"
        )
    if answer.status == 200 and size != entry.size:
        raise SourceError(
            f"{client.base.netloc} gives no ranges of files, and {shown(entry.path)} is fetched in several; "
            "use a server that does"
        )
    total = answer.length if answer.status == 200 else answer.total
    if total is not None and total != entry.size:
        raise changed(entry.path, f"changed its size from {entry.size} to {total} bytes")
    if answer.status == 206 and (answer.start != offset or answer.length not in (None, size)):
        raise SourceError(
            f"{client.base.netloc} gives another range of {shown(entry.path)} than asked", retry=True
        )
    _check_version(answer, entry)


def _check_version(answer: HttpResponse, entry: Entry) -> None:
    """Compares what this answer says about the version with what was listed, where both say the same kind of thing."""
    etag = answer.header("ETag")
    if entry.version.startswith(_ETAG):
        if etag and etag != entry.version:
            raise changed(entry.path, "was changed")
        return
    modified = answer.header("Last-Modified")
    _, _, listed = entry.version.partition(":")
    if modified and listed.endswith("GMT") and modified != listed:
        raise changed(entry.path, "was changed")
    if modified and listed.endswith("Z") and _rfc3339(modified) not in ("", listed[:19]):
        raise changed(entry.path, "was changed")


def _rfc3339(date: str) -> str:
    """A date of HTTP as rclone writes it, to the second."""
    try:
        return parsedate_to_datetime(date).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, TypeError):
        return ""


def version_of(answer: HttpResponse, size: int) -> str:
    """A file's version: its ETag, else size and Last-Modified."""
    return answer.header("ETag") or f"{size}:{answer.header('Last-Modified')}"


def _document(client: HttpClient, answer: HttpResponse, most: int) -> Iterator[bytes]:
    if answer.length is not None and answer.length > most:
        raise ListingError(f"the index has {answer.length} bytes; at most {most} are read")
    count = 0
    for data in client.body(answer, answer.length if answer.length is not None else most):
        count += len(data)
        if count > most:
            raise ListingError(f"the index has more than {most} bytes; prepare a pack instead")
        yield bytes(data)
    if answer.length is not None and count != answer.length:
        raise SourceError(f"{client.base.netloc} ended the index early", retry=True)
