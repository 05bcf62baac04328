# SPDX-License-Identifier: Apache-2.0
"""What a dataset consists of: every path with its kind, size and version, checked, in one canonical order.

An image is laid out from a listing before any byte of it arrives, and its digest is half of a dataset's key. So equal
trees must give equal listings, whatever the source calls them and in whatever order it lists them: entries are sorted
bytewise by path, and directories that paths imply are entries too. A listing comes from a source, which may be hostile;
what is not refused here is safe to lay out as an image, and to create as a plain tree under an empty directory.

It has no owners, modes and times: everything of a dataset belongs to root, is readable by all and writable by none.
What is kept of a mode is whether a file may be executed, by all then; no set-id bit has a place here.
Devices, sockets and pipes have no kind here; the source that meets one refuses it.
"""

from __future__ import annotations

import builtins
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import itemgetter
from typing import NamedTuple

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import ListingError
from gigaslice.core.text import plain

__all__ = ["Entry", "EntryKind", "Limits", "Listing", "shown"]

_DOTS = frozenset((b"", b".", b".."))
_HEAD = b"gigaslice listing 1\n"
_RECORD = struct.Struct("<BQIII")
_EXECUTABLE = 4  # a file that may be executed, where EntryKind's numbers stand
_CHECK = 4096  # entries between two looks at the limits
_SHOWN = 120


class EntryKind(IntEnum):
    """What an entry is; the numbers stand in the digest."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


class Entry(NamedTuple):
    """One path of a dataset. A tuple, since a listing has up to millions of them: a fifth of a data class's time."""

    path: bytes
    """Relative to the dataset, segments separated by "/"."""
    kind: EntryKind
    size: int = 0
    version: str = ""
    """What changes whenever the file does: an ETag, or size and time of modification."""
    target: bytes = b""
    """Of a symbolic link."""
    executable: bool = False
    """Of a file."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a listing may have."""

    entries: int = 20_000_000
    path: int = 4095
    """Bytes: what a kernel takes in one call, PATH_MAX without its end."""
    name: int = 255
    bytes: int = 1 << 43
    """8 TiB: half of what 32-bit block numbers address, so that an image of it always fits."""

    def check(self, entries: int, text: int) -> None:
        """Says whether a listing may go on; sources call it while they list.

        Args:
            entries: How many it has so far.
            text: The bytes of their paths, versions and targets.

        Raises:
            ListingError: It is too large.
        """
        if entries > self.entries:
            raise ListingError(f"more than {self.entries} entries; split the dataset, or pack files together")


@dataclass(frozen=True, slots=True)
class Listing:
    """A checked listing; made by `of`."""

    entries: tuple[Entry, ...] = field(repr=False)
    """Sorted bytewise by path; every parent is an entry; the root is none. Not shown: there may be millions."""
    digest: bytes
    files: int
    bytes: int
    """The sum of the files' sizes."""

    @staticmethod
    def of(entries: Iterable[Entry], limits: Limits = Limits()) -> Listing:
        """The listing of ENTRIES, in any order; parents may be left out.

        Raises:
            ListingError: A path that is absolute, empty or too long, has an empty, "." or ".." segment or a NUL byte,
                stands twice, or is below what is no directory; a size that is negative or beyond the limit; a link
                that leads, or could lead, out of the dataset; more entries or bytes than LIMITS allow.
        """
        building = _ListingBuilder(limits)
        building.add_all(entries)
        return building.done()

    def layout_digest(self) -> builtins.bytes:
        """The digest of paths, kinds, sizes and targets alone: of what an image's layout follows from."""
        return hasher(_encoded(entry._replace(version="") for entry in self.entries)).digest()

    def encoded(self) -> builtins.bytes:
        """The listing as bytes; their BLAKE3 is `digest`."""
        return _encoded(self.entries)

    @staticmethod
    def decode(data: builtins.bytes, limits: Limits = Limits()) -> Listing:
        """The listing of what `encoded` wrote, checked as any other.

        Raises:
            ListingError: It is none, or not in its canonical form.
        """
        listing = Listing.of(_decoded(data, limits), limits)
        if listing.digest != hasher(data).digest():
            raise ListingError("the listing is not in the form in which listings are written; make it anew")
        return listing


@dataclass(slots=True)
class _ListingBuilder:
    limits: Limits
    entries: list[Entry] = field(default_factory=list)
    parents: dict[bytes, None] = field(default_factory=dict)  # a set that keeps one object per path
    links: list[Entry] = field(default_factory=list)
    total: int = 0

    def add_all(self, entries: Iterable[Entry]) -> None:
        """Adds ENTRIES. What nearly all of them are is checked here: a file with a usual name in a known directory."""
        file, dots, parents, kept = EntryKind.FILE, _DOTS, self.parents, self.entries
        most_name, most_path, most_bytes = self.limits.name, self.limits.path, self.limits.bytes
        most_entries = self.limits.entries
        total = 0
        for entry in entries:
            path, kind, size, _, target, _ = entry
            parent, _, name = path.rpartition(b"/")
            if (
                kind is file
                and parent in parents
                and name not in dots
                and b"\0" not in name
                and len(name) <= most_name
                and len(path) <= most_path
                and 0 <= size <= most_bytes
                and not target
                and len(kept) < most_entries
            ):
                total += size
                kept.append(entry)
            else:
                self.add(entry)
        self.total += total

    def add(self, entry: Entry) -> None:
        """Adds any entry, with all checks."""
        path, kind, size, version, target, executable = entry
        parent, slash, name = path.rpartition(b"/")
        if slash and parent not in self.parents:
            self._imply(parent, path)
        if name in _DOTS or len(name) > self.limits.name or b"\0" in name or (slash and not parent):
            raise ListingError(_refusal(path, name, self.limits))
        if len(path) > self.limits.path:
            raise ListingError(
                f"path {shown(path)} has {len(path)} bytes; at most {self.limits.path} can be opened"
            )
        if kind == EntryKind.FILE:
            if not 0 <= size <= self.limits.bytes or target:
                raise ListingError(_bad_file(path, size, self.limits))
            self.total += size
        elif kind == EntryKind.DIRECTORY:
            entry = (
                entry if not (size or version or target or executable) else Entry(path, EntryKind.DIRECTORY)
            )
        else:
            if not target or b"\0" in target or len(target) > self.limits.path:
                raise ListingError(
                    f"link {shown(path)} has no target that could be opened; leave it out of the source"
                )
            entry = Entry(path, EntryKind.SYMLINK, len(target), "", target)
            self.links.append(entry)
        self.entries.append(entry)
        if len(self.entries) > self.limits.entries:
            raise ListingError(
                f"more than {self.limits.entries} entries; split the dataset, or pack files together"
            )

    def _imply(self, parent: bytes, path: bytes) -> None:
        """Checks and adds PARENT and what is above it."""
        while parent and parent not in self.parents:
            above, slash, name = parent.rpartition(b"/")
            if name in _DOTS or len(name) > self.limits.name or b"\0" in name or (slash and not above):
                raise ListingError(_refusal(path, name, self.limits))
            self.parents[parent] = None
            parent = above

    def done(self) -> Listing:
        if self.total > self.limits.bytes:
            raise ListingError(f"{self.total} bytes in all; a dataset has at most {self.limits.bytes}")
        kinds = {path: kind for path, kind, _, _, _, _ in self.entries}
        if len(kinds) != len(self.entries):
            raise ListingError(
                f"path {shown(_twice(self.entries))} stands twice; keep one of them in the source"
            )
        for parent in self.parents:
            kind_above = kinds.get(parent)
            if kind_above is None:
                self.entries.append(Entry(parent, EntryKind.DIRECTORY))
            elif kind_above is not EntryKind.DIRECTORY:
                raise ListingError(f"path {shown(parent)} is no directory, and other paths are below it")
        if len(self.entries) > self.limits.entries:
            raise ListingError(
                f"more than {self.limits.entries} entries; split the dataset, or pack files together"
            )
        self.entries.sort(key=itemgetter(0))
        for parent in self.parents:
            kinds[parent] = EntryKind.DIRECTORY
        for entry in self.links:
            _check_link(entry, kinds)
        file = (
            EntryKind.FILE
        )  # not looked up each time, nor counted by hash: both are Python's own code in an enum
        files = len([kind for kind in kinds.values() if kind is file])
        return Listing(tuple(self.entries), _digest(self.entries), files, self.total)


def _twice(entries: Iterable[Entry]) -> bytes:
    return Counter(entry.path for entry in entries).most_common(1)[0][0]


def _check_link(entry: Entry, kinds: Mapping[bytes, EntryKind]) -> None:
    """Refuses a link that leaves the dataset, or whose ".." follows what may be another link.

    A path is resolved by the kernel one segment at a time, through links: "a/.." is above where the link "a" leads, and
    not where "a" stands. So ".." may follow nothing but directories of the listing.
    """
    if entry.target.startswith(b"/"):
        raise ListingError(f"link {shown(entry.path)} is absolute ({shown(entry.target)}); make it relative")
    where: bytes | None = entry.path.rpartition(b"/")[0]
    for segment in entry.target.split(b"/"):
        if segment in (b"", b"."):
            continue
        if len(segment) > 255:
            raise ListingError(
                f"link {shown(entry.path)} has no target that could be opened; leave it out of the source"
            )
        if segment != b"..":
            below = segment if not where else where + b"/" + segment
            where = below if where is not None and kinds.get(below) is EntryKind.DIRECTORY else None
        elif not where:
            why = "leaves the dataset" if where == b"" else "goes up from what is no directory of it"
            raise ListingError(f"link {shown(entry.path)} {why} ({shown(entry.target)}); link inside of it")
        else:
            where = where.rpartition(b"/")[0]


def _encoded(entries: Iterable[Entry]) -> bytes:
    """The entries one after the other, each with its lengths first: no two listings have the same encoding."""
    pack = _RECORD.pack
    parts = [_HEAD]
    for path, kind, size, version, target, executable in entries:
        text = version.encode("utf-8", "surrogatepass")
        number = _EXECUTABLE if executable else kind
        parts += (pack(number, size, len(path), len(text), len(target)), path, text, target)
    return b"".join(parts)


def _digest(entries: Sequence[Entry]) -> bytes:
    """The BLAKE3 of `_encoded`, of which a part at a time is in memory."""
    digest = hasher(_HEAD)
    for at in range(0, len(entries), _CHECK):
        digest.update(_encoded(entries[at : at + _CHECK])[len(_HEAD) :])
    return digest.digest()


def _decoded(data: bytes, limits: Limits) -> Iterator[Entry]:
    if not data.startswith(_HEAD):
        raise ListingError("this is no listing of a dataset, or one of another version")
    at, count = len(_HEAD), 0
    while at < len(data):
        count += 1
        if not count % _CHECK:
            limits.check(count, at)
        try:
            number, size, path_bytes, version_bytes, target_bytes = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            fields = []
            for length in (path_bytes, version_bytes, target_bytes):
                fields.append(data[at : at + length])
                at += length
            executable = number == _EXECUTABLE
            kind, version = (
                EntryKind.FILE if executable else EntryKind(number),
                fields[1].decode("utf-8", "surrogatepass"),
            )
        except (struct.error, ValueError):
            raise ListingError(f"the listing is damaged at byte {min(at, len(data))}; make it anew") from None
        if at > len(data):
            raise ListingError("the listing is cut short; copy it again")
        yield Entry(fields[0], kind, size, version, fields[2], executable)


def _refusal(path: bytes, name: bytes, limits: Limits) -> str:
    if path.startswith(b"/"):
        return f"path {shown(path)} is absolute; paths of a dataset are relative to it"
    if not path:
        return "an empty path; the root of a dataset is no entry"
    if len(name) > limits.name:
        return f"a name of {len(name)} bytes in {shown(path)}; file systems take {limits.name}"
    if b"\0" in name:
        return f"path {shown(path)} has a NUL byte; no file system takes one"
    return f'path {shown(path)} has the segment "{name.decode("ascii")}"; every segment must be the name of something'


def _bad_file(path: bytes, size: int, limits: Limits) -> str:
    if size < 0:
        return f"file {shown(path)} has a size below zero ({size}); the source lists it wrongly"
    if size > limits.bytes:
        return f"file {shown(path)} has {size} bytes; a dataset has at most {limits.bytes}"
    return f"file {shown(path)} has a link's target; the source lists it wrongly"


def shown(path: bytes) -> str:
    """PATH for a line of text: quoted, on one line, cut where it is long."""
    text = plain(path.decode("utf-8", "backslashreplace"))
    return f'"{text}"' if len(text) <= _SHOWN else f'"{text[:_SHOWN]}…"'
