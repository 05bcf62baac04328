# SPDX-License-Identifier: Apache-2.0
"""HTTP to the API server, for the node agent and the cluster's roles: one deadline per request, errors with a status.

Credentials are not kept: the token's file is read for every request, and certificates are loaded again when their files
have changed; later requests then use new connections. No answer is larger in memory than the caller has allowed. A
request is repeated in two cases only: 429, by which the server says that it has done nothing, and a kept connection
that turned out to be lost (`gigaslice.kubeapi.connections`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from gigaslice.core.kube.fields import text_at
from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.documents import read_document
from gigaslice.kubeapi.failures import (
    CONFLICT,
    GONE,
    NOT_FOUND,
    TOO_MANY,
    ApiFailure,
    object_path,
)

if TYPE_CHECKING:
    from gigaslice.kubeapi.connections import Connections, Response

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
_PIECE_BYTES = 256 << 10
_MOST_REFUSAL_BYTES = 64 << 10  # that are decoded for their message


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
            document = read_document(self.body if len(self.body) <= _MOST_REFUSAL_BYTES else b"")
            message, reason = text_at(document, "message")[:500], text_at(document, "reason")
        text = message or self.body[:200].decode("utf-8", "replace").strip()
        return ApiFailure(
            f"{what}: {self.status} {text}", self.status, reason=reason, retry_after=self.retry_after
        )


class KubeStream:
    """An answer that goes on: its status, and its bytes as they come."""

    def __init__(self, response: Response, most: int) -> None:
        self.status = response.status
        self.retry_after = response.retry_after
        self._response = response
        self._most = most

    async def chunks(self, most: float = math.inf) -> AsyncIterator[bytes]:
        """Yields its bytes until the server ends the answer.

        Raises:
            ApiFailure: The answer is cut short, falls silent, lasts longer than it may, or has more than MOST bytes.
        """
        length = 0
        async for chunk in self._response.chunks():
            length += len(chunk)
            if length > most:
                raise ApiFailure(f"the API server's answer has more than {most} bytes", self.status)
            yield chunk

    async def answer(self, most: int | None = None) -> KubeAnswer:
        """Returns the whole answer, which is no stream, as one of an error. MOST: its bytes, else the client's."""
        body = bytearray()
        async for chunk in self.chunks(self._most if most is None else most):
            body += chunk
        return KubeAnswer(self.status, bytes(body), self.retry_after)


class KubeClient:
    """The API server that ACCESS leads to.

    It may be used at once. As a context manager it closes its connections at the end; both in one event loop.

    Args:
        access: Where the server is, and the credentials.
        agent: The User-Agent header, such as "gigaslice-scheduler/1.2".
        connect: Seconds for a connection to be made.
        answer: Seconds for a whole request, unless the call names others, and for a stream to begin.
        most: The most bytes that an answer may have, unless the call names others.
        piece: The most bytes of an answer that are read at a time.
    """

    def __init__(
        self,
        access: Access,
        agent: str,
        *,
        connect: float = _CONNECT_SECONDS,
        answer: float = _ANSWER_SECONDS,
        most: int = _MOST_BYTES,
        piece: int = _PIECE_BYTES,
    ) -> None:
        self.access = access
        self._agent = agent
        self._connect = connect
        self._answer = answer
        self._most = most
        self._piece = piece
        self._context: ssl.SSLContext | None = None
        self._stamp: list[tuple[int, ...]] | None = None  # of the files that the context was made of
        self._connections: Connections | None = None

    async def __aenter__(self) -> KubeClient:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

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
        most: int | None = None,
        patient: bool = True,
        once: bool = False,
    ) -> KubeAnswer:
        """Sends one request and takes the whole answer.

        Args:
            method: The HTTP method.
            path: The path below the server's address.
            query: The query.
            body: What is sent as JSON; bytes are sent as they are.
            content: The content type of the body.
            seconds: The time for all of it, repetitions included.
            most: The most bytes that the answer may have, else the client's.
            patient: Whether 429 with a time to wait that fits is waited for, and the request repeated.
            once: Whether it is a failure that a kept connection was lost, and the caller finds out what came of it.

        Returns:
            An answer with a status below 300.

        Raises:
            ApiFailure: There was no complete answer, or it has another status.
        """
        end = time.monotonic() + (self._answer if seconds is None else seconds)
        while True:
            left = end - time.monotonic()
            async with self.stream(
                method, path, query, body, content, idle=left, longest=left, once=once
            ) as stream:
                answer = await stream.answer(most)
            if 200 <= answer.status < 300:
                return answer
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
        once: bool = False,
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
            once: As of `request`.

        Raises:
            ApiFailure: There was no answer.
        """
        connections = self._connections or await self._open()
        headers = {"Accept": JSON, "User-Agent": self._agent}
        if body is not None:
            headers["Content-Type"] = content
        try:
            authorization = self.access.authorization()
            context = self._ssl_context()
        except (OSError, ValueError) as error:
            detail = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ApiFailure(f"{self.access}: {detail}", sent=False) from error
        if authorization:
            headers["Authorization"] = authorization
        response = await connections.send(
            method,
            path + (f"?{urlencode(query)}" if query else ""),
            headers,
            None if body is None else _encoded(body),
            context=context,
            server_name=self.access.server_name,
            head=self._answer,
            idle=idle,
            longest=longest,
            once=once,
        )
        try:
            yield KubeStream(response, self._most)
        finally:
            response.leave()

    async def _open(self) -> Connections:
        """Loads what it takes, beside the event loop, and returns the connections."""
        connections = await asyncio.to_thread(_import_connections)
        if self._connections is None:
            self._connections = connections(str(self.access), self._connect, self._piece)
        return self._connections

    def _ssl_context(self) -> ssl.SSLContext | None:
        """Returns that of the files as they are now. The same one means the same connections."""
        paths = (self.access.ca_file, self.access.cert_file, self.access.key_file)
        stamp = [_stamp(path) for path in paths if path is not None]
        if self._stamp != stamp:
            self._context, self._stamp = self.access.ssl_context(), stamp
        return self._context


def _import_connections() -> type[Connections]:
    from gigaslice.kubeapi.connections import Connections  # noqa: PLC0415  (see there)

    return Connections


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ino, status.st_size


def _encoded(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    try:
        return orjson.dumps(body)
    except TypeError:  # half of a surrogate pair, or a number beyond 64 bits, both of which tenants can write
        return json.dumps(body, separators=(",", ":")).encode()
