# SPDX-License-Identifier: Apache-2.0
"""The connections of a stand-in that serves in the event loop of a test: each one is closed when the stand-in ends.

asyncio.start_server does not promise that: a connection that is accepted while the server closes is left open, together
with its client, until the garbage collector finds it (CPython 3.11, Server._attach fails in a task of its own). The
warning then is a failure of whichever test runs at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

_BACKLOG = 100
_LIMIT = 1 << 24

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Connections:
    """Listens on 127.0.0.1 and runs SERVE for every connection, which is cut when SERVE ends."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    def listen(self, port: int = 0) -> int:
        """Accepts from now on; returns the port. Raises OSError."""
        self._listener = listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        return int(listener.getsockname()[1])

    async def end(self) -> None:
        """Accepts no more, and cuts every connection."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the loop closes what was cut in its next turn

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            # asyncio does so only for sockets whose protocol is named. Else the second line of a watch waits for the
            # acknowledgement of the first, which its client delays by 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(self._talk(connection))
            self._tasks.add(task)
            # One that is cancelled before its first step has no other task that closes it.
            task.add_done_callback(lambda done: self._ended(done, connection))

    def _ended(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # to the loop's handler: a mistake in the stand-in is seen
        if task.cancelled():
            connection.close()

    async def _talk(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_LIMIT, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
