# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 for reading files: blocking, kept connections, and every byte of an answer checked against what was listed.

The standard library's client does the protocol. Object-store clients do not show what is needed here: a server's
Retry-After, where a redirection leads (it must not lead to the node itself, and takes no credentials to another host),
the address that is connected to, and Unix sockets, on which rclone serves. No answer is ever read beyond the bytes that
were listed, and a server that sends a byte an hour is given up as one that sends none.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urljoin, urlsplit

from gigaslice.core.dataset.endpoint import ServerAddress
from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.sources.addresses import connect
from gigaslice.roles.dataset_node.sources.protocol import SourceBusyError

__all__ = ["HttpClient", "HttpResponse"]

_SECONDS = 30.0  # for one step: to connect, or until the next bytes
_SLOWEST = 16 << 10  # bytes a second; a request that is slower is given up, and tried again
_CHUNK = 256 << 10
_IDLE = 96
_REDIRECTIONS = 5
_LONGEST_RETRY_AFTER = 300.0
_OK, _PARTIAL = 200, 206
_MOVED = frozenset((301, 302, 303, 307, 308))


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The head of an answer."""

    status: int
    headers: http.client.HTTPMessage
    body: http.client.HTTPResponse

    def header(self, name: str) -> str:
        """The value of a header, without what no line of text may have; empty where there is none."""
        return plain(self.headers.get(name, "") or "")

    @property
    def length(self) -> int | None:
        """Bytes of the body, where the server says it."""
        text = self.headers.get("Content-Length")
        return int(text) if text and text.isdigit() and len(text) < 20 else None

    @property
    def total(self) -> int | None:
        """Bytes of the whole file, where the answer is a range of it."""
        text = (self.headers.get("Content-Range") or "").rpartition("/")[2]
        return int(text) if text.isdigit() and len(text) < 20 else None

    @property
    def start(self) -> int | None:
        """Where the range begins."""
        unit, _, rest = (self.headers.get("Content-Range") or "").partition(" ")
        text = rest.partition("-")[0]
        return int(text) if unit == "bytes" and text.isdigit() and len(text) < 20 else None


@dataclass(slots=True)
class HttpClient:
    """A client of one server.

    Args:
        base: Its URL, with no user or password.
        headers: Sent with every request to this server and to no other. May be credentials.
        local: Whether addresses of the node itself may be connected to.
        unix: Path of a Unix socket to use instead of the URL's host.
        context: How TLS is checked.
    """

    base: SplitResult
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    local: bool = False
    unix: str = ""
    context: ssl.SSLContext | None = None
    seconds: float = _SECONDS
    _idle: list[tuple[str, http.client.HTTPConnection]] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _closed: bool = False

    @contextlib.contextmanager
    def request(
        self, target: str, method: str = "GET", *, headers: Mapping[str, str] | None = None
    ) -> Iterator[HttpResponse]:
        """Sends a request for TARGET (a quoted path, with a query or without) and yields the answer's head.

        The connection is kept when the body was read to its end, and closed otherwise.

        Raises:
            SourceError: There was no answer, with `retry` set, or a redirection that is not followed.
        """
        path, _, query = target.partition("?")
        url = self.base._replace(path=path, query=query)
        for _ in range(_REDIRECTIONS + 1):
            own = (url.scheme, url.netloc) == (self.base.scheme, self.base.netloc)
            sent = {"Accept-Encoding": "identity", "User-Agent": "gigaslice", **(headers or {})}
            if own:
                sent.update(self.headers)
            origin = f"{url.scheme}://{url.netloc}"
            connection, response = self._sent(url, origin, method, sent)
            try:
                where = response.headers.get("Location")
                if response.status not in _MOVED or not where:
                    yield HttpResponse(response.status, response.headers, response)
                    return
                self._read(response, _CHUNK)
                url = self._moved(url, where)
            finally:
                self._done(origin, connection, response)
        raise SourceError(f"{self.base.netloc} redirects in a circle; name the address that has the data")

    def body(self, answer: HttpResponse, size: int) -> Iterator[bytes]:
        """The SIZE bytes of the answer's body, in chunks; fewer or more are the caller's to judge.

        At most one byte more than SIZE is read.

        Raises:
            SourceError: They do not come, or too slowly.
        """
        late = time.monotonic() + 2 * self.seconds + size / _SLOWEST
        left = size + 1
        while left > 0 and (data := self._read(answer.body, min(left, _CHUNK))):
            left -= len(data)
            yield data
            if time.monotonic() > late:
                raise SourceError(
                    f"{self.base.netloc} sends too slowly; look after the server or the network", retry=True
                )

    def _read(self, response: http.client.HTTPResponse, most: int) -> bytes:
        try:
            return response.read1(most)
        except http.client.IncompleteRead:
            return b""
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._lost(self.base, error) from None

    def failure(self, answer: HttpResponse, what: str) -> SourceError:
        """The error that an answer with an unexpected status is, to a request for WHAT."""
        status = answer.status
        host = self.base.netloc or "rclone"
        if status in (401, 403):
            return SourceError(
                f"{host} refuses {what} (status {status}); check the credentials (a pod's: nodePublishSecretRef)",
                denied=True,
            )
        if status in (404, 410):
            return SourceError(f"{host} has no {what} (status {status}); check the source's address")
        if status in (429, 503):
            return SourceBusyError(
                f"{host} is busy (status {status} for {what})", _seconds(answer.header("Retry-After"))
            )
        return SourceError(
            f"{host} answers {what} with status {status}; look after the server",
            retry=status >= 500 or status == 408,
        )

    def close(self) -> None:
        """Closes the connections that are idle, and those in use when their answers end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _sent(
        self, url: SplitResult, origin: str, method: str, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        for fresh in (False, True):
            connection = self._connection(url, origin, fresh=fresh)
            if connection is None:
                continue
            try:
                connection.request(method, target, headers=dict(headers))
                return connection, connection.getresponse()
            except SourceError:
                connection.close()
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                # a kept connection may have been closed by the server; nothing was answered on it
                if fresh:
                    raise self._lost(url, error) from None
        raise AssertionError("unreachable")

    def _connection(self, url: SplitResult, origin: str, *, fresh: bool) -> http.client.HTTPConnection | None:
        if not fresh:
            with self._lock:
                for index in range(len(self._idle) - 1, -1, -1):
                    if self._idle[index][0] == origin:
                        return self._idle.pop(index)[1]
            return None
        return _Connection(self, url)

    def _done(
        self, origin: str, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        whole = response.isclosed() or response.length == 0
        response.close()
        if whole and not response.will_close and connection.sock is not None:
            with self._lock:
                if not self._closed and len(self._idle) < _IDLE:
                    self._idle.append((origin, connection))
                    return
        connection.close()

    def _moved(self, url: SplitResult, where: str) -> SplitResult:
        try:
            # clients differ about a backslash, and about what does not print
            usable = where.isprintable() and "\\" not in where
            target = urlsplit(urljoin(url.geturl(), where))
            ServerAddress.parse(target.netloc)
            usable = usable and target.scheme in ("http", "https")
        except ValueError:
            usable = False
        if not usable or self.unix:
            raise SourceError(
                f"{self.base.netloc} redirects to what is no HTTP address; name the address that has the data"
            )
        if url.scheme == "https" and target.scheme == "http":
            raise SourceError(
                f"{self.base.netloc} redirects from https to http; name the address that has the data"
            )
        return target._replace(fragment="")

    def _lost(self, url: SplitResult, error: Exception) -> SourceError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return SourceError(f"{url.netloc} has a certificate that is not trusted: {plain(error.verify_message)}; "
                               "give its CA in the secret's ca.crt")  # fmt: skip
        why = (
            "no answer in time"
            if isinstance(error, TimeoutError)
            else f"connection lost ({type(error).__name__})"
        )
        return SourceError(
            f"{url.netloc or 'rclone'}: {why}; look after the server or the network", retry=True
        )


class _Connection(http.client.HTTPConnection):
    """Connects where the client allows it."""

    def __init__(self, client: HttpClient, url: SplitResult) -> None:
        super().__init__(url.hostname or "localhost", url.port or (443 if url.scheme == "https" else 80))
        self._client = client
        self._tls = url.scheme == "https"
        self.timeout = client.seconds

    def connect(self) -> None:
        client = self._client
        if client.unix:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(client.seconds)
            sock.connect(client.unix)
        else:
            sock = connect(self.host, self.port, client.seconds, local=client.local)
            if self._tls:
                client.context = client.context or ssl.create_default_context()
                sock = client.context.wrap_socket(sock, server_hostname=self.host)
        self.sock = sock


def _seconds(text: str) -> float:
    """A Retry-After: seconds, or a date."""
    if text.isdigit() and len(text) < 7:
        return min(float(text), _LONGEST_RETRY_AFTER)
    try:
        left = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(left, 0.0), _LONGEST_RETRY_AFTER)
