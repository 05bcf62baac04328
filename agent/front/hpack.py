# SPDX-License-Identifier: Apache-2.0
"""Header compression of HTTP/2 (RFC 7541): all of reading, and of writing the one form that needs no memory.

A grpc-go client sends indexed and Huffman-coded fields, so both are read. What is written is literal.
"""

from __future__ import annotations

__all__ = ["Decoder", "HpackError", "encode"]

TABLE_BYTES = 4096  # the table that RFC 9113 allows a peer which was told nothing else
_MOST_BYTES = 64 << 10  # of one list of fields; a kubelet's takes some hundred
_ENTRY_BYTES = 32

_STATIC = tuple(
    (name.encode(), value.encode())
    for name, _, value in (
        line.partition("=")
        for line in [
            ":authority",
            ":method=GET",
            ":method=POST",
            ":path=/",
            ":path=/index.html",
            ":scheme=http",
            ":scheme=https",
            ":status=200",
            ":status=204",
            ":status=206",
            ":status=304",
            ":status=400",
            ":status=404",
            ":status=500",
            "accept-charset",
            "accept-encoding=gzip, deflate",
            "accept-language",
            "accept-ranges",
            "accept",
            "access-control-allow-origin",
            "age",
            "allow",
            "authorization",
            "cache-control",
            "content-disposition",
            "content-encoding",
            "content-language",
            "content-length",
            "content-location",
            "content-range",
            "content-type",
            "cookie",
            "date",
            "etag",
            "expect",
            "expires",
            "from",
            "host",
            "if-match",
            "if-modified-since",
            "if-none-match",
            "if-range",
            "if-unmodified-since",
            "last-modified",
            "link",
            "location",
            "max-forwards",
            "proxy-authenticate",
            "proxy-authorization",
            "range",
            "referer",
            "refresh",
            "retry-after",
            "server",
            "set-cookie",
            "strict-transport-security",
            "transfer-encoding",
            "user-agent",
            "vary",
            "via",
            "www-authenticate",
        ]
    )
)

# Bits of each symbol's code (RFC 7541, appendix B). The code is canonical: the lengths say all.
_LENGTHS = (
    "13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28 "
    "6 10 10 12 13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10 "
    "13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 8 7 8 13 19 13 14 6 "
    "15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28 "
    "20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24 "
    "22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23 "
    "26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27 "
    "20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26 30"
)
_EOS = 256


class HpackError(Exception):
    """A block of fields that cannot be read; the connection cannot go on, since the two sides' tables differ now."""


def _codes() -> dict[tuple[int, int], int]:
    lengths = [int(word) for word in _LENGTHS.split()]
    symbols: dict[tuple[int, int], int] = {}
    code = before = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
        code <<= length - before
        symbols[length, code] = symbol
        code, before = code + 1, length
    return symbols


_CODES = _codes()
_SHORTEST, _LONGEST = 5, 30


def _unpacked(data: bytes) -> bytes:
    out = bytearray()
    code = length = 0
    for byte in data:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            symbol = _CODES.get((length, code)) if length >= _SHORTEST else None
            if symbol is not None:
                if symbol == _EOS:
                    raise HpackError("a Huffman code contains its end mark")
                out.append(symbol)
                code = length = 0
            elif length >= _LONGEST:
                raise HpackError("no such Huffman code")
    if length > 7 or code != (1 << length) - 1:
        raise HpackError("a Huffman code is filled up wrongly")
    return bytes(out)


class Decoder:
    """Reads a connection's blocks of fields, in their order; goes on with TABLE, newest first, and its LIMIT."""

    def __init__(self, table: list[tuple[bytes, bytes]] | None = None, limit: int = TABLE_BYTES) -> None:
        self.table = list(table or [])
        self.limit = limit
        self._size = sum(len(name) + len(value) + _ENTRY_BYTES for name, value in self.table)

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """The fields of BLOCK. Raises HpackError."""
        fields: list[tuple[bytes, bytes]] = []
        at, size = 0, 0
        try:
            while at < len(block):
                first = block[at]
                if first & 0x80:
                    index, at = _integer(block, at, 7)
                    field = self._field(index)
                elif first & 0xE0 == 0x20:
                    limit, at = _integer(block, at, 5)
                    if limit > TABLE_BYTES or fields:
                        raise HpackError("a size for the table that was not offered, or in the wrong place")
                    self.limit = limit
                    self._shrink(limit)
                    continue
                else:
                    kept = bool(first & 0x40)
                    index, at = _integer(block, at, 6 if kept else 4)
                    if index:
                        name = self._field(index)[0]
                    else:
                        name, at = _string(block, at)
                    value, at = _string(block, at)
                    field = name, value
                    if kept:
                        self._keep(field)
                size += len(field[0]) + len(field[1]) + _ENTRY_BYTES
                if size > _MOST_BYTES:
                    raise HpackError("too many fields")
                fields.append(field)
        except IndexError:
            raise HpackError("fields are cut short") from None
        return fields

    def _field(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        if len(_STATIC) < index <= len(_STATIC) + len(self.table):
            return self.table[index - len(_STATIC) - 1]
        raise HpackError(f"there is no field {index}")

    def _keep(self, field: tuple[bytes, bytes]) -> None:
        size = len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._shrink(self.limit - size)
        if size <= self.limit:
            self.table.insert(0, field)
            self._size += size

    def _shrink(self, size: int) -> None:
        while self.table and self._size > size:
            name, value = self.table.pop()
            self._size -= len(name) + len(value) + _ENTRY_BYTES


def encode(fields: list[tuple[bytes, bytes]]) -> bytes:
    """A block of FIELDS, each in full and in no table."""
    out = bytearray()
    for name, value in fields:
        out.append(0)
        for part in (name, value):
            out += _length(len(part))
            out += part
    return bytes(out)


def _length(count: int) -> bytes:
    if count < 127:
        return bytes((count,))
    out, count = bytearray((127,)), count - 127
    while count >= 128:
        out.append(count & 127 | 128)
        count >>= 7
    out.append(count)
    return bytes(out)


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 127) << shift
        shift += 7
        if not byte & 128:
            return value, at
        if shift > 28:
            raise HpackError("a number is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    packed = block[at] & 0x80
    length, at = _integer(block, at, 7)
    text = block[at : at + length]
    if len(text) < length:
        raise HpackError("fields are cut short")
    return (_unpacked(text) if packed else text), at + length
