# SPDX-License-Identifier: Apache-2.0
"""A socket with HTTP/2 on it, in a loop that waits for many."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable

from agent.front import grpc
from agent.front.http2 import Connection, Event, Http2Error

__all__ = ["Peer"]

_READ_BYTES = 256 << 10
_UNREAD_BYTES = 64 << 10
"""With so much said that the other side has not read, nothing more is read from it: each of its pings is answered."""


class Peer:
    """SOCK, connected, and the CONNECTION over it.

    Args:
        event_received: Gets its events.
        closed: Is called at its end, with why.
        room: Is called whenever the other side may have made room for more.
        failed: Is told of a mistake of ours, which ends this connection and no other.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        sock: socket.socket,
        connection: Connection,
        event_received: Callable[[Peer, Event], None],
        closed: Callable[[Peer, str], None],
        *,
        room: Callable[[Peer], None] = lambda peer: None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.sock = sock
        self.connection = connection
        self._selector = selector
        self._event_received = event_received
        self._closed = closed
        self._room = room
        self._failed = failed
        self._events = selectors.EVENT_READ
        self.open = True
        sock.setblocking(False)
        selector.register(sock, self._events, self._ready)
        self.flush()

    def reply(self, stream: int, message: bytes) -> None:
        """Answers a request with MESSAGE, which leaves with the next flush."""
        self.connection.answer(stream, grpc.opening())
        self.connection.data(stream, grpc.packed(message))
        self.connection.end(stream, grpc.done())

    def flush(self) -> None:
        """Sends what the connection has to say and the socket takes."""
        out = self.connection.out
        try:
            while out and self.open:
                del out[: self.sock.send(out)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        events = selectors.EVENT_WRITE if out else 0
        if len(out) <= _UNREAD_BYTES:
            events |= selectors.EVENT_READ
        if self.open and events != self._events:
            self._events = events
            self._selector.modify(self.sock, events, self._ready)

    def close(self) -> None:
        """Sends a goodbye and ends, without a call to its owner."""
        if self.open:
            self.connection.goaway()
            self.flush()
            self.leave()

    def leave(self) -> socket.socket:
        """Gives up the connection without a goodbye; a descriptor detached before stays usable."""
        if self.open:
            self.open = False
            self._selector.unregister(self.sock)
        self.sock.close()
        return self.sock

    def detach(self) -> int:
        """The socket's descriptor, which the caller now owns."""
        self.open = False
        self._selector.unregister(self.sock)
        return self.sock.detach()

    def _ready(self, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read()
            if self.open:
                self.flush()
            if self.open:
                self._room(self)
        except Exception as error:  # noqa: BLE001  (what one peer says never ends the loop that serves all)
            self._failed(error)
            self._end(f"a mistake of the node agent: {error!r}")

    def _read(self) -> None:
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not data:
            self._end("the other side closed the connection")
            return
        try:
            events = self.connection.receive(data)
        except Http2Error as error:
            with contextlib.suppress(OSError):
                self.sock.send(self.connection.out)
            self._end(f"no HTTP/2 that is understood: {error}")
            return
        for event in events:
            if self.open:
                self._event_received(self, event)

    def _end(self, why: str) -> None:
        if self.open:
            self.leave()
            self._closed(self, why)
