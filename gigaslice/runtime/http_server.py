"""A server for three questions: /metrics, /healthz, /readyz. Nothing else, and never in anybody's way.

One small request a connection, bounded in size and time, few at once: of too many the one that came first goes, since
probes are asked and answered at once and an agent whose probes fail is ended. An address that cannot be had is said and
tried again: nothing of the agent depends on being asked.

The metrics name every pod with slices. Who may read them can be made to depend on a token in a file, which is read for
every question, since secrets are renewed; while it cannot be read nobody may. The probes tell nothing and ask for none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable
from pathlib import Path

from gigaslice.runtime.files import read_file
from gigaslice.runtime.logs import get_logger

__all__ = ["CONTENT_TYPE", "Server"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # the text form of Prometheus

_MAX_REQUEST = 8192
_MAX_TOKEN = 4096
_PATIENCE = 10.0  # seconds for a client to ask and to take the answer
_MOST_CLIENTS = 16
_AGAIN = 5.0
_CLIENTS_LOSS = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class Server:
    """Serves HOST:PORT (HOST None: every address). METRICS collects now and returns what
    writes the text in a thread; READY says why not, or None. TOKEN_FILE: what who asks for metrics must know."""

    def __init__(
        self,
        address: tuple[str | None, int] | None,
        metrics: Callable[[], Callable[[], bytes]],
        ready: Callable[[], str | None],
        token_file: Path | None = None,
    ) -> None:
        self._address = address
        self._metrics = metrics
        self._ready = ready
        self._token_file = token_file
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
        status, kind, body = await self._answer(
            method, rest.partition(" ")[0].partition("?")[0], _authorization(head)
        )
        asks = "WWW-Authenticate: Bearer\r\n" if status.startswith("401") else ""
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{asks}"
            "Connection: close\r\n\r\n".encode("latin-1")
        )
        if method != "HEAD":
            writer.write(body)
        writer.close()
        await writer.wait_closed()

    def _refusal(self, given: bytes) -> tuple[str, bytes] | None:
        """Why who says GIVEN may not read the metrics; None: may."""
        if self._token_file is None:
            return None
        try:
            token = read_file(self._token_file, _MAX_TOKEN).strip()
        except OSError as error:
            self._log.error(
                "token of the metrics cannot be read", path=str(self._token_file), detail=error.strerror
            )
            return "503 Service Unavailable", b"see the agent's log\n"
        if not token:
            self._log.error(
                "token of the metrics cannot be read", path=str(self._token_file), detail="it is empty"
            )
            return "503 Service Unavailable", b"see the agent's log\n"
        scheme, _, said = given.partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(said.strip(), token):
            return None
        return "401 Unauthorized", b"the token is missing or another one (Authorization: Bearer ...)\n"

    async def _answer(self, method: str, path: str, authorization: bytes) -> tuple[str, str, bytes]:
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
            refusal = self._refusal(authorization)
            if refusal is not None:
                return refusal[0], plain, refusal[1]
            try:
                return "200 OK", CONTENT_TYPE, await asyncio.to_thread(self._metrics())
            except Exception:  # noqa: BLE001  (a mistake in a metric must not end the agent)
                self._log.exception("metrics failed")
                return "500 Internal Server Error", plain, b"see the agent's log\n"
        return "404 Not Found", plain, b"there are /metrics, /healthz and /readyz\n"


def _authorization(head: bytes) -> bytes:
    """The header of that name; empty when there is none, or more than one."""
    found = []
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            found.append(value.strip())
    return found[0] if len(found) == 1 else b""
