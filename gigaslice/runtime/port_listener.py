"""Accepts TCP connections for a protocol of an event loop. None is left open at its end.

The servers of asyncio and of uvloop set up a connection some turns of the event loop after they have accepted it, and
do not tell of it before. One that is accepted just before the end is set up after it (uvloop), or never, and stays open
with nothing to end it (asyncio, which fails an assertion). Here the end waits for those first.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from gigaslice.runtime.logs import get_logger

__all__ = ["PortListener"]

_QUEUE = 100
_AT_ONCE = 16
"""Connections that are accepted before others of the event loop have their turn."""

_RETRY_SECONDS = 1.0
"""Pause where none can be accepted, such as with too many open files."""


class PortListener:
    """Listens; each connection gets a protocol from MAKE."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self._sockets: list[socket.socket] = []
        self._accepted: set[asyncio.Task[None]] = set()
        self._log = get_logger("http")

    async def start(self, host: str | None, port: int) -> int:
        """Listens on the addresses of HOST; without one on all. Returns the port of the first. Raises OSError."""
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
                # Connections take these over.
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._sockets:
                raise OSError(f"no address of {host!r} can be listened on")
        except OSError:
            await self.close()
            raise
        for listening in self._sockets:
            self._serve(listening)
        port_of_first: int = self._sockets[0].getsockname()[1]
        return port_of_first

    async def close(self) -> None:
        """Accepts no more. Every connection that was accepted has its protocol on return."""
        loop = asyncio.get_running_loop()
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            loop.remove_reader(listening)
            listening.close()
        await asyncio.gather(*self._accepted, return_exceptions=True)

    def _serve(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                loop = asyncio.get_running_loop()
                self._log.warning("no connection accepted", detail=error.strerror, seconds=_RETRY_SECONDS)
                loop.remove_reader(listening)
                loop.call_later(_RETRY_SECONDS, self._serve, listening)
                return
            connection.setblocking(False)
            task = asyncio.ensure_future(self._set_up(connection))
            self._accepted.add(task)
            task.add_done_callback(self._accepted.discard)

    async def _set_up(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._make, connection)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
