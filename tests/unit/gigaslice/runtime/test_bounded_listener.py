# SPDX-License-Identifier: Apache-2.0
"""A port under a flood: how many connections stay, and that who asks gets an answer, by TLS and without."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import socket
import ssl

import pytest
from aiohttp import web

from gigaslice.roles.webhook.certificates import issue_certificates
from gigaslice.runtime.bounded_listener import BoundedListener
from gigaslice.runtime.connection_bounds import ConnectionBounds, ConnectionState
from gigaslice.runtime.web_servers import served

SMALL = ConnectionBounds(silent=20, unasked=6, kept=4, seconds=20.0, grace=0.05, held_bytes=200_000)
REQUEST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
FLOOD = 60


def run(story):
    return asyncio.run(asyncio.wait_for(story, 60))


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """Contexts of a server, and of a client that trusts it."""
    made = issue_certificates("localhost", datetime.datetime.now(datetime.timezone.utc))
    chain = tmp_path_factory.mktemp("tls") / "chain.pem"
    chain.write_bytes(made.chain)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    return server, ssl.create_default_context(cadata=made.bundle.decode())


async def echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


@contextlib.asynccontextmanager
async def site(context=None, bounds=SMALL):
    async with served([web.post("/", echo)], context, bounds) as listener:
        ((_, port),) = await listener.start("127.0.0.1", 0)
        yield listener, port


async def asked(port, context=None, peer="127.0.0.1", more=b"Connection: close\r\n"):
    """The reply to a request."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        port,
        ssl=context,
        server_hostname="localhost" if context else None,
        local_addr=(peer, 0),
    )
    writer.write(REQUEST + more + b"\r\nok")
    try:
        return await reader.read()
    finally:
        writer.close()


def hello():
    """The first message of a handshake."""
    out = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


def counts(listener):
    return [listener.table.count(state) for state in ConnectionState]


@pytest.mark.parametrize(
    "said", ["nothing", "a byte", "half a hello", "a hello", "a handshake", "half a head", "half a body"]
)
def test_a_flood_keeps_nobody_out(certified, said):
    server, client = certified
    first = hello()
    plain = {"nothing": b"", "a byte": first[:1], "half a hello": first[:100], "a hello": first}
    after = {"a handshake": b"", "half a head": REQUEST, "half a body": REQUEST + b"\r\no"}

    async def one(port, kept):
        if said in plain:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(plain[said])
        else:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client, server_hostname="localhost"
            )
            writer.write(after[said])
        kept.append(writer)

    async def story():
        kept, most, replies = [], [0, 0, 0], []
        async with site(server) as (listener, port):
            for number in range(FLOOD):
                with contextlib.suppress(OSError):
                    await one(port, kept)
                if number % 10 == 9:
                    replies.append(await asked(port, client, peer=f"127.0.0.{2 + number % 3}"))
                most = list(map(max, most, counts(listener)))
            for writer in kept:
                writer.transport.abort()
        return most, replies, counts(listener), listener.table.held

    most, replies, left, held = run(story())
    assert len(replies) == 6 and all(b"200 OK" in reply and reply.endswith(b"ok") for reply in replies)
    assert most[0] <= 20 and most[1] <= 6 and most[2] <= 4
    assert left == [0, 0, 0] and held == 0


def test_who_is_given_a_place_and_loses_it_at_once_stops_nobody():
    """As on a machine that is slower than the time that a place is kept: all that wait pass through the places."""

    async def story():
        writers = []
        async with site(bounds=ConnectionBounds(silent=200, unasked=2, grace=60.0)) as (listener, port):
            for _ in range(30):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"P")
                writers.append(writer)
            while len(listener._waiting) < 28:
                await asyncio.sleep(0.01)
            listener.table.grace = lambda waiting: 0.0
            listener._hand_over()
            waiting = len(listener._waiting)
            reply = await asked(port, peer="127.0.0.2")
            for writer in writers:
                writer.transport.abort()
        return waiting, reply

    waiting, reply = run(story())
    assert waiting == 0
    assert reply.endswith(b"ok")


def test_honest_clients_that_come_at_once_wait_in_turn(certified):
    """More of them than have a place are not ended for each other."""
    server, client = certified

    async def story():
        async with site(server, ConnectionBounds(unasked=6, seconds=50.0, grace=50.0)) as (_, port):
            return await asyncio.gather(*(asked(port, client) for _ in range(40)))

    replies = run(story())
    assert len(replies) == 40 and all(reply.endswith(b"ok") for reply in replies)


@pytest.mark.parametrize("said", [b"", b"P", REQUEST, REQUEST + b"\r\no"])
def test_who_does_not_ask_in_time_is_let_go(said):
    async def story():
        async with site(bounds=ConnectionBounds(seconds=0.2)) as (listener, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            return counts(listener)

    assert run(story()) == [0, 0, 0]


def test_a_second_request_has_no_longer():
    async def story():
        async with site(bounds=ConnectionBounds()) as (listener, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST + b"\r\nok")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            listener.bounds = ConnectionBounds(seconds=0.2)
            await asyncio.sleep(0.5)  # an idle connection stays
            writer.write(REQUEST + b"\r\no")
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(story())


def test_large_requests_have_one_bound_for_all():
    async def story():
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        writers = []
        async with site() as (listener, port):
            for size in (60_000, 60_000, 120_000):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head + b"x" * size)
                writers.append(writer)
            while listener.table.count(ConnectionState.UNASKED) != 2 or listener.table.held > 200_000:
                await asyncio.sleep(0.01)
            reply = await asked(port)
            for writer in writers:
                writer.close()
        return reply

    assert run(story()).endswith(b"ok")


def test_a_port_that_is_taken_is_said_and_nothing_stays_open():
    async def story():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listener = BoundedListener(asyncio.Protocol, SMALL)
            with pytest.raises(OSError, match="in use"):
                await listener.start("127.0.0.1", taken.getsockname()[1])
            assert listener._sockets == []

    run(story())


class Connected(asyncio.Protocol):
    """Notes the transport of each connection."""

    def __init__(self, transports):
        self.transports = transports

    def connection_made(self, transport):
        self.transports.append(transport)


async def connected(port, transports, host="127.0.0.1"):
    """The options of a new connection on the side of the server: whether the peer is probed, and bytes sent at once."""
    with socket.create_connection((host, port)) as client:
        client.sendall(b"x")
        while not transports:
            await asyncio.sleep(0.01)
        accepted = transports[0].get_extra_info("socket")
        options = [
            accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
        ]
        transports.pop().close()
    return options


def test_a_connection_sends_at_once_and_notices_a_client_that_is_gone():
    async def story():
        transports = []
        listener = BoundedListener(lambda: Connected(transports), SMALL)
        ((_, port),) = await listener.start("127.0.0.1", 0)
        assert await connected(port, transports) == [1, 1]
        await listener.close()

    run(story())


def test_without_a_host_every_address_is_listened_on():
    async def story():
        transports = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        listener = BoundedListener(lambda: Connected(transports), SMALL)
        addresses = await listener.start(None, port)
        assert {number for _, number in addresses} == {port}
        await connected(port, transports)
        if len(addresses) > 1:
            await connected(port, transports, "::1")
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))

    run(story())


def test_too_many_open_files_are_waited_out_without_a_busy_loop(monkeypatch):
    async def story():
        transports, tries = [], []
        real = socket.socket.accept

        def accept(listening):
            tries.append(1)
            if len(tries) < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return real(listening)

        listener = BoundedListener(lambda: Connected(transports), SMALL, retry_seconds=0.2)
        ((_, port),) = await listener.start("127.0.0.1", 0)
        monkeypatch.setattr(socket.socket, "accept", accept)
        await connected(port, transports)
        assert 3 <= len(tries) < 8
        await listener.close()

    run(story())
