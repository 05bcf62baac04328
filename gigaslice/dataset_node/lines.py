"""Sockets of this node on which both sides speak JSON, one object a line: the start gate and the commands.

No HTTP and no gRPC: the callers are on the same machine and of the same version, and one of them is the GPU agent,
which must stay small. A socket gets its name only when it answers and its permissions are set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gigaslice.kube.json_text import read_json
from gigaslice.runtime.logs import get_logger

__all__ = ["MOST_LINE_BYTES", "Answer", "LineServer"]

MOST_LINE_BYTES = 1 << 20
_MOST_CONNECTIONS = 256

Answer = Callable[[dict[str, Any]], Awaitable[None]]
"""Sends one object to the caller."""


class LineServer:
    """Listens on PATH.

    Args:
        path: The socket; what stands there is replaced.
        serve: Is given each object and the way to answer it, one object of a connection after the other.
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
        self._log = get_logger("dataset")

    async def run(self) -> None:
        """Works until cancelled. Without a socket the service goes on; the log says what does not work."""
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
            for one in self._connections:
                one.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)

        async def answer(document: dict[str, Any]) -> None:
            writer.write(json.dumps(document).encode() + b"\n")
            await writer.drain()

        try:
            while line := await reader.readline():
                document = read_json(line)
                if not isinstance(document, dict):
                    break
                await self._serve(document, answer)
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # the caller has left, spoken something else, or the service ends
        finally:
            self._connections.discard(task)
            self._left(answer)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
