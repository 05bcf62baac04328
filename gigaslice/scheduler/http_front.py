"""HTTP/1.1 in front of the service: whole requests in, whole replies out, each reply with one send.

kube-scheduler keeps a few connections and sends one request after the other on them, three a pod at most, and waits
for the answer before it goes on with the next pod. So what a request costs beside its decision is a large part of what
the service costs. A request that is decided in memory is answered inside the call that brought its last byte: no task,
no timer, no header that no scheduler reads. httptools parses; this module keeps order and bounds.

Replies leave in the order of the requests. A client that sends more before it has its reply is not read from until
then, and one that does not read its replies gets no more of them than a buffer takes. Nothing here is for the open
network: no TLS, no credentials, no compression.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast

import httptools

from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.port_listener import PortListener

__all__ = ["JSON", "PLAIN", "HttpFront", "HttpReply", "Work"]

JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"
_MOST_HEAD = 64 << 10
_LINGER_SECONDS = 1.0
_HEAD = "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class HttpReply(NamedTuple):
    """A whole reply."""

    status: int
    body: bytes
    content: str = JSON


Work = Callable[[bytes], "HttpReply | Awaitable[HttpReply]"]
"""Answers a request with this body, at once or later."""


class _Request(NamedTuple):
    """One that has been read. broken: the reply, where no more can be read after it."""

    method: bytes
    path: bytes
    body: bytes
    keep: bool
    broken: HttpReply | None = None


class HttpFront:
    """Serves ROUTES on one address.

    Args:
        routes: What answers, by method and path.
        most: The most bytes of a request's body.
    """

    def __init__(self, routes: Mapping[tuple[bytes, bytes], Work], most: int) -> None:
        self.most = most
        self._routes = routes
        self._paths = {path for _, path in routes}
        self._connections: set[_Connection] = set()
        self._listener = PortListener(lambda: _Connection(self))
        self._log = get_logger("http")

    @property
    def connected(self) -> bool:
        """Whether any client has a connection."""
        return bool(self._connections)

    async def start(self, host: str | None, port: int) -> int:
        """Listens; returns the port. Raises OSError."""
        return await self._listener.start(host, port)

    async def close(self, seconds: float) -> None:
        """Takes no more requests; those that are being answered have so many SECONDS."""
        await self._listener.close()
        for one in list(self._connections):
            one.leave()
        tasks = [one.task for one in self._connections if one.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in list(self._connections):
            one.end()

    def answer(self, request: _Request) -> HttpReply | Awaitable[HttpReply]:
        """Returns the reply, or what it comes from."""
        if request.broken is not None:
            return request.broken
        path = request.path.partition(b"?")[0]
        work = self._routes.get((request.method, path))
        if work is None:
            status = 405 if path in self._paths else 404
            return HttpReply(status, f"{_PHRASES[status]}\n".encode(), PLAIN)
        try:
            return work(request.body)
        except Exception:  # noqa: BLE001  (one request must not end the others)
            return self.failed(path)

    def failed(self, path: bytes) -> HttpReply:
        """Logs the exception that is being handled, and returns the reply for it."""
        self._log.exception("request failed", path=path.decode("ascii", "replace"))
        return HttpReply(500, b"see the log\n", PLAIN)

    def opened(self, connection: _Connection) -> None:
        """Counts a connection in."""
        self._connections.add(connection)

    def closed(self, connection: _Connection) -> None:
        """Counts it out."""
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    """One client. task: the reply that is being waited for."""

    def __init__(self, front: HttpFront) -> None:
        self.task: asyncio.Task[None] | None = None
        self._front = front
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[_Request] = deque()
        self._paused = False
        self._full = False  # with replies that the client does not read
        self._ended = False  # the client sends no more
        self._leaving = False
        self._head = 0  # bytes of a head that is not complete
        self._path = b""
        self._parts: list[bytes] = []
        self._size = 0
        self._in_body = False
        self._broken = False

    # --- called by the event loop -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast(asyncio.Transport, transport)
        self._front.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone. What is being done for it goes on: a binding may have been written."""
        self._transport = None
        self._waiting.clear()
        self._front.closed(self)

    def eof_received(self) -> bool:
        """The client sends no more. It may still wait for replies: the connection is closed with the last one."""
        self._ended = True
        return bool(self._waiting) or self.task is not None

    def pause_writing(self) -> None:
        """The client does not read."""
        self._full = True

    def resume_writing(self) -> None:
        """The client has read."""
        self._full = False
        self._go_on()

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        if self._broken:
            return
        if not self._in_body:
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break(400)
        if not self._in_body and self._head > _MOST_HEAD:
            self._break(431)
        self._go_on()

    # --- called by the parser -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._path, self._parts, self._size = b"", [], 0

    def on_url(self, url: bytes) -> None:
        """A piece of its path has come."""
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has come. One matters: the client sends its body only when it is told to."""
        if len(name) == 6 and name.lower() == b"expect" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        """What follows is the body."""
        self._in_body = True
        self._head = 0
        if self._parser.should_upgrade():  # to another protocol
            self._break(400)

    def on_body(self, body: bytes) -> None:
        """A piece of the body has come."""
        self._size += len(body)
        if self._size > self._front.most:
            self._break(413)
        if not self._broken:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._in_body = False
        if self._broken:
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        method = self._parser.get_method()
        keep = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        # The reply to HEAD has no body, which is not done here: the connection cannot be used after it.
        self._waiting.append(_Request(method, self._path, body, keep and method != b"HEAD"))

    # --- replies ------------------------------------------------------------------------------------------------

    def _break(self, status: int) -> None:
        """What comes after this cannot be read."""
        if not self._broken:
            self._broken = True
            self._parts = []
            text = f"{_PHRASES[status]}\n".encode()
            self._waiting.append(_Request(b"", b"", b"", False, HttpReply(status, text, PLAIN)))

    def _go_on(self) -> None:
        """Answers what can be answered, in order."""
        while self._waiting and self.task is None and self._transport is not None and not self._full:
            request = self._waiting.popleft()
            found = self._front.answer(request)
            if isinstance(found, HttpReply):
                self._send(found, request.keep)
            else:
                self.task = asyncio.ensure_future(self._later(found, request))
        full = bool(self._waiting)
        if full is not self._paused and self._transport is not None:
            self._paused = full
            self._transport.pause_reading() if full else self._transport.resume_reading()

    async def _later(self, found: Awaitable[HttpReply], request: _Request) -> None:
        try:
            reply = await found
        except Exception:  # noqa: BLE001  (one request must not end the others)
            reply = self._front.failed(request.path)
        self.task = None
        self._send(reply, request.keep)
        self._go_on()

    def _send(self, reply: HttpReply, keep: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        keep = keep and not self._leaving and not (self._ended and not self._waiting)
        head = _HEAD % (
            reply.status,
            _PHRASES[reply.status],
            reply.content,
            len(reply.body),
            "" if keep else "Connection: close\r\n",
        )
        self._transport.write(head.encode() + reply.body)
        if not keep:
            self._waiting.clear()
            if self._broken:  # more is on its way; closing now would throw the reply away with it
                self._transport.write_eof()
                asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.end)
            else:
                self._transport.close()

    # --- the end ------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Ends the connection after the reply that is being waited for."""
        self._leaving = True
        if self.task is None:
            self.end()

    def end(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.close()
