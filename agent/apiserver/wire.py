"""HTTP/1.1 to the API server: one connection per request, every step with a time limit.

The agent asks rarely (one watch for minutes, an event now and then), so connections are not kept: credentials are then
always the newest, and there is no pool of half-dead ones. The protocol itself is h11's. Every answer has a bound that
holds while it is read: nothing that a server sends can take more of the agent's memory than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import h11

import vcuda
from gigaslice.kube.json_text import read_json
from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.failures import LONGEST_RETRY_AFTER, ApiFailure
from gigaslice.runtime.time_limit import within

__all__ = ["MERGE_PATCH", "Api", "Reply", "Stream"]

MERGE_PATCH = "application/merge-patch+json"

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_MAX_BODY_BYTES = 1 << 20  # unless the caller expects more
_MAX_INTERIM = 16  # answers 1xx before the answer itself
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. retry_after: as in `ApiFailure`."""

    status: int
    body: bytes
    retry_after: float = 0.0

    def reason(self) -> str:
        """What the server says about a failure, in its words."""
        try:
            return str(read_json(self.body)["message"])[:500]
        except (ValueError, KeyError, TypeError):
            return self.body[:200].decode("utf-8", "replace").strip()

    def failure(self, what: str) -> ApiFailure:
        """The error that this answer to WHAT is."""
        return ApiFailure(f"{what}: {self.status} {self.reason()}", self.status, retry_after=self.retry_after)


class Stream:
    """An answer that goes on: its status, and its bytes as they come."""

    def __init__(self, status: int, chunks: AsyncIterator[bytes], retry_after: float = 0.0) -> None:
        self.status = status
        self.retry_after = retry_after
        self._chunks = chunks

    async def chunks(self, most: float = math.inf) -> AsyncIterator[bytes]:
        """Its bytes until the server ends the answer.

        Raises ApiFailure when it is cut short or falls silent, and when it has more than MOST of them.
        """
        count = 0
        async for chunk in self._chunks:
            count += len(chunk)
            if count > most:
                raise ApiFailure(f"the API server's answer has more than {most} bytes", self.status)
            yield chunk

    async def body(self, most: int = _MAX_BODY_BYTES) -> bytes:
        """All of it. Raises ApiFailure, and reads no further, when that is more than MOST bytes."""
        body = bytearray()
        async for chunk in self.chunks(most):
            body += chunk
        return bytes(body)

    async def failure(self, what: str) -> ApiFailure:
        """The error that this answer to WHAT is."""
        return Reply(self.status, await self.body(), self.retry_after).failure(what)


class Api:
    """The API server that ACCESS leads to."""

    def __init__(
        self, access: Access, *, connect: float = _CONNECT_SECONDS, answer: float = _ANSWER_SECONDS
    ) -> None:
        self.access = access
        self._connect = connect
        self._answer = answer

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = "application/json",
        *,
        most: int = _MAX_BODY_BYTES,
    ) -> Reply:
        """Sends one request and takes the whole answer, of MOST bytes. Raises ApiFailure when there is none."""
        async with self.stream(method, path, query, body, content, idle=self._answer) as answer:
            try:
                reply_body = await within(answer.body(most), self._answer)
                return Reply(answer.status, reply_body, answer.retry_after)
            except asyncio.TimeoutError as error:
                raise ApiFailure(f"{self.access}: no complete answer in {self._answer:g} s") from error

    async def post(self, path: str, body: object) -> None:
        """Creates an object. Raises ApiFailure, as does `patch`."""
        await self._done("POST", path, body)

    async def patch(self, path: str, body: object) -> None:
        """Changes an object by a merge patch."""
        await self._done("PATCH", path, body, MERGE_PATCH)

    async def _done(self, method: str, path: str, body: object, content: str = "application/json") -> None:
        reply = await self.request(method, path, None, body, content)
        if reply.status >= 300:
            raise reply.failure(f"{method} {path}")

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = "application/json",
        *,
        idle: float,
        longest: float = math.inf,
    ) -> AsyncIterator[Stream]:
        """Sends one request and gives the answer as it comes.

        Silence longer than IDLE seconds is an error, and so is an answer that has not ended after LONGEST.
        """
        sent = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        target = self.access.prefix + path + (f"?{urlencode(query)}" if query else "")
        opened: list[asyncio.StreamWriter] = []
        try:
            try:
                head = h11.Request(method=method, target=target, headers=self._headers(sent, content))
                reader, writer = await within(self._open(opened), self._connect)
            except h11.LocalProtocolError:  # its text quotes what it refuses, which may be the token
                raise ApiFailure(
                    f"{self.access}: no request can be made of the credentials and the address"
                ) from None
            except (asyncio.TimeoutError, OSError, ValueError) as error:
                raise _failure(str(self.access), error) from error
            talk = _Talk(reader, str(self.access))
            answer = await self._ask(talk, writer, head, sent)
            retry_after = _retry_after(answer.headers)
            yield Stream(int(answer.status_code), talk.chunks(idle, longest), retry_after)
        finally:
            for connection in opened:
                connection.transport.abort()

    async def _ask(
        self, talk: _Talk, writer: asyncio.StreamWriter, head: h11.Request, sent: bytes
    ) -> h11.Response:
        try:
            for event in (head, h11.Data(data=sent), h11.EndOfMessage()):
                writer.write(talk.protocol.send(event) or b"")
            await within(writer.drain(), self._answer)
            return await within(talk.head(), self._answer)
        except (asyncio.TimeoutError, OSError, h11.ProtocolError) as error:
            raise _failure(str(self.access), error) from error

    async def _open(
        self, opened: list[asyncio.StreamWriter]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Adds the connection to OPENED as well: a caller that is cancelled at this moment gets no answer."""
        access = self.access
        context = access.ssl_context()
        name = (access.server_name or access.host) if context is not None else None
        reader, writer = await asyncio.open_connection(
            access.host, access.port, ssl=context, server_hostname=name, limit=1 << 18
        )
        opened.append(writer)
        raw = writer.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:  # a peer that is gone without a word is noticed in a minute
                raw.setsockopt(socket.IPPROTO_TCP, option, value)
        return reader, writer

    def _headers(self, sent: bytes, content: str) -> list[tuple[str, str]]:
        host = f"[{self.access.host}]" if ":" in self.access.host else self.access.host
        headers = [
            ("Host", f"{host}:{self.access.port}"),
            ("User-Agent", f"gigaslice-node/{vcuda.__version__}"),
            ("Accept", "application/json"),
            ("Connection", "close"),
            ("Content-Length", str(len(sent))),
        ]
        if sent:
            headers.append(("Content-Type", content))
        authorization = self.access.authorization()
        return [*headers, ("Authorization", authorization)] if authorization else headers


class _Talk:
    """One request's conversation."""

    def __init__(self, reader: asyncio.StreamReader, server: str) -> None:
        self.protocol = h11.Connection(h11.CLIENT)
        self._reader = reader
        self._server = server

    async def head(self) -> h11.Response:
        """Reads up to the end of the answer's head, which h11 bounds to 16 KiB."""
        for _ in range(_MAX_INTERIM):
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise ApiFailure(f"{self._server}: the connection was closed without an answer")
        raise ApiFailure(f"{self._server}: no answer after {_MAX_INTERIM} announcements of one")

    async def chunks(self, idle: float, longest: float = math.inf) -> AsyncIterator[bytes]:
        """The answer's content."""
        end = time.monotonic() + longest
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise ApiFailure(f"{self._server}: the answer has not ended in {longest:g} s")
            try:
                event = await within(self._next(), min(idle, left))
            except (asyncio.TimeoutError, OSError, h11.ProtocolError) as error:
                raise _failure(self._server, error) from error
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise ApiFailure(f"{self._server}: the connection was closed in the middle of an answer")

    async def _next(self) -> object:
        while True:
            event = self.protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            self.protocol.receive_data(await self._reader.read(1 << 16))


def _retry_after(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Seconds that the server asks to be left alone. API servers never send the other form, a date."""
    for name, value in headers:
        if name.lower() == b"retry-after" and value.strip().isdigit():
            return min(float(value.strip()[:9]), LONGEST_RETRY_AFTER)
    return 0.0


def _failure(server: str, error: Exception) -> ApiFailure:
    if isinstance(error, asyncio.TimeoutError):
        return ApiFailure(f"{server}: no answer in time")
    return ApiFailure(f"{server}: {_said(error)}")


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__
