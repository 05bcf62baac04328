# SPDX-License-Identifier: Apache-2.0
"""Connections to the API server, by aiohttp: kept between requests, and bounded whatever the server sends.

Of the clients' modules only this one imports aiohttp. It is loaded with the first request: loading takes a fifth of a
second and eight MiB, and a node agent serves the kubelet before, or has no API server at all.

A kept connection has two traps. The server, or a load balancer before it, may give it up without a word, which shows
with the next request only: that one is sent again on a new connection, and no connection that was idle at the time is
used any more. And an idle connection reads whatever comes: an answer that nobody waits for closes it. The same count
bounds the announcements (1xx) before an answer. aiohttp keeps any number of both.
"""

from __future__ import annotations

import asyncio
import functools
import math
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from gigaslice.kubeapi.failures import LONGEST_RETRY_AFTER, ApiFailure

__all__ = ["Connections", "Response"]

_IDLE_SECONDS = 60.0
_MOST_INTERIM = 16  # answers 1xx before the answer itself
_UNACKNOWLEDGED_MILLISECONDS = 10_000
_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS),
)


class _ConnectionLost(aiohttp.ClientError):
    """A connection ended before an answer began. aiohttp does not know it, and repeats nothing by itself."""

    def __init__(self, error: BaseException, *, kept: bool) -> None:
        super().__init__(getattr(error, "strerror", None) or str(error))
        self.kept = kept


class _Generation:
    """Counts the times that a kept connection turned out to be lost."""

    number = 0


class _Protocol(ResponseHandler):
    """One connection, which takes the answers that were asked for and no others."""

    def __init__(self, loop: asyncio.AbstractEventLoop, generation: _Generation) -> None:
        super().__init__(loop)
        self._generation = generation
        self._number = generation.number
        self._expected = 0  # messages that the server may still send
        self._kept = False  # whether a request has been answered on it

    def set_response_params(self, **params: Any) -> None:
        """Begins a request."""
        self._expected = _MOST_INTERIM + 1
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Takes an answer, or an announcement of one."""
        message, _ = data
        final = not 100 <= message.code < 200
        if not self._expected or (self._expected == 1 and not final):
            if self.exception() is None:
                self.set_exception(
                    aiohttp.ClientError("it announces an answer without end, or sends one unasked")
                )
            if self.transport is not None:
                self.transport.abort()
            return
        self._expected = 0 if final else self._expected - 1
        self._kept = self._kept or final
        super().feed_data(data, size)

    def set_exception(self, exc: Any, *cause: Any) -> None:
        """Takes the error that the present request ends with."""
        if self._expected and isinstance(exc, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError):
            if self._kept:
                self._generation.number += 1
            exc = _ConnectionLost(exc, kept=self._kept)
        super().set_exception(exc, *cause)

    def is_connected(self) -> bool:
        """Whether a request may be sent on it."""
        return super().is_connected() and self._number == self._generation.number


class Response:
    """An answer that has begun."""

    def __init__(self, response: aiohttp.ClientResponse, server: str, piece: int) -> None:
        self.status = response.status
        self.retry_after = _retry_after(response)
        self._response = response
        self._server = server
        self._piece = piece

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields its bytes as they come, until the server ends it. Raises ApiFailure where it is cut short."""
        while True:
            try:
                chunk = await self._response.content.read(self._piece)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                raise _failure(self._server, error) from error
            if not chunk:
                return
            yield chunk

    def leave(self) -> None:
        """Ends it; what is left of it is not waited for."""
        if self._response.connection is not None:  # else it went back at the end of the answer
            self._response.close()


class Connections:
    """The connections to SERVER, whose address begins so, each made within CONNECT seconds. Made in an event loop.

    PIECE: the most bytes of an answer that are read at a time.
    """

    def __init__(self, server: str, connect: float, piece: int) -> None:
        self._server = server
        self._piece = piece
        self._connect = connect
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS, socket_factory=_socket)
        protocol = functools.partial(_Protocol, loop=asyncio.get_running_loop(), generation=_Generation())
        connector._factory = protocol  # type: ignore[assignment]  # aiohttp has no other way, and tests notice
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=piece,
            skip_auto_headers=("Accept-Encoding",),
        )

    async def close(self) -> None:
        """Cuts all of them."""
        await self._session.close()

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        context: ssl.SSLContext | None,
        server_name: str | None,
        head: float,
        idle: float,
        longest: float,
        once: bool,
    ) -> Response:
        """Sends a request, and returns the answer that has begun.

        Where a kept connection is lost before an answer, the request may have been carried out, and so be carried out
        twice. Whoever makes an object has named it, and learns by 409 that it is there.

        Args:
            method: The HTTP method.
            target: What follows the server's address, quoted.
            headers: The headers.
            body: The body.
            context: For new connections by TLS.
            server_name: The name that the certificate has to have, where it is not the host's.
            head: Seconds of silence until the answer begins.
            idle: Seconds of silence after that.
            longest: Seconds for all of it.
            once: Whether it is never sent a second time.

        Raises:
            ApiFailure: There was no answer.
        """
        arguments: dict[str, Any] = {"headers": headers, "data": body, "allow_redirects": False}
        if context is not None:
            arguments |= {"ssl": context, "server_hostname": server_name}
        url = URL(self._server + target, encoded=True)
        end = time.monotonic() + longest
        while True:
            arguments["timeout"] = aiohttp.ClientTimeout(
                total=None if end == math.inf else max(0.001, end - time.monotonic()),
                connect=self._connect,
                sock_read=max(0.001, min(head, idle)),
            )
            try:
                response = await self._session.request(method, url, **arguments)
            except _ConnectionLost as error:
                if once or not error.kept:
                    raise _failure(self._server, error) from error
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                raise _failure(self._server, error, sent=False) from error
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
                raise _failure(self._server, error) from error
            else:
                break
        if response.connection is not None and response.connection.protocol is not None:
            response.connection.protocol.read_timeout = max(0.001, idle)
            response.connection.protocol.start_timeout()
        return Response(response, self._server, self._piece)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Returns a socket on which a peer that is gone without a word is noticed within a minute."""
    family, kind, protocol, _, _ = address
    tcp_socket = socket.socket(family, kind, protocol)
    for level, option, value in _OPTIONS:
        tcp_socket.setsockopt(level, option, value)
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
