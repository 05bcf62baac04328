# SPDX-License-Identifier: Apache-2.0
"""A server of a role: whole requests in, whole replies out, whatever a client sends and in whatever pieces."""

import asyncio
import contextlib
import socket

import pytest
from aiohttp import web

from gigaslice.runtime.connection_bounds import ConnectionState
from gigaslice.runtime.web_servers import served
from tests.fakes.eventually import until

MOST = 1 << 20


def post(body, path=b"/echo", *headers):
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", b""]) + body


async def reply_of(reader):
    """Head and body of the next reply."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


class World:
    """A server on a free port: /echo answers at once, /later when it is told to, /broken and /late-broken fail."""

    def __init__(self):
        self.bodies = []
        self.ended = 0
        self.go = asyncio.Event()
        self.listener = None
        self.stack = contextlib.AsyncExitStack()

    async def start(self):
        routes = [
            web.post("/echo", self.echo),
            web.post("/later", self.later),
            web.post("/big", self.big),
            web.post("/broken", self.broken),
            web.post("/late-broken", self.late_broken),
        ]
        self.listener = await self.stack.enter_async_context(served(routes, most_body=MOST))
        ((_, port),) = await self.listener.start("127.0.0.1", 0)
        return port

    @property
    def transports(self):
        return [connection.at._transport for connection in self.listener.table.everyone()]

    async def echo(self, request):
        body = await request.read()
        self.bodies.append(body)
        return web.Response(body=body[:2])

    async def later(self, request):
        body = await request.read()
        self.bodies.append(body)
        await self.go.wait()
        self.ended += 1
        return web.Response(body=body[:2])

    async def big(self, _):
        return web.Response(body=bytes(1 << 16))

    async def broken(self, _):
        return 1 // 0

    async def late_broken(self, _):
        await asyncio.sleep(0)
        raise ValueError("by the test")


def play(story):
    async def main():
        world = World()
        port = await world.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        try:
            await asyncio.wait_for(story(world, reader, writer), 20)
        finally:
            writer.close()
            await world.stack.aclose()

    asyncio.run(main())


def test_a_connection_stays_after_a_reply():
    async def story(world, reader, writer):
        for text in (b"ab", b"cd"):
            writer.write(post(text))
            head, body = await reply_of(reader)
            assert head.startswith(b"HTTP/1.1 200 OK\r\n") and body == text

    play(story)


def test_a_client_that_reads_no_replies_gets_no_more_of_them_than_a_buffer_takes():
    async def story(world, _, first):
        port = first.get_extra_info("peername")[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(post(b"", b"/big") * 500)  # 32 MiB of replies

        def buffered():
            sizes = [link.get_write_buffer_size() for link in world.transports if link is not None]
            return max(sizes, default=0)

        while not buffered():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        size = buffered()
        for _ in range(500):
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(1 << 16)
        writer.close()
        assert 0 < size < 1 << 20

    play(story)


def test_a_reply_is_one_write():
    """A head and a body apart would wait for each other's acknowledgement, 40 ms a call."""

    async def story(world, reader, writer):
        world.go.set()
        writer.write(post(b"0"))
        await reply_of(reader)
        (transport,) = world.transports
        connection = transport.get_extra_info("socket")
        writes = []
        real = transport.write
        transport.write = lambda data: (writes.append(len(data)), real(data))
        transport.writelines = lambda parts: transport.write(b"".join(parts))
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for number, path in enumerate((b"/echo", b"/later", b"/other", b"/big", b"/broken"), 1):
            writer.write(post(b"ab", path))
            await reply_of(reader)
            assert len(writes) == number, path

    play(story)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_a_request_in_pieces(size):
    async def story(world, reader, writer):
        request = post(b"abcdefgh" * 20)
        for start in range(0, len(request), size):
            writer.write(request[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reply_of(reader))[1] == b"ab"
        assert world.bodies == [b"abcdefgh" * 20]

    play(story)


def test_a_chunked_body():
    async def story(world, reader, writer):
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert (await reply_of(reader))[1] == b"ab"
        assert world.bodies == [b"abcde"]

    play(story)


def test_replies_keep_the_order_of_requests_and_what_comes_early_waits():
    async def story(world, reader, writer):
        writer.write(post(b"1st", b"/later") + post(b"2nd") + post(b"3rd", b"/later") + post(b"4th"))
        await until(lambda: world.bodies)
        await asyncio.sleep(0.1)
        assert world.bodies == [b"1st"]
        world.go.set()
        for text in (b"1s", b"2n", b"3r", b"4t"):
            assert (await reply_of(reader))[1] == text

    play(story)


def test_a_client_that_does_not_wait_for_replies_is_not_read_from_until_then():
    async def story(world, reader, writer):
        some = post(b"ab", b"/later") * 1000
        for _ in range(200):  # 16 MB of requests
            writer.write(some)
        await until(lambda: world.bodies)
        sent, before = 0, -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.3)
            sent = world.listener.table.held
        assert 0 < sent < 2 << 20
        assert world.bodies == [b"ab"]

    play(story)


def test_a_client_that_leaves_does_not_end_what_is_being_done():
    """A binding may have been written by then: its outcome has to be seen."""

    async def story(world, reader, writer):
        writer.write(post(b"1st", b"/later"))
        while not world.bodies:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        while world.listener.table.everyone():
            await asyncio.sleep(0.01)
        assert world.ended == 0
        world.go.set()
        while not world.ended:
            await asyncio.sleep(0.01)

    play(story)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (post(b"x" * (MOST + 1)), 400),
        (b"POST /echo HTTP/1.1\r\nX: " + b"y" * (1 << 17), 400),
        (post(b"ab", b"/echo", b"Connection: close"), 200),
        (b"POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nab", 200),
    ],
)
def test_a_connection_that_cannot_go_on_is_answered_and_closed(request_, status):
    async def story(world, reader, writer):
        writer.write(request_)
        reply = await reader.read(-1)
        assert reply[:7] == b"HTTP/1." and reply[8:].startswith(b" %d " % status)
        assert reply.count(b"HTTP/1.") == 1

    play(story)


@pytest.mark.parametrize(
    ("path", "status"),
    [(b"/other", 404), (b"/echo?a=b", 200)],
)
def test_a_wrong_path_does_not_end_the_connection(path, status):
    async def story(world, reader, writer):
        writer.write(post(b"ab", path))
        head, _ = await reply_of(reader)
        assert head.startswith(b"HTTP/1.1 %d " % status)
        writer.write(post(b"cd"))
        assert (await reply_of(reader))[1] == b"cd"

    play(story)


@pytest.mark.parametrize("path", [b"/broken", b"/late-broken"])
def test_a_fault_of_ours_is_answered_and_ends_no_other_connection(path):
    async def story(world, reader, writer):
        port = writer.get_extra_info("peername")[1]
        others, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(post(b"1st", b"/later"))
        while not world.bodies:
            await asyncio.sleep(0.01)
        writer.write(post(b"ab", path))
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 500 ")
        world.go.set()
        assert (await reply_of(others))[1] == b"1s"
        other.write(post(b"cd"))
        assert (await reply_of(others))[1] == b"cd"
        other.close()

    play(story)


def test_a_body_that_waits_to_be_asked_for():
    async def story(world, reader, writer):
        head, _, body = post(b"ab", b"/echo", b"Expect: 100-continue").rpartition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reply_of(reader))[1] == b"ab"

    play(story)


def test_closing_waits_for_the_reply_that_is_due():
    async def story(world, reader, writer):
        writer.write(post(b"1st", b"/later"))
        while not world.bodies:
            await asyncio.sleep(0.01)
        assert world.listener.table.count(ConnectionState.KEPT) == 1
        closing = asyncio.ensure_future(world.stack.aclose())
        await asyncio.sleep(0.05)
        assert not closing.done()
        world.go.set()
        await closing
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 200 OK")

    play(story)


def test_a_connection_that_is_accepted_while_closing_is_closed():
    """It was accepted so many turns of the event loop before the end; it is set up in a later turn."""

    async def story(_, __, ___):
        for turns in range(6):
            for first in (b"", b"P"):
                other = World()
                port = await other.start()
                with contextlib.ExitStack() as clients:
                    connected = [
                        clients.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in "ab"
                    ]
                    for client in connected:
                        client.sendall(first)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    await other.stack.aclose()
                    for client in connected:
                        client.settimeout(5)
                        with contextlib.suppress(ConnectionResetError):
                            assert await asyncio.to_thread(client.recv, 1) == b"", turns

    play(story)
