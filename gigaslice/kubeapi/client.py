"""HTTP to the API server for the cluster's roles: kept connections, one deadline per request, errors with a status.

The node agent has a client of its own (h11, a connection per request): it asks rarely and must stay small. A role of
the cluster sends many requests at once, and a new TLS handshake for each would cost more than the request.

Credentials are not kept: the token's file is read again every few seconds, and after a 401 at once; certificates are
loaded again when their files have changed, and later connections use them. No answer is larger in memory than the
caller has allowed. A request is repeated in one case only: 429, by which the server says that it has done nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import aiohttp
import orjson
from yarl import URL

from gigaslice.kube.fields import text_at
from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.documents import read_document
from gigaslice.kubeapi.failures import (
    CONFLICT,
    GONE,
    LONGEST_RETRY_AFTER,
    NOT_FOUND,
    TOO_MANY,
    ApiFailure,
    object_path,
)

__all__ = [
    "APPLY_PATCH",
    "CONFLICT",
    "GONE",
    "JSON",
    "MERGE_PATCH",
    "NOT_FOUND",
    "TOO_MANY",
    "ApiFailure",
    "KubeAnswer",
    "KubeClient",
    "KubeStream",
    "object_path",
]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""Content types of bodies."""

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_MOST_BYTES = 8 << 20
_MOST_LINE_BYTES = 8 << 20  # etcd takes objects up to 1.5 MiB, as JSON they are some times as long
_TOKEN_SECONDS = 10.0
_FILES_SECONDS = 60.0
_IDLE_CONNECTION_SECONDS = 60.0
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True, slots=True)
class KubeAnswer:
    """A whole answer."""

    status: int
    body: bytes
    retry_after: float = 0.0

    def document(self) -> dict[str, Any]:
        """Returns the JSON object of the body.

        Raises:
            ApiFailure: The body is none.
        """
        try:
            return read_document(self.body)
        except ValueError:
            raise ApiFailure("the API server's answer is no JSON object", self.status) from None

    def failure(self, what: str) -> ApiFailure:
        """Returns the error that this answer to WHAT is."""
        message, reason = "", ""
        with contextlib.suppress(ValueError):
            document = read_document(self.body)
            message, reason = text_at(document, "message")[:500], text_at(document, "reason")
        text = message or self.body[:200].decode("utf-8", "replace").strip()
        return ApiFailure(
            f"{what}: {self.status} {text}", self.status, reason=reason, retry_after=self.retry_after
        )


class KubeStream:
    """An answer that goes on: its status, and its lines as they come."""

    def __init__(self, response: aiohttp.ClientResponse, server: str) -> None:
        self.status = response.status
        self.retry_after = _retry_after(response)
        self._response = response
        self._server = server

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields complete lines until the server ends the answer.

        Raises:
            ApiFailure: The answer is cut short, falls silent, or lasts longer than it may.
        """
        rest = bytearray()
        searched = 0
        async for chunk in self._chunks():
            rest += chunk
            while (end := rest.find(b"\n", searched)) >= 0:
                line = bytes(rest[:end])
                del rest[: end + 1]
                searched = 0
                if line.strip():
                    yield line
            searched = len(rest)
            if searched > _MOST_LINE_BYTES:
                raise ApiFailure(f"the API server sent a line of more than {_MOST_LINE_BYTES >> 20} MiB")

    async def answer(self, most: int = _MOST_BYTES) -> KubeAnswer:
        """Returns the whole answer, which is no stream, as one of an error."""
        body = bytearray()
        async for chunk in self._chunks():
            body += chunk
            if len(body) > most:
                raise ApiFailure(f"the API server's answer has more than {most} bytes", self.status)
        return KubeAnswer(self.status, bytes(body), self.retry_after)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            try:
                chunk = await self._response.content.readany()
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                raise _failure(self._server, error) from error
            if not chunk:
                return
            yield chunk


class KubeClient:
    """The API server that ACCESS leads to. Use it as a context manager, inside one event loop.

    Args:
        access: Where the server is, and the credentials.
        agent: The User-Agent header, such as "gigaslice-scheduler/1.2".
        connect: Seconds for a connection to be made.
        answer: Seconds for a whole request, unless the call names others.
    """

    def __init__(
        self,
        access: Access,
        agent: str,
        *,
        connect: float = _CONNECT_SECONDS,
        answer: float = _ANSWER_SECONDS,
    ) -> None:
        self.access = access
        self._agent = agent
        self._connect = connect
        self._answer = answer
        self._authorization = _Renewed(_TOKEN_SECONDS, access.authorization)
        self._context = _Renewed(_FILES_SECONDS, _unless_unchanged(access))
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> KubeClient:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_IDLE_CONNECTION_SECONDS,
                socket_factory=_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding",),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Returns the object at PATH. Raises ApiFailure, as all of these do."""
        return (await self.request("GET", path, query)).document()

    async def post(self, path: str, body: object) -> dict[str, Any]:
        """Creates an object."""
        return (await self.request("POST", path, body=body)).document()

    async def put(self, path: str, body: object) -> dict[str, Any]:
        """Replaces an object."""
        return (await self.request("PUT", path, body=body)).document()

    async def patch(
        self, path: str, body: object, content: str = MERGE_PATCH, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Changes an object."""
        return (await self.request("PATCH", path, query, body, content)).document()

    async def delete(self, path: str, body: object = None) -> dict[str, Any]:
        """Deletes an object; BODY are options, such as preconditions."""
        return (await self.request("DELETE", path, body=body)).document()

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = JSON,
        *,
        seconds: float | None = None,
        most: int = _MOST_BYTES,
        patient: bool = True,
    ) -> KubeAnswer:
        """Sends one request and takes the whole answer.

        Args:
            method: The HTTP method.
            path: The path below the server's address.
            query: The query.
            body: What is sent as JSON; bytes are sent as they are.
            content: The content type of the body.
            seconds: The time for all of it, repetitions included.
            most: The most bytes that the answer may have.
            patient: Whether 429 with a time to wait that fits is waited for, and the request repeated.

        Returns:
            An answer with a status below 300.

        Raises:
            ApiFailure: There was no complete answer, or it has another status.
        """
        end = time.monotonic() + (self._answer if seconds is None else seconds)
        renewed = False
        while True:
            left = end - time.monotonic()
            async with self.stream(method, path, query, body, content, idle=left, longest=left) as stream:
                answer = await stream.answer(most)
            if answer.status < 300:
                return answer
            if answer.status == 401 and not renewed and self._authorization.forget():
                renewed = True
                continue
            if answer.status == TOO_MANY and patient and 0 < answer.retry_after < end - time.monotonic():
                await asyncio.sleep(answer.retry_after)
                continue
            raise answer.failure(f"{method} {path}")

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = JSON,
        *,
        idle: float,
        longest: float = math.inf,
    ) -> AsyncIterator[KubeStream]:
        """Sends one request and gives the answer as it comes, whatever its status.

        Args:
            method: The HTTP method.
            path: The path below the server's address.
            query: The query.
            body: What is sent as JSON.
            content: The content type of the body.
            idle: Seconds of silence after which the answer counts as cut short.
            longest: Seconds after which it counts as cut short in any case.

        Raises:
            ApiFailure: There was no answer.
        """
        if self._session is None:
            raise RuntimeError("the client is not open")
        server = str(self.access)
        url = URL(server + path + (f"?{urlencode(query)}" if query else ""), encoded=True)
        timeout = aiohttp.ClientTimeout(
            total=None if longest == math.inf else max(0.001, longest),
            sock_connect=self._connect,
            sock_read=max(0.001, idle),
        )
        response = None
        try:
            try:
                arguments = self._arguments(body, content)
            except (OSError, ValueError) as error:
                raise _failure(server, error, sent=False) from error
            try:
                response = await self._session.request(
                    method, url, allow_redirects=False, timeout=timeout, **arguments
                )
            except aiohttp.ClientConnectorError as error:
                raise _failure(server, error, sent=False) from error
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
                raise _failure(server, error) from error
            yield KubeStream(response, server)
        finally:
            if response is not None and not response.content.at_eof():
                response.close()  # what is left of the answer is not waited for

    def _arguments(self, body: object, content: str) -> dict[str, Any]:
        headers = {"Accept": JSON, "User-Agent": self._agent}
        authorization = self._authorization.value()
        if authorization:
            headers["Authorization"] = authorization
        arguments: dict[str, Any] = {"headers": headers}
        if body is not None:
            headers["Content-Type"] = content
            arguments["data"] = body if isinstance(body, bytes) else orjson.dumps(body)
        context = self._context.value()
        if context is not None:
            arguments["ssl"] = context
            if self.access.server_name:
                arguments["server_hostname"] = self.access.server_name
        return arguments


class _Renewed:
    """A value that is read again after some time."""

    def __init__(self, seconds: float, read: Callable[[], Any]) -> None:
        self._seconds = seconds
        self._read = read
        self._value: Any = None
        self._until = -math.inf

    def value(self) -> Any:
        now = time.monotonic()
        if now >= self._until:
            self._value = self._read()
            self._until = now + self._seconds
        return self._value

    def forget(self) -> bool:
        """Has the value read again at its next use; whether that gives another one."""
        before, self._until = self._value, -math.inf
        with contextlib.suppress(OSError):
            return bool(self.value() != before)
        return False


def _unless_unchanged(access: Access) -> Callable[[], ssl.SSLContext | None]:
    """Returns a function that loads the certificates, where they have changed since: a new context is a new pool."""
    cache: list[Any] = [None, None]

    def read() -> ssl.SSLContext | None:
        paths = (access.ca_file, access.cert_file, access.key_file)
        stamp = [_stamp(path) for path in paths if path is not None]
        if cache[0] != stamp:
            cache[:] = [stamp, access.ssl_context()]
        context: ssl.SSLContext | None = cache[1]
        return context

    return read


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ino


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Returns a socket on which a peer that is gone without a word is noticed within a minute."""
    family, kind, protocol, _, _ = address
    tcp_socket = socket.socket(family, kind, protocol)
    tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        tcp_socket.setsockopt(socket.IPPROTO_TCP, option, value)
    return tcp_socket


def _retry_after(response: aiohttp.ClientResponse) -> float:
    """Returns the seconds to be left alone. API servers never send the other form, a date."""
    value = response.headers.get("Retry-After", "").strip()
    return min(float(value[:9]), LONGEST_RETRY_AFTER) if value.isascii() and value.isdigit() else 0.0


def _failure(server: str, error: Exception, *, sent: bool = True) -> ApiFailure:
    if isinstance(error, asyncio.TimeoutError):
        return ApiFailure(f"{server}: no answer in time", sent=sent)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ApiFailure(f"{server}: its certificate is not trusted ({error.certificate_error})", sent=False)
    if isinstance(error, aiohttp.ClientOSError | OSError) and getattr(error, "strerror", None):
        return ApiFailure(f"{server}: {error.strerror}", sent=sent)
    return ApiFailure(f"{server}: {str(error) or type(error).__name__}", sent=sent)
