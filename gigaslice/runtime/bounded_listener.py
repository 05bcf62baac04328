# SPDX-License-Identifier: Apache-2.0
"""Listens on a port and keeps the bounds of its connections (`connection_bounds`), with TLS or without.

A connection that says nothing is a socket and nothing else: TLS and the protocol begin with its first byte. Whoever
serves says when a whole request has come (`asked`) and when it was answered (`answered`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import cast

from gigaslice.runtime.connection_bounds import (
    ConnectionBounds,
    ConnectionState,
    ConnectionTable,
    OpenConnection,
)
from gigaslice.runtime.logs import get_logger

__all__ = ["BoundedListener"]

_QUEUE = 512
_AT_ONCE = 16
"""Connections that are accepted before others of the event loop have their turn."""


class BoundedListener:
    """Listens.

    Args:
        make: Makes the protocol of a connection.
        bounds: Those of the connections.
        context: Of TLS; None: there is none.
        retry_seconds: The pause where none can be accepted, such as with too many open files.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        bounds: ConnectionBounds,
        context: ssl.SSLContext | None = None,
        *,
        retry_seconds: float = 1.0,
    ) -> None:
        self._make = make
        self.bounds = bounds
        self._context = context
        self._retry_seconds = retry_seconds
        self.table = ConnectionTable(bounds)
        self._sockets: list[socket.socket] = []
        self._transports: dict[int, OpenConnection] = {}
        self._waiting: dict[OpenConnection, asyncio.Future[None]] = {}
        self._handover: asyncio.TimerHandle | None = None
        self._handing_over = False
        self._log = get_logger("http")

    async def start(self, host: str | None, port: int) -> list[tuple[str, int]]:
        """Listens on the addresses of HOST; without one on all. Returns them. Raises OSError."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(addresses):
                try:
                    socket.socket(family, socket.SOCK_STREAM).close()
                except OSError:  # the machine has no IPv6
                    continue
                listening = socket.create_server(address, family=family, backlog=_QUEUE)
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._sockets:
                raise OSError(f"no address of {host!r} can be listened on")
        except OSError:
            await self.close()
            raise
        for listening in self._sockets:
            self._listen(listening)
        return [listening.getsockname()[:2] for listening in self._sockets]

    async def close(self) -> None:
        """Accepts no more, and ends what has not asked anything yet."""
        loop = asyncio.get_running_loop()
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            loop.remove_reader(listening)
            listening.close()
        links = [connection.at for connection in self.table.everyone()]
        for connection in self.table.everyone():
            if connection.state is not ConnectionState.KEPT:
                self._end(connection)
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)

    # --- what the protocols say -------------------------------------------------------------------------------------

    def begun(self, transport: asyncio.BaseTransport | None) -> None:
        """The head of a request has come. The rest has so long as the first request had."""
        connection = self._transports.get(id(transport))
        if connection is not None:
            cast(_Link, connection.at).hurry()

    def asked(self, transport: asyncio.BaseTransport | None) -> None:
        """A whole request has come over a connection."""
        connection = self._transports.get(id(transport))
        if connection is None:
            return
        cast(_Link, connection.at).rest()
        self._move(connection, ConnectionState.KEPT)

    def answered(self, transport: asyncio.BaseTransport | None) -> None:
        """A request has its answer: the connection is idle until the next one."""
        connection = self._transports.get(id(transport))
        if connection is not None:
            self.table.hold(connection, -connection.held)

    def opened(self, connection: OpenConnection, transport: asyncio.Transport) -> None:
        """A connection has its transport."""
        self._transports[id(transport)] = connection

    def received(self, connection: OpenConnection, size: int) -> None:
        """Bytes have come over a connection."""
        self.table.hold(connection, size)
        heaviest = self.table.heaviest()
        if heaviest is not None:
            self._end(heaviest)

    def closed(self, connection: OpenConnection, transport: asyncio.BaseTransport | None) -> None:
        """A connection is no more."""
        self._transports.pop(id(transport), None)
        if self.table.remove(connection):
            self._hand_over()

    # --- the way of a connection ------------------------------------------------------------------------------------

    def _listen(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                loop = asyncio.get_running_loop()
                self._log.warning(
                    "no connection accepted", detail=error.strerror, seconds=self._retry_seconds
                )
                loop.remove_reader(listening)
                loop.call_later(self._retry_seconds, self._listen, listening)
                return
            accepted.setblocking(False)
            connection = OpenConnection(_peer(address[0]))
            self._enter(connection, ConnectionState.SILENT)
            connection.at = _Link(self, connection, accepted)

    async def serve(self, connection: OpenConnection, accepted: socket.socket) -> None:
        """Brings a connection to its protocol. Ends it where that takes too long."""
        make = lambda: cast(_Link, connection.at).protocol(self._make())  # noqa: E731
        with contextlib.suppress(OSError):  # errors of TLS, too
            await _readable(accepted)
            await self._place(connection)
            await asyncio.get_running_loop().connect_accepted_socket(make, accepted, ssl=self._context)

    async def _place(self, connection: OpenConnection) -> None:
        """Waits for a place among the unasked."""
        if not self._waiting and not self.table.full(ConnectionState.UNASKED):
            self._move(connection, ConnectionState.UNASKED)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[connection] = turn
        self._hand_over()
        try:
            await turn
        finally:
            self._waiting.pop(connection, None)

    def _hand_over(self) -> None:
        """Gives places among the unasked to those that wait: free ones, and those that were had for long enough."""
        if self._handing_over:
            return  # it is what moves them: the loop below goes on
        if self._handover is not None:
            self._handover.cancel()
            self._handover = None
        self._handing_over = True
        try:
            self._give_places(asyncio.get_running_loop())
        finally:
            self._handing_over = False

    def _give_places(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            if self.table.full(ConnectionState.UNASKED):
                victim = self.table.victim(ConnectionState.UNASKED)
                grace = self.table.grace(len(self._waiting))
                rest = grace - (loop.time() - victim.since) if victim else 0.0
                if rest > 0:
                    self._handover = loop.call_later(rest, self._hand_over)
                    return
                if victim is not None:
                    self.table.remove(victim)
                    self._end(victim)
            chosen = self.table.next_of(self._waiting)
            turn = self._waiting.pop(chosen)
            if not turn.done():
                turn.set_result(None)
                self._move(chosen, ConnectionState.UNASKED)

    def _enter(self, connection: OpenConnection, state: ConnectionState) -> None:
        while self.table.full(state):
            victim = self.table.victim(state)
            if victim is None:
                break
            self.table.remove(victim)
            self._end(victim)
        self.table.add(connection, state, asyncio.get_running_loop().time())

    def _move(self, connection: OpenConnection, state: ConnectionState) -> None:
        held = connection.held
        if self.table.remove(connection):
            self._enter(connection, state)
            self.table.hold(connection, held - connection.held)
            self._hand_over()

    def _end(self, connection: OpenConnection) -> None:
        cast(_Link, connection.at).end()


class _Link(asyncio.Protocol):
    """What serves one connection: the way to its protocol, and then the protocol with an ear on it."""

    def __init__(
        self, listener: BoundedListener, connection: OpenConnection, accepted: socket.socket
    ) -> None:
        self._listener = listener
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._protocol: asyncio.Protocol | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._accepted = accepted
        self.task = asyncio.get_running_loop().create_task(listener.serve(connection, accepted))
        self.task.add_done_callback(self._served)
        self.hurry()

    def protocol(self, protocol: asyncio.Protocol) -> asyncio.Protocol:
        """Takes the protocol that the connection is for."""
        self._protocol = protocol
        return self

    def hurry(self) -> None:
        """Ends the connection where no whole request comes in time."""
        if self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._listener.bounds.seconds, self.end)

    def rest(self) -> None:
        """A whole request has come."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def end(self) -> None:
        """Ends the connection at once, whatever it is at."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self.task.cancel()

    def _served(self, _: asyncio.Task[None]) -> None:
        """Cleans up after a connection that has no protocol, even where its task was cancelled before it began."""
        if self._transport is None:
            self.rest()
            self._accepted.close()
            self._listener.closed(self._connection, None)
            self._connection.at = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is through."""
        self._transport = cast(asyncio.Transport, transport)
        self._listener.opened(self._connection, self._transport)
        cast(asyncio.Protocol, self._protocol).connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._listener.received(self._connection, len(data))
        cast(asyncio.Protocol, self._protocol).data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return cast(asyncio.Protocol, self._protocol).eof_received()

    def pause_writing(self) -> None:
        """The client does not read its answer."""
        cast(asyncio.Protocol, self._protocol).pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        cast(asyncio.Protocol, self._protocol).resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.rest()
        self._listener.closed(self._connection, self._transport)
        protocol, self._protocol, self._transport = self._protocol, None, None
        self._connection.at = None  # no circle, which would keep buffers until the next collection
        if protocol is not None:
            protocol.connection_lost(exc)


async def _readable(accepted: socket.socket) -> None:
    """Waits for the first byte, or the end."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(accepted, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(accepted)


def _peer(host: str) -> str:
    """Whom an address belongs to: an address of IPv4, or a network of 64 bits of IPv6, in which hosts choose theirs."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            return (address.packed[:8]).hex()
    return host
