# SPDX-License-Identifier: Apache-2.0
"""A forward proxy inside this process, for clients of others that resolve names and connect by themselves.

rclone resolves names and follows redirections by itself, and has a setting for an HTTP proxy. So it is pointed at this
one, on the loopback address: it resolves each name, checks the addresses, and connects to the one that it has checked
(`addresses.connect`). TLS stays between client and server.
obstore is pointed here only where its connect(2) cannot be replaced: small objects would take more than twice as long.

Each source has a pass of its own, which is the proxy's password: others on the machine get nothing from the proxy, and
what was refused is known by the source, whose client tells only that a connection failed.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gigaslice.core.dataset.errors import SourceError
from gigaslice.roles.dataset_node.sources.addresses import connect
from gigaslice.runtime.logs import get_logger

__all__ = ["CheckedProxy", "ProxyPass", "checked_proxy"]

_CONNECT_SECONDS = 10.0
_MOST_HEAD = 64 << 10
_MOST_UNKNOWN = 64  # connections at a time that have not shown a pass
_PAUSE = 0.2
_PUMPED = 256 << 10
_CHUNK = 64 << 10
_CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_HOP_BY_HOP = (b"proxy-authorization:", b"proxy-connection:")


@dataclass(slots=True)
class ProxyPass:
    """The right of one source to use the proxy.

    Attributes:
        url: The proxy's address with the pass in it; a secret.
        withdraw: Ends it; connections that are open stay.
        refusal: Why a connection was last refused for good, or None.
    """

    url: str = field(repr=False)
    withdraw: Callable[[], object] = field(repr=False)
    refusal: SourceError | None = None

    def refused(self) -> SourceError | None:
        """The refusal since the last call, or None."""
        refusal, self.refusal = self.refusal, None
        return refusal


@dataclass(frozen=True, slots=True)
class _Request:
    method: bytes
    host: str
    port: int
    head: bytes
    """What the server is sent; of CONNECT nothing."""
    body: int
    password: bytes


class CheckedProxy:
    """Listens on a port of the loopback address from `start` on, in threads that do not keep the process."""

    def __init__(self, head_seconds: float = 10.0) -> None:
        """HEAD_SECONDS: for the first request of a connection, which until then has shown no pass."""
        self._head_seconds = head_seconds
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._passes: dict[bytes, ProxyPass] = {}
        self._unknown = threading.Semaphore(_MOST_UNKNOWN)
        self._log = get_logger("proxy")

    def start(self) -> None:
        """Begins to serve."""
        threading.Thread(target=self._accept, name="dataset-proxy", daemon=True).start()

    def issue(self) -> ProxyPass:
        """A pass for one source, until it is withdrawn."""
        word = secrets.token_hex(16)
        password = base64.b64encode(f"source:{word}".encode())
        url = f"http://source:{word}@127.0.0.1:{self._listener.getsockname()[1]}"
        self._passes[password] = ProxyPass(url, lambda: self._passes.pop(password, None))
        return self._passes[password]

    def close(self) -> None:
        """Accepts no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if self._listener.fileno() < 0 or error.errno == errno.EINVAL:
                    return
                self._log.warning("connection not accepted", detail=str(error))
                time.sleep(_PAUSE)  # out of descriptors, which others give back
                continue
            if not self._unknown.acquire(blocking=False):
                client.close()
                continue
            try:
                threading.Thread(
                    target=self._serve, args=(client,), name="dataset-proxy", daemon=True
                ).start()
            except RuntimeError:  # no thread is left
                self._unknown.release()
                client.close()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        with client:
            try:
                received = bytearray()
                try:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    request = _parse(_head(client, received, time.monotonic() + self._head_seconds))
                    given = self._pass_of(request)
                finally:
                    self._unknown.release()
                if given is None:
                    client.sendall(_answer(407, "Proxy Authentication Required"))
                    return
                server = _connected(request, given, client)
                if server is None:
                    return
                server.settimeout(None)  # the client's own patience ends what takes too long
                client.settimeout(None)
                self._relay(client, server, request, received)
            except (OSError, ValueError):
                return
            finally:
                if server is not None:
                    server.close()

    def _pass_of(self, request: _Request) -> ProxyPass | None:
        for password, given in list(self._passes.items()):
            if hmac.compare_digest(password, request.password):
                return given
        return None

    def _relay(
        self, client: socket.socket, server: socket.socket, request: _Request, received: bytearray
    ) -> None:
        if request.method == b"CONNECT":
            client.sendall(_CONNECTED)  # before anything of the server's, which may be the first to speak
        back = threading.Thread(
            target=_pump_and_end, args=(server, client), name="dataset-proxy", daemon=True
        )
        back.start()
        try:
            if request.method == b"CONNECT":
                server.sendall(received)
                _pump(client, server)
            else:
                _pass_requests(client, server, request, received)
        except (OSError, ValueError):
            pass
        finally:
            for end in (server, client):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            back.join()


def _connected(request: _Request, given: ProxyPass, client: socket.socket) -> socket.socket | None:
    try:
        return connect(request.host, request.port, _CONNECT_SECONDS, local=False)
    except SourceError as error:
        if error.retry:
            client.sendall(_answer(502, "Bad Gateway"))
        else:
            given.refusal = error
            client.sendall(_answer(403, "Forbidden"))
        return None


def _answer(status: int, reason: str) -> bytes:
    more = 'Proxy-Authenticate: Basic realm="gigaslice"\r\n' if status == 407 else ""
    return f"HTTP/1.1 {status} {reason}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()


def _head(client: socket.socket, received: bytearray, until: float | None = None) -> bytes:
    """A request's head with its last empty line, taken from what was RECEIVED and from CLIENT; b"" at its end.

    UNTIL is when it must be there at the latest, by the monotonic clock. Raises OSError, ValueError.
    """
    while (end := received.find(b"\r\n\r\n")) < 0:
        if until is not None:
            client.settimeout(max(until - time.monotonic(), 0.001))
        data = client.recv(_CHUNK)
        if not data:
            return b""
        received += data
        if len(received) > _MOST_HEAD and b"\r\n\r\n" not in received:
            raise ValueError("the head is too long")
    head = bytes(received[: end + 4])
    del received[: end + 4]
    return head


def _parse(head: bytes) -> _Request:
    """What a client asks of a proxy. Raises ValueError."""
    first, _, rest = head.partition(b"\r\n")
    method, target, version = first.split(b" ")
    lines = [line for line in rest.split(b"\r\n") if line]
    values = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
    }
    scheme, _, password = values.get(b"proxy-authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        password = b""
    if method == b"CONNECT":
        parts = urlsplit(f"//{target.decode('ascii')}")
        kept = b""
    else:
        parts = urlsplit(target.decode("ascii"))
        if parts.scheme != "http" or b"transfer-encoding" in values:
            raise ValueError("neither CONNECT nor a request without a streamed body to an http address")
        origin = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        passed = [line for line in lines if not line.lower().startswith(_HOP_BY_HOP)]
        kept = b"\r\n".join((b" ".join((method, origin.encode("ascii"), version)), *passed)) + b"\r\n\r\n"
    if not parts.hostname:
        raise ValueError("no host")
    port = parts.port or (0 if method == b"CONNECT" else 80)
    return _Request(method, parts.hostname, port, kept, int(values.get(b"content-length", b"0")), password)


def _pass_requests(
    client: socket.socket, server: socket.socket, request: _Request, received: bytearray
) -> None:
    """Passes on the requests of one connection, all of which must be to its one server."""
    first = request
    while True:
        server.sendall(request.head)
        left = request.body
        while left > 0:
            data = bytes(received[:left]) or client.recv(min(left, _CHUNK))
            if not data:
                return
            del received[: len(data)]
            server.sendall(data)
            left -= len(data)
        head = _head(client, received)
        if not head:
            return
        request = _parse(head)
        if (request.method == b"CONNECT", request.host, request.port) != (False, first.host, first.port):
            raise ValueError("another server on the same connection")


def _pump_and_end(source: socket.socket, sink: socket.socket) -> None:
    """Passes on what SOURCE sends. At its end SINK hears nothing more, and is not waited for."""
    with contextlib.suppress(OSError):
        _pump(source, sink)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Passes on everything from SOURCE to SINK."""
    room = memoryview(bytearray(_PUMPED))
    while count := source.recv_into(room):
        sink.sendall(room[:count])


_shared: list[CheckedProxy] = []
_lock = threading.Lock()


def checked_proxy() -> CheckedProxy:
    """This process's proxy, which is started by the first source that needs it. Raises SourceError."""
    with _lock:
        if not _shared:
            try:
                proxy = CheckedProxy()
            except OSError as error:
                raise SourceError(
                    f"no port of the loopback address can be listened on: {error.strerror}; look after the node",
                    retry=True,
                ) from None
            proxy.start()
            _shared.append(proxy)
        return _shared[0]
