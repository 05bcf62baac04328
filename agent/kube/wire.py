"""HTTP/1.1 to the API server: one connection per request, every step with a time limit.

The agent asks rarely (one watch for minutes, an event now and then), so connections are not kept: credentials are then
always the newest, and there is no pool of half-dead ones. The protocol itself is h11's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

import h11

import vcuda
from agent.errors import GigasliceError
from agent.kube.access import Access

__all__ = ["Api", "ApiError", "Reply", "Stream", "within"]

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_MAX_BODY_BYTES = 256 << 20
_MAX_LINE_BYTES = 16 << 20  # etcd takes objects up to 1.5 MiB
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class ApiError(GigasliceError):
    """The API server was not reached, or its answer was no use; `status` is 0 without an answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    body: bytes

    def reason(self) -> str:
        """What the server says about a failure, in its words."""
        try:
            return str(json.loads(self.body)["message"])[:500]
        except (ValueError, KeyError, TypeError, RecursionError):
            return self.body[:200].decode("utf-8", "replace").strip()


class Stream:
    """An answer that goes on: its status, and its lines as they come."""

    def __init__(self, status: int, chunks: AsyncIterator[bytes]) -> None:
        self.status = status
        self._chunks = chunks

    async def lines(self) -> AsyncIterator[bytes]:
        """Complete lines until the server ends the answer. Raises ApiError when it is cut short or falls silent."""
        rest = bytearray()
        async for chunk in self._chunks:
            rest += chunk
            while (end := rest.find(b"\n")) >= 0:
                line = bytes(rest[:end])
                del rest[: end + 1]
                yield line
            if len(rest) > _MAX_LINE_BYTES:
                raise ApiError("the API server sent a line without an end")

    async def body(self) -> bytes:
        """All of it."""
        return b"".join([chunk async for chunk in self._chunks])[:_MAX_BODY_BYTES]


async def within(work: Awaitable[T], seconds: float) -> T:
    """What WORK returns; asyncio.TimeoutError when it takes longer.

    `asyncio.wait_for` before Python 3.12 loses a cancellation that comes together with the result.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    if not done:
        task.cancel()
        await asyncio.wait({task})
        raise asyncio.TimeoutError
    return task.result()


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
    ) -> Reply:
        """Sends one request and takes the whole answer. Raises ApiError when there is none."""
        async with self.stream(method, path, query, body, content, idle=self._answer) as answer:
            try:
                return Reply(answer.status, await within(answer.body(), self._answer))
            except asyncio.TimeoutError as error:
                raise ApiError(f"{self.access}: no complete answer in {self._answer:g} s") from error

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
    ) -> AsyncIterator[Stream]:
        """Sends one request and gives the answer as it comes; silence longer than IDLE seconds is an error."""
        sent = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        target = self.access.prefix + path + (f"?{urlencode(query)}" if query else "")
        opened: list[asyncio.StreamWriter] = []
        try:
            try:
                headers = self._headers(sent, content)
                reader, writer = await within(self._open(opened), self._connect)
            except (asyncio.TimeoutError, OSError) as error:
                raise _failure(str(self.access), error) from error
            talk = _Talk(reader, str(self.access))
            head = h11.Request(method=method, target=target, headers=headers)
            status = await self._ask(talk, writer, head, sent)
            yield Stream(status, talk.chunks(idle))
        finally:
            for one in opened:
                one.transport.abort()

    async def _ask(self, talk: _Talk, writer: asyncio.StreamWriter, head: h11.Request, sent: bytes) -> int:
        try:
            for event in (head, h11.Data(data=sent), h11.EndOfMessage()):
                writer.write(talk.protocol.send(event) or b"")
            await within(writer.drain(), self._answer)
            return await within(talk.status(), self._answer)
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

    async def status(self) -> int:
        """Reads up to the end of the answer's head."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return int(event.status_code)
            if not isinstance(event, h11.InformationalResponse):
                raise ApiError(f"{self._server}: the connection was closed without an answer")

    async def chunks(self, idle: float) -> AsyncIterator[bytes]:
        """The answer's content."""
        while True:
            try:
                event = await within(self._next(), idle)
            except (asyncio.TimeoutError, OSError, h11.ProtocolError) as error:
                raise _failure(self._server, error) from error
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise ApiError(f"{self._server}: the connection was closed in the middle of an answer")

    async def _next(self) -> object:
        while True:
            event = self.protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            self.protocol.receive_data(await self._reader.read(1 << 16))


def _failure(server: str, error: Exception) -> ApiError:
    if isinstance(error, asyncio.TimeoutError):
        return ApiError(f"{server}: no answer in time")
    return ApiError(f"{server}: {_said(error)}")


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__
