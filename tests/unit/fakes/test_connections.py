# SPDX-License-Identifier: Apache-2.0
"""A stand-in that ends leaves no connection open, whenever its clients come."""

import asyncio
import contextlib
import gc
import random
import socket
import sys
import threading

import pytest

from tests.fakes.connections import Connections


async def hold(reader, writer):
    """A connection that lasts until it is cut."""
    writer.write(b"here\n")
    await writer.drain()
    await reader.read()


@pytest.fixture
def unraisable(monkeypatch):
    """What is thrown away unclosed: its warnings."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: found.append(str(one.exc_value)))
    return found


def test_clients_that_come_while_it_ends_are_all_cut(unraisable):
    dice = random.Random(4)
    over = threading.Event()
    hanging = []

    def client(port):
        while not over.is_set():
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as one:
                one.settimeout(20)
                try:
                    while one.recv(10):
                        pass
                except TimeoutError:
                    hanging.append(one.getsockname())

    async def once():
        connections = Connections(hold)
        port = connections.listen()
        over.clear()
        clients = [threading.Thread(target=client, args=(port,)) for _ in range(4)]
        for one in clients:
            one.start()
        await asyncio.sleep(dice.random() * 0.02)
        await connections.end()
        over.set()
        for one in clients:
            await asyncio.to_thread(one.join)

    for _ in range(20):
        asyncio.run(once())
    gc.collect()
    assert not hanging and not unraisable


def test_it_ends_at_once_and_listens_again_on_the_same_port():
    async def main():
        connections = Connections(hold)
        port = connections.listen()
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.readline() == b"here\n"
            await connections.end()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", port)
            assert connections.listen(port) == port
        await connections.end()

    asyncio.run(main())


def test_what_it_sends_does_not_wait_for_an_acknowledgement():
    async def tell(reader, writer):
        connection = writer.get_extra_info("socket")
        writer.write(b"%d\n" % bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        await reader.read()

    async def main():
        connections = Connections(tell)
        reader, writer = await asyncio.open_connection("127.0.0.1", connections.listen())
        assert await reader.readline() == b"1\n"
        writer.close()
        await connections.end()

    asyncio.run(main())


def test_a_mistake_in_the_stand_in_is_seen():
    seen = []

    async def broken(reader, writer):
        raise ZeroDivisionError

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
        connections = Connections(broken)
        reader, writer = await asyncio.open_connection("127.0.0.1", connections.listen())
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        await connections.end()

    asyncio.run(main())
    assert isinstance(seen[0], ZeroDivisionError)
