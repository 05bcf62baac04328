# SPDX-License-Identifier: Apache-2.0
"""An HTTP server for three paths: /metrics, /healthz and /readyz. It serves nothing else, and cannot hold up its role.

Each connection carries one small request, bounded in size and time. Few are served at once; one more ends the oldest of
those that have asked nothing yet, and only where there is none the oldest of all: a probe is asked and answered at
once, and the kubelet restarts a container whose probes fail. An address that cannot be bound is logged and tried again:
the role works without it. The protocol is parsed by h11.

The metrics name every pod with slices, so they can be protected by a token in a file. The file is read for every
request, since secrets are renewed; while it cannot be read, /metrics is refused. The probes reveal nothing and need no
token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

import h11

from gigaslice.runtime.files import read_file
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.metrics import Exposition, Values

__all__ = ["CONTENT_TYPE", "EndpointSettings", "Server", "endpoints"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # the text form of Prometheus

_PLAIN = "text/plain; charset=utf-8"
_MAX_REQUEST = 8192
_MAX_TOKEN = 4096
_MAX_CLIENTS = 16


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    kind: str = _PLAIN

    def headers(self) -> list[tuple[str, str]]:
        challenge = [("WWW-Authenticate", "Bearer")] if self.status == HTTPStatus.UNAUTHORIZED else []
        length = ("Content-Length", str(len(self.body)))
        return [("Content-Type", self.kind), length, *challenge, ("Connection", "close")]


_OK = _Answer(HTTPStatus.OK, b"ok\n")
_SEE_LOG = b"see the agent's log\n"


class Server:
    """Serves metrics and probes.

    Args:
        address: Host and port; a host of None means every address, no address that nothing is served.
        metrics: Collects the values, and returns the function that writes them as text, which runs in a thread.
        unready: Why the role is not ready, or None.
        token_file: Holds the token that /metrics requires; None: it requires none.
        client_seconds: For a client to send its request and to take the answer.
        retry_seconds: Until an address that cannot be had is tried again.
    """

    def __init__(
        self,
        address: tuple[str | None, int] | None,
        metrics: Callable[[], Callable[[], bytes]],
        unready: Callable[[], str | None],
        token_file: Path | None = None,
        *,
        client_seconds: float = 10.0,
        retry_seconds: float = 5.0,
    ) -> None:
        self._address = address
        self._metrics = metrics
        self._unready = unready
        self._token_file = token_file
        self._client_seconds = client_seconds
        self._retry_seconds = retry_seconds
        self._talks: list[asyncio.Future[None]] = []  # in the order in which they began
        self._asked: set[asyncio.Future[None]] = set()  # those with a whole request
        self._log = get_logger("http")

    async def run(self) -> None:
        """Works until cancelled."""
        if self._address is None:
            await asyncio.Event().wait()
            return
        once = LogOnce()
        while True:
            try:
                server = await asyncio.start_server(self._client, *self._address, limit=_MAX_REQUEST)
            except OSError as error:
                if once.new("address", str(error)):
                    self._log.warning(
                        "metrics cannot be served",
                        detail=f"{error}; tried again; another --metrics-address helps, or off",
                    )
                await asyncio.sleep(self._retry_seconds)
                continue
            async with server:
                for socket in server.sockets:
                    self._log.info(
                        "metrics served", address=socket.getsockname()[0], port=socket.getsockname()[1]
                    )
                await server.serve_forever()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.ensure_future(self._talk(reader, writer))
        self._talks.append(conversation)
        if len(self._talks) > _MAX_CLIENTS:
            oldest = next(
                (conversation for conversation in self._talks if conversation not in self._asked),
                self._talks[0],
            )
            self._talks.remove(oldest)
            oldest.cancel()
        try:
            await asyncio.wait({conversation}, timeout=self._client_seconds)
        finally:
            conversation.cancel()
            with contextlib.suppress(ValueError):
                self._talks.remove(conversation)
            self._asked.discard(conversation)
            writer.transport.abort()  # closing waits for ever for a client that does not read
        (failure,) = await asyncio.gather(conversation, return_exceptions=True)
        if isinstance(failure, Exception) and not isinstance(failure, OSError):
            raise failure

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_REQUEST)
        with_body = True
        try:
            request = await _request(connection, reader)
            if request is None:
                return
            talk = asyncio.current_task()
            if talk in self._talks:
                self._asked.add(talk)
            with_body = request.method != b"HEAD"
            answer = await self._answer(request)
        except h11.RemoteProtocolError as error:
            answer = _Answer(HTTPStatus(error.error_status_hint), b"not a request that is served here\n")
        head = h11.Response(
            status_code=answer.status, headers=answer.headers(), reason=answer.status.phrase.encode()
        )
        writer.write(connection.send(head) or b"")
        if with_body:
            writer.write(connection.send(h11.Data(answer.body)) or b"")
        writer.close()
        await writer.wait_closed()

    async def _answer(self, request: h11.Request) -> _Answer:
        if request.method not in (b"GET", b"HEAD"):
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n")
        path = request.target.partition(b"?")[0]
        if path == b"/healthz":
            return _OK
        if path == b"/readyz":
            reason = self._unready()
            return _Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode()) if reason else _OK
        if path != b"/metrics":
            return _Answer(HTTPStatus.NOT_FOUND, b"there are /metrics, /healthz and /readyz\n")
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            return _Answer(HTTPStatus.OK, await asyncio.to_thread(self._metrics()), CONTENT_TYPE)
        except Exception:  # noqa: BLE001  (a mistake in a metric must not end the role)
            self._log.exception("metrics failed")
            return _Answer(HTTPStatus.INTERNAL_SERVER_ERROR, _SEE_LOG)

    def _refusal(self, request: h11.Request) -> _Answer | None:
        """Why REQUEST may not read the metrics; None: it may."""
        if self._token_file is None:
            return None
        try:
            token = read_file(self._token_file, _MAX_TOKEN).strip()
            problem = "" if token else "it is empty"
        except OSError as error:
            token, problem = b"", str(error.strerror)
        if problem:
            self._log.error("metrics token cannot be read", path=str(self._token_file), detail=problem)
            return _Answer(HTTPStatus.SERVICE_UNAVAILABLE, _SEE_LOG)
        scheme, _, given = _authorization(request).partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token):
            return None
        return _Answer(
            HTTPStatus.UNAUTHORIZED,
            b"the token is missing or another one (Authorization: Bearer ...)\n",
        )


class EndpointSettings(Protocol):
    """Where a role serves its metrics and probes, and what /metrics requires."""

    @property
    def metrics_address(self) -> tuple[str | None, int] | None:
        """Host and port; None for nowhere."""

    @property
    def metrics_token_file(self) -> Path | None:
        """Holds the token."""


def endpoints(
    settings: EndpointSettings,
    collect: Callable[[], Values],
    unready: Callable[[], str | None],
    **labels: str,
) -> Server:
    """Serves what a role shows of itself, as its settings say. LABELS: those that all its metrics have."""
    exposition = Exposition(collect, **labels)
    return Server(settings.metrics_address, exposition.prepare, unready, settings.metrics_token_file)


async def _request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The request that the client sends; None when it closes the connection before. Raises RemoteProtocolError."""
    while not isinstance(event := connection.next_event(), h11.Request):
        data = await reader.read(_MAX_REQUEST) if event is h11.NEED_DATA else b""
        if not data:
            return None
        connection.receive_data(data)
    return event


def _authorization(request: h11.Request) -> bytes:
    """The value of the Authorization header; empty when there is none, or more than one."""
    values = [value for name, value in request.headers if name == b"authorization"]
    return values[0] if len(values) == 1 else b""
