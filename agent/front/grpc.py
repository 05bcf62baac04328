# SPDX-License-Identifier: Apache-2.0
"""gRPC over HTTP/2, as far as calls with one message and one answer need it: pure functions over fields and bytes."""

from __future__ import annotations

import re
import struct

from agent.front import hpack
from agent.front.http2 import Fields

__all__ = [
    "CODES",
    "StatusError",
    "failed",
    "method",
    "not_served",
    "opening",
    "packed",
    "request",
    "status",
    "time_left",
    "unpacked",
]

CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Names of the status codes, by number."""
NOT_FOUND, EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 5, 8, 12, 13, 14
_PREFIX = struct.Struct("!BI")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"[0-9]{1,8}[HMSmun]")  # no more digits than the specification's eight
_OPENING = b"\x88" + hpack.encode([(b"content-type", b"application/grpc")])  # 0x88 is :status 200
_DONE = hpack.encode([(b"grpc-status", b"0")])


class StatusError(Exception):
    """What a request is answered with instead. code: index in CODES."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def method(fields: Fields) -> tuple[str, str]:
    """Which service FIELDS ask, and for which of its methods. Raises StatusError."""
    headers = dict(fields)
    path = headers.get(b":path", b"").decode("ascii", "replace")
    start, service, name = path.split("/") if path.count("/") == 2 else ("", "", "")
    if not headers.get(b"content-type", b"").startswith(b"application/grpc") or start or not service:
        raise not_served()
    return service, name


def not_served() -> StatusError:
    """What a request for anything else is answered with."""
    return StatusError(UNIMPLEMENTED, "Method not found!")


def time_left(fields: Fields) -> float | None:
    """Seconds that the caller waits; None for ever. Raises StatusError, as grpc-go, where they have another form."""
    text = dict(fields).get(b"grpc-timeout")
    if text is None:
        return None
    if not _TIMEOUT.fullmatch(text):
        raise StatusError(INTERNAL, "malformed grpc-timeout")
    return int(text[:-1]) * _UNITS[text[-1:]]


def packed(message: bytes) -> bytes:
    """MESSAGE as it goes over the wire."""
    return _PREFIX.pack(0, len(message)) + message


def unpacked(body: bytes) -> bytes:
    """The only message in BODY. Raises StatusError."""
    if len(body) < _PREFIX.size:
        raise StatusError(INTERNAL, "the request has no message")
    squeezed, length = _PREFIX.unpack_from(body)
    if squeezed:
        raise StatusError(UNIMPLEMENTED, "compressed messages are not understood")
    if length != len(body) - _PREFIX.size:
        raise StatusError(INTERNAL, "the request is not one message")
    return body[_PREFIX.size :]


def opening() -> bytes:
    """The block of fields before an answer's messages."""
    return _OPENING


def done() -> bytes:
    """The block after them."""
    return _DONE


def failed(code: int, text: str) -> bytes:
    """The only block of an answer that is an error."""
    quoted = "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in text.encode()
    )
    return _OPENING + hpack.encode([(b"grpc-status", str(code).encode()), (b"grpc-message", quoted.encode())])


def request(path: str, seconds: float) -> bytes:
    """The block of a request that is given up after SECONDS."""
    return hpack.encode(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"gigaslice"),
            (b"grpc-timeout", f"{int(seconds * 1000)}m".encode()),
        ]
    )


def status(fields: Fields) -> tuple[str, str]:
    """Name of the code and text with which a call ended."""
    trailers = dict(fields)
    number = trailers.get(b"grpc-status", b"2").decode("ascii", "replace")
    code = CODES[int(number)] if number.isdigit() and int(number) < len(CODES) else "UNKNOWN"
    raw = trailers.get(b"grpc-message", b"")
    text, at = bytearray(), 0
    while at < len(raw):
        try:
            byte = int(raw[at + 1 : at + 3], 16) if raw[at : at + 1] == b"%" and at + 2 < len(raw) else -1
        except ValueError:
            byte = -1
        text.append(raw[at] if byte < 0 else byte)
        at += 1 if byte < 0 else 3
    return code, text.decode("utf-8", "replace")
