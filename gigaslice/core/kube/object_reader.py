# SPDX-License-Identifier: Apache-2.0
"""JSON objects out of an answer of any length, read as its bytes come. Pure.

An object of the API server is some ten kilobytes of which a few dozen bytes matter, and a hostile answer is megabytes
of which a decoder makes thirty times as much. So what nobody asks for never becomes a value: an outline says which
fields are kept, all others are passed over as bytes, and what is kept of one object has a bound. What a reader holds
depends neither on the length of an answer nor on what is in it. Small objects are
decoded whole, which is faster. Tests: tests/unit/gigaslice/core/kube/test_object_reader.py.

In the fields that are passed over brackets and strings have to be in order, and nothing else is checked.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gigaslice.core.kube.json_text import read_first, read_json

T = TypeVar("T")
__all__ = ["ANY", "PRESENCE", "Document", "ObjectReader", "Outline"]

Outline = Mapping[str, Any]
"""The fields of an object that are kept, each with its own outline; ANY stands for every other field.

Numbers and texts are kept whole. Of a list each entry is kept as the outline says; a list in a list is not kept.
"""
ANY = "*"
PRESENCE: Outline = {}
"""Of an object it is kept that there is one."""

_MOST_BYTES = 256 << 10
_MOST_STRING = 128 << 10  # as it is written; a longer one is kept as null
_MOST_BEYOND = 192 << 10  # that a value may have beyond its bound: one long string, then what is essential
_LONGEST = (
    16 << 20
)  # of a value as it is written: etcd takes 1.5 MiB, and writing makes six characters of some
_MOST_KEY = 1024
_MOST_SCALAR = 64

_SPACE = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]+(?=[^-+.0-9A-Za-z])")  # what follows tells that it has ended
_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]+|"[^"\\]*(?:\\.[^"\\]*)*")*', re.DOTALL)
_STRIDE = 8 << 10  # bytes for that pattern, which takes half a kilobyte of memory for every string and escape
_QUOTE, _COMMA, _COLON = b'",:'
_OBJECT, _END_OF_OBJECT, _LIST, _END_OF_LIST = b"{}[]"


@dataclass(frozen=True, slots=True)
class Document:
    """What is kept of one value. complete: False where that was more than its bound, and some of it is missing."""

    value: Any
    complete: bool


_Steps = Generator[Document | None, None, T]
"""Yields documents, and None where the next bytes are needed."""


class ObjectReader:
    """Reads values that follow each other, as the events of a watch do, or the entries of one list.

    Args:
        outline: What is kept of each value.
        essential: What is kept of one that has reached its bound.
        items: The field of the outermost object whose entries are the values; empty: the outermost values are.
        envelope: What else is kept of the object that has the items.
        most: Bytes that are kept of one value, more or less.
        at_once: A value that is there as a whole and has no more bytes is decoded with all that is in it.
    """

    def __init__(
        self,
        outline: Outline,
        essential: Outline = PRESENCE,
        *,
        items: str = "",
        envelope: Outline = PRESENCE,
        most: int = _MOST_BYTES,
        at_once: int = 64 << 10,
    ) -> None:
        self.envelope: Any = None
        """The object that has the items, once it has ended."""
        self._outline, self._essential = outline, essential
        self._items, self._envelope = items, envelope
        self._most = most
        self._at_once = at_once
        self._text, self._at = b"", 0  # what has come and is not read to its end, and up to where it is
        self._kept = bytearray()
        self._around = bytearray()  # what is kept of the object that has the items, while they are read
        self._complete = True
        self._open = False  # in the middle of an outermost value
        self._length = 0  # of what has come since the last value
        self._documents = self._read()

    @property
    def held_bytes(self) -> int:
        """What is held of the answer."""
        return len(self._kept) + len(self._around) + len(self._text)

    def feed(self, chunk: bytes) -> Iterator[Document]:
        """Reads on; yields each value that is complete.

        Raises:
            ValueError: It is no JSON, or what must be kept of one value is too much.
        """
        self._text, self._at = self._text[self._at :] + chunk, 0
        self._length += len(chunk)
        for document in self._documents:
            if document is None:
                break
            self._length = 0
            yield document
        if self._length > _LONGEST:
            raise ValueError(f"an object is longer than {_LONGEST >> 20} MiB")

    def end(self) -> Iterator[Document]:
        """Yields what the end of the answer completes. Raises ValueError in the middle of a value."""
        yield from self.feed(b"\n")
        if self._open:
            raise ValueError("it ends in the middle")

    def _read(self) -> _Steps[None]:
        around = {self._items: PRESENCE, **self._envelope} if self._items else self._outline
        while True:
            yield from self._next()
            self._open = True
            if self._items:
                yield from self._value(around, around, self._items)
                self.envelope = self._document().value
            else:
                yield from self._whole_value()
            self._open = False

    def _whole_value(self) -> _Steps[None]:
        """Reads a value as a document by itself."""
        byte = yield from self._next()
        piece = self._text[self._at : self._at + self._at_once]
        if byte == _OBJECT and (first := read_first(piece)) is not None:
            self._at += first[1]
            yield Document(first[0], True)
        else:
            yield from self._value(self._outline, self._essential)
            yield self._document()

    def _document(self) -> Document:
        document = Document(read_json(bytes(self._kept)), self._complete)
        self._kept, self._complete = bytearray(), True
        return document

    # --- what is kept -------------------------------------------------------------------------------------------

    def _value(self, outline: Outline, essential: Outline | None, items: str = "") -> _Steps[None]:
        byte = yield from self._next()
        if byte == _OBJECT:
            yield from self._object(outline, essential, items)
        elif byte == _LIST:
            yield from self._list(outline, essential)
        elif byte == _QUOTE:
            yield from self._string()
        else:
            self._kept += yield from self._scalar()

    def _object(self, outline: Outline, essential: Outline | None, items: str) -> _Steps[None]:
        self._kept.append(_OBJECT)
        ended = yield from self._begun(_END_OF_OBJECT)
        while not ended:
            name = yield from self._name()
            key = read_json(name)
            if key == items and items and (yield from self._next()) == _LIST:
                yield from self._entries()
                ended = yield from self._continued(_END_OF_OBJECT)
                continue
            inner = outline.get(key, outline.get(ANY))
            vital = None if essential is None else essential.get(key, essential.get(ANY))
            if self._is_kept(inner, vital):
                self._separate(name + b":")
                yield from self._value(inner, vital)
            else:
                yield from self._pass_over()
            ended = yield from self._continued(_END_OF_OBJECT)
        self._kept.append(_END_OF_OBJECT)

    def _list(self, outline: Outline, essential: Outline | None) -> _Steps[None]:
        self._kept.append(_LIST)
        ended = yield from self._begun(_END_OF_LIST)
        while not ended:
            if (yield from self._next()) != _LIST and self._is_kept(outline, essential):
                self._separate()
                yield from self._value(outline, essential)
            else:
                yield from self._pass_over()
            ended = yield from self._continued(_END_OF_LIST)
        self._kept.append(_END_OF_LIST)

    def _entries(self) -> _Steps[None]:
        """Reads the items, each as a document by itself."""
        self._around, self._kept = self._kept, bytearray()
        ended = yield from self._begun(_END_OF_LIST)
        while not ended:
            yield from self._whole_value()
            ended = yield from self._continued(_END_OF_LIST)
        self._around, self._kept = bytearray(), self._around
        self._separate(b'"%s":[]' % self._items.encode())

    def _string(self) -> _Steps[None]:
        while (end := _end_of_string(self._text, self._at + 1)[0]) < 0:
            if len(self._text) - self._at > _MOST_STRING:
                self._kept += b"null"
                yield from self._pass_string()
                return
            yield None
        self._kept += self._text[self._at : end]
        self._at = end

    def _is_kept(self, outline: Outline | None, essential: Outline | None) -> bool:
        if len(self._kept) > self._most + _MOST_BEYOND:
            raise ValueError("what is essential of an object is too large")
        if outline is None or essential is not None or len(self._kept) < self._most:
            return outline is not None
        self._complete = False
        return False

    def _separate(self, name: bytes = b"") -> None:
        if self._kept[-1] not in (_OBJECT, _LIST):
            self._kept.append(_COMMA)
        self._kept += name

    # --- what is passed over ------------------------------------------------------------------------------------

    def _pass_over(self) -> _Steps[None]:
        byte = yield from self._next()
        if byte == _QUOTE:
            yield from self._pass_string()
        elif byte not in (_OBJECT, _LIST):
            yield from self._scalar()
        else:
            yield from self._pass_brackets()

    def _pass_brackets(self) -> _Steps[None]:
        depth = 0
        while True:
            stop = min(self._at + _STRIDE, len(self._text))
            self._at = _TO_BRACKET.match(self._text, self._at, stop).end()  # type: ignore[union-attr]
            if self._at == len(self._text):
                yield None
            elif self._at == stop:
                continue
            elif self._text[self._at] == _QUOTE:  # of a string that ends later
                yield from self._pass_string()
            else:
                depth += 1 if self._text[self._at] in (_OBJECT, _LIST) else -1
                self._at += 1
                if not depth:
                    return

    def _pass_string(self) -> _Steps[None]:
        self._at += 1
        while (end := _end_of_string(self._text, self._at))[0] < 0:
            self._at = end[1]
            yield None
        self._at = end[0]

    # --- tokens -------------------------------------------------------------------------------------------------

    def _next(self) -> _Steps[int]:
        """Returns the next byte that is no space, and does not pass it."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            yield None

    def _begun(self, end: int) -> _Steps[bool]:
        """Passes the beginning of an object or list; returns whether its END comes next, and passes that too."""
        self._at += 1
        ended = (yield from self._next()) == end
        self._at += ended
        return ended

    def _continued(self, end: int) -> _Steps[bool]:
        """Passes the comma or the END after a value; returns whether it was the END."""
        byte = yield from self._next()
        if byte not in (_COMMA, end):
            raise ValueError("it is no JSON")
        self._at += 1
        return byte == end

    def _name(self) -> _Steps[bytes]:
        """Passes a name and its colon; returns the name as it is written."""
        if (yield from self._next()) != _QUOTE:
            raise ValueError("it is no JSON")
        while (end := _end_of_string(self._text, self._at + 1)[0]) < 0:
            if len(self._text) - self._at > _MOST_KEY:
                raise ValueError("a name is too long")
            yield None
        name, self._at = self._text[self._at : end], end
        if (yield from self._next()) != _COLON:
            raise ValueError("it is no JSON")
        self._at += 1
        return name

    def _scalar(self) -> _Steps[bytes]:
        """Passes a number, true, false or null; returns it."""
        while (scalar := _SCALAR.match(self._text, self._at)) is None:
            if len(self._text) - self._at > _MOST_SCALAR:
                raise ValueError("it is no JSON")
            yield None
        self._at = scalar.end()
        return scalar[0]


def _end_of_string(text: bytes, at: int) -> tuple[int, int]:
    """Returns where the string ends whose content goes on at AT, or -1 and from where it is to be looked for again."""
    while True:
        quote = text.find(b'"', at)
        stop = len(text) if quote < 0 else quote
        escaping = (stop - at - len(text[at:stop].rstrip(b"\\"))) % 2  # whether an escape begins before it
        if quote < 0:
            return -1, stop - escaping
        at = quote + 1
        if not escaping:
            return at, at
