"""The HTTP front: whole requests in, whole replies out, whatever a client sends and in whatever pieces."""

import asyncio
import contextlib
import socket
import sys

import pytest

from gigaslice.runtime import event_loop
from gigaslice.scheduler.http_front import HttpFront, HttpReply

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"


def post(body, path=b"/echo", *headers):
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", b""]) + body


class World:
    """A front on a free port: /echo answers at once, /later when it is told to, /broken and /late-broken fail."""

    def __init__(self):
        self.seen = []
        self.go = asyncio.Event()
        routes = {
            (b"POST", b"/echo"): self.echo,
            (b"POST", b"/later"): self.later,
            (b"POST", b"/big"): lambda _: HttpReply(200, bytes(1 << 16)),
            (b"POST", b"/broken"): lambda _: 1 // 0,
            (b"POST", b"/late-broken"): self.late_broken,
        }
        self.front = HttpFront(routes, 1 << 20)

    def echo(self, body):
        self.seen.append(body)
        return HttpReply(200, body[:2])

    async def later(self, body):
        self.seen.append(body)
        await self.go.wait()
        return HttpReply(200, body[:2])

    async def late_broken(self, _):
        raise ValueError("by the test")


@pytest.fixture(params=["uvloop", "asyncio"])
def play(request, monkeypatch):
    """Runs a story in both event loops."""
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    return _play


def _play(story):
    async def main():
        world = World()
        port = await world.front.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        try:
            await asyncio.wait_for(story(world, reader, writer), 20)
        finally:
            writer.close()
            await world.front.close(1.0)

    event_loop.run_quickly(main())


def test_a_reply_is_one_piece_and_the_connection_stays(play):
    async def story(world, reader, writer):
        for text in (b"ab", b"cd"):
            writer.write(post(text))
            assert await reader.readexactly(len(OK) + 2) == OK + text

    play(story)


def test_a_client_that_reads_no_replies_gets_no_more_of_them_than_a_buffer_takes(play):
    async def story(world, _, first):
        port = first.get_extra_info("peername")[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(post(b"", b"/big") * 500)  # 32 MiB of replies
        await asyncio.sleep(0.5)
        buffered = max(one._transport.get_write_buffer_size() for one in world.front._connections)
        for _ in range(500):
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(1 << 16)
        writer.close()
        assert 0 < buffered < 1 << 20

    play(story)


@pytest.mark.parametrize("more", [False, True])
def test_a_client_that_sends_no_more_still_gets_its_replies(play, more):
    async def story(world, reader, writer):
        writer.write(post(b"ab", b"/later") + (post(b"cd") if more else b""))
        await asyncio.sleep(0.02)
        writer.write_eof()
        await asyncio.sleep(0.02)
        world.go.set()
        assert (await reader.read()).replace(b"Connection: close\r\n", b"") == OK + b"ab" + (
            OK + b"cd" if more else b""
        )

    play(story)


def test_a_reply_is_one_write(play):
    """A head and a body apart would wait for each other's acknowledgement, 40 ms a call."""

    class Counted:
        def __init__(self, transport):
            self.inner, self.writes = transport, 0

        def write(self, data):
            self.writes += 1
            self.inner.write(data)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    async def story(world, reader, writer):
        world.go.set()
        writer.write(post(b"0"))
        await reader.readuntil(b"0")
        (connection,) = world.front._connections
        counted = connection._transport = Counted(connection._transport)
        for number, path in enumerate((b"/echo", b"/later", b"/broken", b"/other"), 1):
            writer.write(post(b"ab", path))
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.01)
            assert counted.writes == number

    play(story)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_a_request_in_pieces(play, size):
    async def story(world, reader, writer):
        request = post(b"abcdefgh" * 20)
        for start in range(0, len(request), size):
            writer.write(request[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(len(OK) + 2) == OK + b"ab"
        assert world.seen == [b"abcdefgh" * 20]

    play(story)


def test_a_chunked_body(play):
    async def story(world, reader, writer):
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert await reader.readexactly(len(OK) + 2) == OK + b"ab"
        assert world.seen == [b"abcde"]

    play(story)


def test_replies_keep_the_order_of_requests_and_what_comes_early_waits(play):
    async def story(world, reader, writer):
        writer.write(post(b"1st", b"/later") + post(b"2nd") + post(b"3rd", b"/later") + post(b"4th"))
        await asyncio.sleep(0.1)
        assert world.seen == [b"1st"]
        world.go.set()
        for text in (b"1s", b"2n", b"3r", b"4t"):
            assert await reader.readexactly(len(OK) + 2) == OK + text

    play(story)


def test_a_client_that_leaves_does_not_end_what_is_being_done(play):
    async def story(world, reader, writer):
        writer.write(post(b"1st", b"/later"))
        while not world.seen:
            await asyncio.sleep(0.01)
        (connection,) = world.front._connections
        writer.transport.abort()
        await asyncio.sleep(0.1)
        assert not connection.task.done()
        world.go.set()
        await asyncio.sleep(0.1)
        assert connection.task is None

    play(story)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (post(b"x" * ((1 << 20) + 1)), 413),
        (b"POST /echo HTTP/1.1\r\nX: " + b"y" * (1 << 17), 431),
        (b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
        (post(b"ab", b"/echo", b"Connection: close"), 200),
        (b"POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nab", 200),
        (b"HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    ],
)
def test_a_connection_that_cannot_go_on_is_answered_and_closed(play, request_, status):
    async def story(world, reader, writer):
        writer.write(request_)
        found = await reader.read(-1)
        assert found.startswith(b"HTTP/1.1 %d " % status)
        assert found.count(b"HTTP/1.1") == 1
        assert b"\r\nConnection: close\r\n" in found

    play(story)


@pytest.mark.parametrize(
    ("path", "status"),
    [(b"/other", 404), (b"/echo?a=b", 200), (b"/broken", 500), (b"/late-broken", 500)],
)
def test_one_bad_request_does_not_end_the_connection(play, path, status):
    async def story(world, reader, writer):
        writer.write(post(b"ab", path))
        assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % status)
        while (await reader.readline()).strip():
            pass
        writer.write(post(b"cd"))
        found = b""
        while not found.endswith(OK + b"cd"):
            found += await reader.read(1000)

    play(story)


def test_a_body_that_waits_to_be_asked_for(play):
    async def story(world, reader, writer):
        head, _, body = post(b"ab", b"/echo", b"Expect: 100-continue").rpartition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert await reader.readexactly(len(OK) + 2) == OK + b"ab"

    play(story)


def test_closing_waits_for_the_reply_that_is_due(play):
    async def story(world, reader, writer):
        writer.write(post(b"1st", b"/later"))
        while not world.seen:
            await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(world.front.close(10.0))
        await asyncio.sleep(0.05)
        assert not closing.done()
        world.go.set()
        await closing
        found = await reader.read(-1)
        assert found.startswith(b"HTTP/1.1 200 OK")
        assert b"Connection: close" in found

    play(story)


def test_a_connection_that_is_accepted_while_closing_is_closed(play):
    """It was accepted so many turns of the event loop before the end; it is set up in a later turn."""

    async def story(_, __, ___):
        for turns in range(6):
            other = World()
            port = await other.front.start("127.0.0.1", 0)
            with contextlib.ExitStack() as clients:
                found = [clients.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in "ab"]
                for _ in range(turns):
                    await asyncio.sleep(0)
                await other.front.close(1.0)
                for client in found:
                    client.settimeout(5)
                    with contextlib.suppress(ConnectionResetError):
                        assert await asyncio.to_thread(client.recv, 1) == b"", turns

    play(story)
