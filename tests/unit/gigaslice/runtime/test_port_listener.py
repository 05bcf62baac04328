"""What listens for connections: on which addresses, with what set, and after a failure."""

import asyncio
import errno
import socket
import sys

import pytest

from gigaslice.runtime import event_loop, port_listener
from gigaslice.runtime.port_listener import PortListener


class Connected(asyncio.Protocol):
    def __init__(self, found):
        self.found = found

    def connection_made(self, transport):
        self.found.append(transport)


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request, monkeypatch):
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    return lambda story: event_loop.run_quickly(asyncio.wait_for(story, 20))


async def connected(port, found, host="127.0.0.1"):
    with socket.create_connection((host, port)):
        while not found:
            await asyncio.sleep(0.01)
        options = [
            found[0].get_extra_info("socket").getsockopt(level, option)
            for level, option in (
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                (socket.IPPROTO_TCP, socket.TCP_NODELAY),
            )
        ]
        found.pop().close()
    return options


def test_a_connection_sends_at_once_and_notices_a_client_that_is_gone(run):
    async def story():
        found = []
        listener = PortListener(lambda: Connected(found))
        assert await connected(await listener.start("127.0.0.1", 0), found) == [1, 1]
        await listener.close()

    run(story())


def test_without_a_host_every_address_is_listened_on(run):
    async def story():
        found = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        listener = PortListener(lambda: Connected(found))
        assert await listener.start(None, port) == port
        await connected(port, found)
        if socket.has_ipv6 and len(listener._sockets) > 1:
            await connected(port, found, "::1")
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))

    run(story())


def test_a_port_that_is_taken_is_said_and_nothing_stays_open(run):
    async def story():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listener = PortListener(lambda: Connected([]))
            with pytest.raises(OSError) as refused:
                await listener.start("127.0.0.1", taken.getsockname()[1])
            assert refused.value.errno == errno.EADDRINUSE
            assert listener._sockets == []

    run(story())


def test_too_many_open_files_are_waited_out_without_a_busy_loop(run, monkeypatch):
    monkeypatch.setattr(port_listener, "_RETRY_SECONDS", 0.2)

    async def story():
        found, tries = [], []
        real = socket.socket.accept

        def accept(one):
            tries.append(1)
            if len(tries) < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return real(one)

        listener = PortListener(lambda: Connected(found))
        port = await listener.start("127.0.0.1", 0)
        monkeypatch.setattr(socket.socket, "accept", accept)
        await connected(port, found)
        assert 3 <= len(tries) < 8
        await listener.close()

    run(story())
