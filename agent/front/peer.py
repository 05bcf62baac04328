"""A socket with HTTP/2 on it, in a loop that waits for many."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable

from agent.front.http2 import Connection, Event, Http2Error

__all__ = ["Peer"]

_READ_BYTES = 256 << 10


class Peer:
    """SOCK, connected, and the CONNECTION over it. HEARD gets its events, GONE is called at its end."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        sock: socket.socket,
        connection: Connection,
        heard: Callable[[Peer, Event], None],
        gone: Callable[[Peer, str], None],
    ) -> None:
        self.sock = sock
        self.connection = connection
        self._selector = selector
        self._heard = heard
        self._gone = gone
        self._events = selectors.EVENT_READ
        self.open = True
        sock.setblocking(False)
        selector.register(sock, self._events, self._ready)
        self.flush()

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
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0)
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
        if events & selectors.EVENT_READ:
            self._read()
        if self.open:
            self.flush()

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
                self._heard(self, event)

    def _end(self, why: str) -> None:
        if self.open:
            self.leave()
            self._gone(self, why)
