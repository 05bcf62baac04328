# SPDX-License-Identifier: Apache-2.0
"""The two lasting sides of `local_protocol`: who listens, and who keeps a connection to ask again and again.

A socket gets its name only when it answers and its permissions are set, and replaces one that a killed process has
left. Whoever may open it may ask: who that is, the permissions of the socket and of its directory say.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gigaslice.core.errors import GigasliceError, InputError
from gigaslice.core.text import plain
from gigaslice.runtime.local_protocol import (
    MOST_LINE_BYTES,
    NOT_A_MESSAGE,
    VERSION,
    decode,
    encode,
    versioned,
)
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.time_limit import within

__all__ = ["Answer", "LineConnection", "LineServer"]

_MOST_CONNECTIONS = 256

Answer = Callable[[dict[str, Any]], Awaitable[None]]
"""Sends one object to the caller."""


class LineServer:
    """Listens on PATH.

    Args:
        path: The socket; what stands there is replaced.
        serve: Is given each object and the way to answer it, one object of a connection after the other. A
            GigasliceError that it raises is the answer.
        left: Is given the way to answer of a connection that has ended.
        mode: The socket's permissions.
    """

    def __init__(
        self,
        path: Path,
        serve: Callable[[dict[str, Any], Answer], Awaitable[None]],
        left: Callable[[Answer], None] = lambda answer: None,
        *,
        mode: int = 0o600,
    ) -> None:
        self._path = path
        self._serve = serve
        self._left = left
        self._mode = mode
        self._connections: set[asyncio.Task[None]] = set()
        self._log = get_logger("local")

    async def run(self) -> None:
        """Works until cancelled. Without a socket the role goes on; the log says what does not work."""
        fresh = self._path.with_name(f".{self._path.name}")
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._accept, str(fresh), limit=MOST_LINE_BYTES)
            fresh.chmod(self._mode)
            fresh.replace(self._path)
        except OSError as error:
            self._log.error("no socket", path=str(self._path), detail=error.strerror or str(error))
            await asyncio.Event().wait()
            return
        try:
            await asyncio.Event().wait()
        finally:
            self._path.unlink(missing_ok=True)
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)

        async def answer(document: dict[str, Any]) -> None:
            writer.write(encode(document))
            await writer.drain()

        try:
            while request := await _request(reader):
                await self._answered(request, answer)
            if request is None:
                await answer({"error": NOT_A_MESSAGE})
        except (OSError, asyncio.CancelledError):
            pass  # the caller has left, or the role ends
        finally:
            self._connections.discard(task)
            self._left(answer)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answered(self, request: dict[str, Any], answer: Answer) -> None:
        version = request.get("version", 1)
        if version in range(1, VERSION + 1):
            try:
                await self._serve(request, answer)
                return
            except GigasliceError as error:
                refusal = {"error": plain(str(error)), "mistake": isinstance(error, InputError)}
        else:
            refusal = {"error": "this is a request of a newer version; use the same version of both programs"}
        await answer({**refusal, **{key: request[key] for key in ("id",) if key in request}})


class LineConnection:
    """Keeps a connection to PATH, on which several requests wait for their answers at a time.

    Args:
        path: The socket.
        beside: Runs as long as the connection lasts.
        most: How many bytes an answer may have; a longer one is no answer.
        pause: Seconds between two attempts to connect.
    """

    def __init__(
        self,
        path: Path,
        beside: Callable[[], Awaitable[None]],
        *,
        most: int = MOST_LINE_BYTES,
        pause: float = 2.0,
    ) -> None:
        self._path = path
        self._beside = beside
        self._most = most
        self._pause = pause
        self._numbers = itertools.count(1)
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._writer is not None

    async def run(self) -> None:
        """Keeps the connection until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                await self._connect()
            await asyncio.sleep(self._pause)

    async def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to REQUEST. Raises OSError without a connection, and asyncio.TimeoutError after SECONDS."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self.tell({"id": number, **request})
            return await within(answer, seconds)
        finally:
            del self._waiting[number]

    def tell(self, request: Mapping[str, Any]) -> None:
        """Sends REQUEST, which has no answer. Raises OSError without a connection."""
        if self._writer is None:
            raise ConnectionResetError
        self._writer.write(encode(versioned(request)))

    async def _connect(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(str(self._path), limit=self._most)
        writer, beside = self._writer, asyncio.ensure_future(self._beside())
        try:
            while line := await _line(reader):
                document = (
                    decode(line) or {}
                )  # else a request ends by its time limit; the others are answered
                number = document.get("id")
                answer = self._waiting.get(number) if isinstance(number, int) else None
                if answer is not None and not answer.done():
                    answer.set_result(document)
        finally:
            self._writer = None
            beside.cancel()
            await asyncio.wait([beside])
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError())
            writer.close()


async def _request(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Reads a request: empty at the end of the connection, None for anything else than a request."""
    try:
        line = await reader.readline()
    except ValueError:
        return None
    return decode(line) if line else {}


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Reads a line; of one that is too long, what is left of it."""
    while True:
        with contextlib.suppress(ValueError):
            return await reader.readline()
