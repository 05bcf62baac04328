# SPDX-License-Identifier: Apache-2.0
"""The index of files behind HTTP, read as it comes: {"files": [{"path": "a/b", "size": 1, "version": "…"}, …]}.

The document may be of a hostile author, and of any size. Python's values of it take up to twenty times its bytes, so it
is never had as a whole: one element after another is decoded, none of which may be long.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any

from gigaslice.core.dataset.errors import ListingError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits
from gigaslice.core.text import plain

__all__ = ["index_entries"]

_SPACE = " \t\r\n"
_CHECK = 4096


class _IndexSyntaxError(Exception):
    """The document has another form."""


class _JsonScanner:
    """The document's text, of which a little more than one element is in memory."""

    def __init__(self, pieces: Iterable[bytes], longest: int) -> None:
        """PIECES: of the document. LONGEST: characters of an element."""
        self._longest = longest
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._decode = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._ended = False

    def _more(self) -> bool:
        """Has more of the text. Returns whether there was any."""
        if self._ended:
            return False
        pieces, size = [], 0
        while size < self._longest and not self._ended:
            piece = next(self._pieces, None)
            self._ended = piece is None
            pieces.append(piece or b"")
            size += len(pieces[-1])
        self._text = self._text[self._at :] + self._decoder.decode(b"".join(pieces), self._ended)
        self._at = 0
        return True

    def next(self) -> str:
        """The next character that is no space, left where it is; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def take(self, *expected: str) -> str:
        """The same, taken. Raises _OddError if it is not an EXPECTED one."""
        character = self.next()
        if character not in expected:
            raise _IndexSyntaxError
        self._at += 1
        return character

    def value(self) -> Any:
        """The next value. Raises _OddError."""
        self.next()
        while len(self._text) - self._at < 2 * self._longest and self._more():
            pass
        short = self._text[self._at : self._at + 512]
        try:
            value, end = self._decode(short)
            if end == len(short):
                raise ValueError  # a number that may go on
        except ValueError:
            value, end = self._decode(self._text[self._at : self._at + self._longest])
        self._at += end
        return value

    def objects(self) -> list[Any]:
        """The next elements of an array, of which there is one at least: many at once where they are plain objects."""
        self.next()
        while len(self._text) - self._at < 2 * self._longest and self._more():
            pass
        end = self._text.rfind("},", self._at, self._at + self._longest) + 1
        if end > 0:
            try:
                objects: list[Any] = json.loads(f"[{self._text[self._at : end]}]")
            except ValueError:
                pass  # the end of the array is among them, or "}," in a name
            else:
                self._at = end
                return objects
        return [self.value()]


def index_entries(
    pieces: Iterable[bytes], where: str, limits: Limits, *, longest: int = 32 << 10
) -> Iterator[Entry]:
    """The files of an index.

    Args:
        pieces: The document.
        where: What it is called in texts.
        limits: Of the listing.
        longest: Characters that one element may have; a path has 4095 bytes at most.

    Raises:
        ListingError: It is no index, or larger than LIMITS allow.
        SourceError: Its memory is not there now, or what PIECES raise.
    """
    count = text = 0
    try:
        for element in _elements(_JsonScanner(pieces, longest)):
            entry = _entry(element)
            count += 1
            text += len(entry.path) + len(entry.version)
            if not count % _CHECK:
                limits.check(count, text)
            yield entry
    except (_IndexSyntaxError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ListingError(
            f'{plain(where)} is no index: it must be {{"files": [{{"path": "a/b", "size": 1}}, …]}}'
        ) from None
    limits.check(count, text)


def _elements(text: _JsonScanner) -> Iterator[Any]:
    """The elements of "files". What else the document has is passed over."""
    text.take("{")
    has_files = False
    while True:
        if text.next() != '"':
            raise _IndexSyntaxError
        name = text.value()
        text.take(":")
        if name == "files" and not has_files:
            has_files = True
            text.take("[")
            if text.next() == "]":
                text.take("]")
            else:
                while True:
                    yield from text.objects()
                    if text.take(",", "]") == "]":
                        break
        else:
            text.value()
        if text.take(",", "}") == "}":
            break
    if not has_files or text.next():
        raise _IndexSyntaxError


def _entry(element: Any) -> Entry:
    path, size, version = element["path"], element["size"], element.get("version", "")
    if (
        not isinstance(path, str)
        or isinstance(size, bool)
        or not isinstance(size, int)
        or not isinstance(version, str)
    ):
        raise TypeError
    return Entry(path.encode(), EntryKind.FILE, size, plain(version))
