# SPDX-License-Identifier: Apache-2.0
"""JSON objects of the API server and its clients, whole or as they come. Pure.

An informer reads the answers to its lists and watches by an `AnswerDecoder`. The one here decodes a page or a line at
once, which is fastest; the readers of `gigaslice.core.kube.decode` take memory that does not depend on the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from gigaslice.core.kube.json_text import read_json
from gigaslice.core.kube.object_reader import Document

__all__ = ["WHOLE", "AnswerDecoder", "DocumentReader", "read_document"]

_MOST_LINE_BYTES = 8 << 20  # etcd takes objects up to 1.5 MiB, as JSON they are some times as long


class DocumentReader(Protocol):
    """Reads one answer. Raises ValueError for what is none."""

    @property
    def envelope(self) -> Any:
        """Of a list, once it has ended: the object around its items."""
        ...

    def feed(self, chunk: bytes) -> Iterator[Document]:
        """Reads on; yields what is complete."""
        ...

    def end(self) -> Iterator[Document]:
        """Yields what the end of the answer completes."""
        ...


@dataclass(frozen=True, slots=True)
class AnswerDecoder:
    """How answers are decoded.

    Attributes:
        page: Makes a reader of one page of a list, which yields its items.
        watch: Makes a reader of a watch, which yields its events.
        beside: Whether a piece may take so long to read that it is done beside the event loop.
    """

    page: Callable[[], DocumentReader]
    watch: Callable[[], DocumentReader]
    beside: bool = False


def read_document(text: bytes) -> dict[str, Any]:
    """Returns the JSON object of a text. Raises ValueError where it is none.

    orjson refuses a whole list for half a surrogate pair in one of its objects; what it refuses is read as `read_json`
    does.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        document = read_json(text)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


class _WholePage:
    """A page that is decoded when all of it is there."""

    def __init__(self) -> None:
        self.envelope: Any = None
        self._body = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Document]:
        self._body += chunk
        return iter(())

    def end(self) -> Iterator[Document]:
        text, self._body = bytes(self._body), bytearray()
        self.envelope = read_document(text)
        del text
        items = self.envelope.get("items")
        if isinstance(items, list):
            self.envelope["items"] = []
            yield from (Document(item, True) for item in items)


class _Lines:
    """Events that are decoded line by line. What the end of a watch cuts off is none."""

    envelope = None

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Document]:
        searched = len(self._rest)
        self._rest += chunk
        while (end := self._rest.find(b"\n", searched)) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            searched = 0
            if line.strip():
                yield Document(read_document(line), True)
        if len(self._rest) > _MOST_LINE_BYTES:
            raise ValueError(f"a line has more than {_MOST_LINE_BYTES >> 20} MiB")

    def end(self) -> Iterator[Document]:
        return iter(())


WHOLE = AnswerDecoder(_WholePage, _Lines)
