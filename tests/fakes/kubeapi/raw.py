# SPDX-License-Identifier: Apache-2.0
"""A server that sends any bytes: what an API server never should, at once, for ever, too much or too little."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gigaslice.kubeapi.access import Access

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

Answer = Callable[[str], "bytes | Iterable[bytes]"]


def chunk(data: bytes) -> bytes:
    """A chunk of an answer that begins with CHUNKED."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(document: Any, status: str = "200 OK", head: str = "") -> bytes:
    """A whole answer; HEAD: lines of it that end with CRLF."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class RawServer(socketserver.ThreadingTCPServer):
    """Answers each request with the bytes (or iterable of bytes) that ANSWER gives for its target.

    The connection ends with an answer of no bytes.

    Attributes:
        targets: Of the requests, in their order.
        connections: The number of the connection that each came on.
        sent: Bytes that were written.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answer: Answer, requests: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.requests = requests
        self.targets: list[str] = []
        self.connections: list[int] = []
        self.accepted = 0
        self.sent = 0

    @property
    def access(self) -> Access:
        """The way in."""
        return Access("127.0.0.1", self.server_address[1], tls=False)

    def watches(self) -> int:
        """How many watches were asked for."""
        return sum("watch=1" in target for target in self.targets)


class _Handler(socketserver.BaseRequestHandler):
    server: RawServer

    def handle(self) -> None:
        self.server.accepted += 1
        number = self.server.accepted
        with contextlib.suppress(OSError):
            for _ in range(self.server.requests):
                target = self._request()
                if not target:
                    return
                self.server.targets.append(target)
                self.server.connections.append(number)
                answer = self.server.answer(target)
                if answer == b"":
                    return
                for part in [answer] if isinstance(answer, bytes) else answer:
                    self.request.sendall(part)
                    self.server.sent += len(part)

    def _request(self) -> str:
        """Reads a request; returns its target, empty where there is none."""
        head = b""
        while b"\r\n\r\n" not in head:
            more = self.request.recv(65536)
            if not more:
                return ""
            head += more
        head, _, body = head.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(body) < length:
            body += self.request.recv(65536)
        return head.split(b" ")[1].decode("latin-1")


@contextlib.contextmanager
def serving(answer: Answer, *, requests: int = 1) -> Iterator[RawServer]:
    """A server that closes each connection after so many REQUESTS."""
    with RawServer(answer, requests) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
