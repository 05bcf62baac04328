# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of a server, which does to its n-th request what a test says: delay, cut, answer for the server.

Requests and answers are passed on whole, watches chunk by chunk. In front of an API server both sides speak TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Answer:
    """What becomes of a request: it waits, has STATUS as answer, or is cut. effect: the server gets it."""

    delay: float = 0.0
    status: int = 0
    cut: bool = False
    effect: bool = True
    body: bytes | None = None
    """In place of the request's own."""


PASS = Answer()
Hook = Callable[[str, str, bytes], Answer]


class Proxy:
    """Use it as a context manager. hook: asked for each request, with method, target and body."""

    def __init__(self, port: int, folder: Path | None = None) -> None:
        self.hook: Hook = lambda method, target, body: PASS
        self.held = False
        """While set nothing goes through: no request, and no more of an answer."""
        self.port = 0
        self._upstream = port
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        context = _context(self._folder) if self._folder else None
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context, limit=1 << 24)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(
            asyncio.sleep(0.2)
        )  # in which a handshake that was under way is given up
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            context = ssl._create_unverified_context() if self._folder else None
            behind, upstream = await asyncio.open_connection(
                "127.0.0.1", self._upstream, ssl=context, limit=1 << 24
            )
            while await self._one(reader, writer, behind, upstream):
                pass
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, upstream):
                if one is not None:
                    with contextlib.suppress(Exception):
                        one.transport.abort()
                        await one.wait_closed()  # which takes several turns of the loop

    async def _one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        behind: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await _body(reader, head)
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        answer = self.hook(method, target, body)
        await asyncio.sleep(answer.delay)
        await self._held()
        if answer.effect:
            if answer.body is not None:
                lines = [one for one in head.split(b"\r\n") if not one.lower().startswith(b"content-length")]
                head = b"\r\n".join([lines[0], b"Content-Length: %d" % len(answer.body), *lines[1:]])
                body = answer.body
            upstream.write(head + body)
            await upstream.drain()
            if answer.cut or answer.status:
                await _body(behind, await behind.readuntil(b"\r\n\r\n"))
            else:
                await self._pass_on(behind, writer)
        if answer.cut:
            return False
        if answer.status:
            text = b'{"kind":"Status","apiVersion":"v1","status":"Failure","message":"by the test","code":%d}'
            text %= answer.status
            writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n" % answer.status)
            writer.write(b"Content-Length: %d\r\n\r\n" % len(text) + text)
            await writer.drain()
        return True

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = _length(head)
        writer.write(head)
        if length >= 0:
            writer.write(await reader.readexactly(length))
            await writer.drain()
            return
        while True:
            chunk = await _chunk(reader)
            await self._held()
            writer.write(chunk)
            await writer.drain()
            if chunk.startswith(b"0\r\n"):
                return

    async def _held(self) -> None:
        while self.held:
            await asyncio.sleep(0.05)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return -1 if b"transfer-encoding: chunked" in head.lower() else 0


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    length = _length(head)
    if length >= 0:
        return await reader.readexactly(length)
    found = b""
    while True:
        chunk = await _chunk(reader)
        found += chunk
        if chunk.startswith(b"0\r\n"):
            return found


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readuntil(b"\r\n")
    return size + await reader.readexactly(int(size, 16) + 2)


def _context(folder: Path) -> ssl.SSLContext:
    """A server's context with a certificate that is made now."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "proxy")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - day, now + day
    )
    certificate = made.sign(key, hashes.SHA256())
    path = folder / "proxy.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
