# SPDX-License-Identifier: Apache-2.0
"""The messages between front and agent, over a pair of sockets that no other process has.

A frame is its length, its kind, a number (of a call, or of an offer) and bytes that only the two ends of a call read.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

__all__ = [
    "CALL",
    "CLAIM_METHODS",
    "CLAIM_VERSIONS",
    "DEVICE_METHODS",
    "HEAD",
    "METHODS",
    "Buffer",
    "Kind",
    "frame",
    "pair",
]

HEAD = struct.Struct("!IBQ")
CALL = struct.Struct("!BIdd")
"""Begins a CALL: index in METHODS, number of the offer, its age in seconds where an agent has had it before (else -1),
and the seconds that are left (-1: any)."""
DEVICE_METHODS = ("GetPreferredAllocation", "Allocate", "PreStartContainer")
CLAIM_VERSIONS = ("v1", "v1beta1")
CLAIM_METHODS = tuple(
    f"{version}.{name}"
    for version in CLAIM_VERSIONS
    for name in ("NodePrepareResources", "NodeUnprepareResources")
)
"""Of each version one: what is asked is the same bytes, what is answered is not."""
METHODS = DEVICE_METHODS + CLAIM_METHODS
_MOST_BYTES = 64 << 20


class Kind:
    """Kinds of frames. Of the agent: HELLO to OFFER_CLAIMS; of the front: CALL to NOTIFIED."""

    HELLO, STANDBY, ACTIVE, OFFER, LIST, WITHDRAW, ANSWER, PONG, COMING, OFFER_CLAIMS = range(10)
    CALL, CANCEL, STREAMS, REFUSED, GO, PING, NOTIFIED = range(16, 23)


def frame(kind: int, number: int = 0, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return HEAD.pack(len(payload), kind, number) + payload


class Buffer:
    """Cuts what comes over the socket into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """The frames that DATA completes: kind, number, payload."""
        self._bytes += data
        while len(self._bytes) >= HEAD.size:
            length, kind, number = HEAD.unpack_from(self._bytes)
            if length > _MOST_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._bytes) < HEAD.size + length:
                return
            payload = bytes(self._bytes[HEAD.size : HEAD.size + length])
            del self._bytes[: HEAD.size + length]
            yield kind, number, payload


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends: the front's, the agent's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
