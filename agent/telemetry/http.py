"""A server for three questions: /metrics, /healthz, /readyz. Nothing else, and never in anybody's way.

One small request a connection, bounded in size and time, few at once: of too many the one that came first goes, since
probes are asked and answered at once and an agent whose probes fail is ended. An address that cannot be had is said and
tried again: nothing of the agent depends on being asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from agent.telemetry.logs import get_logger
from agent.telemetry.metrics import CONTENT_TYPE

__all__ = ["Server"]

_MAX_REQUEST = 8192
_PATIENCE = 10.0  # seconds for a client to ask and to take the answer
_MOST_CLIENTS = 16
_AGAIN = 5.0
_CLIENTS_LOSS = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class Server:
    """Serves HOST:PORT (HOST None: every address). METRICS collects now and returns what
    writes the text in a thread; READY says why not, or None."""

    def __init__(
        self,
        address: tuple[str | None, int] | None,
        metrics: Callable[[], Callable[[], bytes]],
        ready: Callable[[], str | None],
    ) -> None:
        self._address = address
        self._metrics = metrics
        self._ready = ready
        self._talks: list[asyncio.Future[None]] = []  # in the order in which they began
        self._log = get_logger("http")

    async def run(self) -> None:
        """Works until cancelled."""
        if self._address is None:
            await asyncio.Event().wait()
            return
        said = ""
        while True:
            try:
                server = await asyncio.start_server(self._client, *self._address, limit=_MAX_REQUEST)
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    self._log.warning(
                        "metrics cannot be served",
                        detail=f"{said}; tried again; another --metrics-address helps, or off",
                    )
                await asyncio.sleep(_AGAIN)
                continue
            async with server:
                for socket in server.sockets:
                    self._log.info(
                        "metrics served", address=socket.getsockname()[0], port=socket.getsockname()[1]
                    )
                await server.serve_forever()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.ensure_future(self._talk(reader, writer))
        self._talks.append(talk)
        if len(self._talks) > _MOST_CLIENTS:
            self._talks.pop(0).cancel()
        try:
            await asyncio.wait({talk}, timeout=_PATIENCE)
        finally:
            talk.cancel()
            with contextlib.suppress(ValueError):
                self._talks.remove(talk)
            writer.transport.abort()  # closing waits for ever for a client that does not read
        (loss,) = await asyncio.gather(talk, return_exceptions=True)
        if isinstance(loss, Exception) and not isinstance(loss, _CLIENTS_LOSS):
            raise loss

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        status, kind, body = await self._answer(method, rest.partition(" ")[0].partition("?")[0])
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode("latin-1")
        )
        if method != "HEAD":
            writer.write(body)
        writer.close()
        await writer.wait_closed()

    async def _answer(self, method: str, path: str) -> tuple[str, str, bytes]:
        plain = "text/plain; charset=utf-8"
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", plain, b"only GET\n"
        if path == "/healthz":
            return "200 OK", plain, b"ok\n"
        if path == "/readyz":
            reason = self._ready()
            return (
                ("503 Service Unavailable", plain, f"{reason}\n".encode())
                if reason
                else ("200 OK", plain, b"ok\n")
            )
        if path == "/metrics":
            try:
                return "200 OK", CONTENT_TYPE, await asyncio.to_thread(self._metrics())
            except Exception:  # noqa: BLE001  (a mistake in a metric must not end the agent)
                self._log.exception("metrics failed")
                return "500 Internal Server Error", plain, b"see the agent's log\n"
        return "404 Not Found", plain, b"there are /metrics, /healthz and /readyz\n"
