# SPDX-License-Identifier: Apache-2.0
"""The proxy: it connects where it has checked, for those with a pass, and passes every byte on."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import threading

import pytest

from gigaslice.roles.dataset_node.sources import addresses, checked_proxy
from gigaslice.roles.dataset_node.sources.checked_proxy import CheckedProxy
from tests.fakes.ports import free_port

SERVER, NODE = "127.0.0.1", "127.0.0.2"


class Listener:
    """A server whose connections are given to WORK, each in a thread."""

    def __init__(self, work, address=SERVER):
        self.socket = socket.create_server((address, 0))
        self.address = address
        self.port = self.socket.getsockname()[1]
        self.connections = 0
        self._work = work
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                self.connections += 1
                threading.Thread(target=self._served, args=(connection,), daemon=True).start()

    def _served(self, connection):
        with connection, contextlib.suppress(OSError):
            self._work(connection)


@pytest.fixture
def head_seconds():
    return 10.0


@pytest.fixture
def proxy(monkeypatch, head_seconds):
    monkeypatch.setattr(addresses, "_is_local", lambda address: address != SERVER)
    made = CheckedProxy(head_seconds)
    made.start()
    yield made
    made.close()


def connected(proxy):
    found = socket.create_connection(("127.0.0.1", proxy._listener.getsockname()[1]), 20)
    found.settimeout(20)
    return found


def password(given):
    word = given.url.removeprefix("http://").partition("@")[0]
    return f"Proxy-Authorization: Basic {base64.b64encode(word.encode()).decode()}\r\n"


def everything(connection):
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            data += piece
    return bytes(data)


def asked(proxy, text):
    """What a proxy answers to TEXT, until it closes."""
    with connected(proxy) as client:
        client.sendall(text.encode("latin-1"))
        return everything(client)


def test_a_tunnel_passes_every_byte_both_ways(proxy):
    sent = os.urandom(3 << 20)

    def echo(connection):
        connection.sendall(b"welcome")  # before anything was asked
        left = len(sent)
        while left:
            data = connection.recv(65536)
            left -= len(data)
            connection.sendall(data)

    server = Listener(echo)
    given = proxy.issue()
    with connected(proxy) as client:
        client.sendall(f"CONNECT localhost:{server.port} HTTP/1.1\r\n{password(given)}\r\n".encode())
        threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
        got = everything(client)
    assert got.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nwelcome")
    assert got.endswith(sent) and len(got) == len(sent) + len(
        b"HTTP/1.1 200 Connection established\r\n\r\nwelcome"
    )
    assert given.refused() is None


def requests_of(connection, answers):
    """Answers each request with its own head, as often as ANSWERS says."""
    received = b""
    for _ in range(answers):
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, _, received = received.partition(b"\r\n\r\n")
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(head), head))


def test_requests_by_http_are_passed_on_without_the_pass(proxy):
    server = Listener(lambda connection: requests_of(connection, 2))
    given = proxy.issue()
    url = f"http://{SERVER}:{server.port}"
    with connected(proxy) as client:
        for path in ("/a%20b?x=1", ""):
            client.sendall(
                f"GET {url}{path} HTTP/1.1\r\nHost: h\r\n{password(given)}Range: bytes=0-9\r\n\r\n".encode()
            )
        got = everything(client)
    assert b"GET /a%20b?x=1 HTTP/1.1\r\nHost: h\r\nRange: bytes=0-9" in got
    assert b"GET / HTTP/1.1\r\n" in got
    assert b"roxy" not in got and server.connections == 1


def test_a_body_is_passed_on_and_is_no_request(proxy):
    got = []

    def work(connection):
        data = b""
        while len(data.partition(b"\r\n\r\n")[2]) < 30:
            data += connection.recv(65536)
        got.append(data)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    server = Listener(work)
    head = (
        f"POST http://{SERVER}:{server.port}/ HTTP/1.1\r\nContent-Length: 30\r\n{password(proxy.issue())}\r\n"
    )
    body = "GET http://127.0.0.2/ HTTP/1.1"
    assert b"204" in asked(proxy, head + body)
    assert got[0].endswith(body.encode())


@pytest.mark.parametrize("how", ["CONNECT {at} HTTP/1.1", "GET http://{at}/ HTTP/1.1"])
def test_the_node_is_not_connected_to(proxy, how):
    node = Listener(lambda _: None, NODE)
    given = proxy.issue()
    answer = asked(proxy, f"{how.format(at=f'{NODE}:{node.port}')}\r\n{password(given)}\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    refusal = given.refused()
    assert refusal is not None and "--local-addresses on" in str(refusal) and not refusal.retry
    assert given.refused() is None, "said once"
    assert node.connections == 0


def test_a_name_is_resolved_by_the_proxy_and_what_was_checked_is_connected_to(proxy, monkeypatch):
    server, names = Listener(lambda connection: connection.sendall(b"here")), []
    real = socket.getaddrinfo

    def rebinding(host, port, *more, **options):
        if host == "rebinding.example":
            names.append(host)
            host = SERVER if len(names) == 1 else NODE
        return real(host, port, *more, **options)

    monkeypatch.setattr(addresses.socket, "getaddrinfo", rebinding)
    head = f"CONNECT rebinding.example:{server.port} HTTP/1.1\r\n{password(proxy.issue())}\r\n"
    assert asked(proxy, head).endswith(b"here")
    assert names == ["rebinding.example"]


def test_a_connection_stays_with_its_server(proxy):
    node, server = Listener(lambda _: None, NODE), Listener(lambda connection: requests_of(connection, 2))
    given = proxy.issue()
    second = f"GET http://{NODE}:{node.port}/ HTTP/1.1\r\n\r\n"
    first = f"GET http://{SERVER}:{server.port}/ HTTP/1.1\r\n{password(given)}\r\n"
    asked(proxy, first + second)
    asked(proxy, first + f"CONNECT {NODE}:{node.port} HTTP/1.1\r\n\r\n")
    assert node.connections == 0


def test_nobody_else_gets_anything(proxy):
    server = Listener(lambda connection: connection.sendall(b"secret"))
    given, withdrawn = proxy.issue(), proxy.issue()
    assert given.url != withdrawn.url and given.url not in repr(given)
    withdrawn.withdraw()
    head = f"CONNECT {SERVER}:{server.port} HTTP/1.1\r\n"
    for word in (
        "",
        password(withdrawn),
        "Proxy-Authorization: Basic \r\n",
        "Proxy-Authorization: Bearer x\r\n",
    ):
        assert asked(proxy, f"{head}{word}\r\n").startswith(b"HTTP/1.1 407 ")
    assert server.connections == 0


@pytest.mark.parametrize("text", [
    "", "\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT a HTTP/1.1\r\n\r\n",
    "CONNECT :80 HTTP/1.1\r\n\r\n", "CONNECT a:99999 HTTP/1.1\r\n\r\n", "CONNECT [::1 HTTP/1.1\r\n\r\n",
    "GET ftp://a/ HTTP/1.1\r\n\r\n",
    "GET http://\xff/ HTTP/1.1\r\n\r\n", "POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST http://a/ HTTP/1.1\r\nContent-Length: x\r\n\r\n", "A" * 100_000,
])  # fmt: skip
def test_what_is_no_request_ends_the_connection_and_nothing_else(proxy, text):
    with connected(proxy) as client:
        with contextlib.suppress(OSError):
            client.sendall(text.encode("latin-1"))
            client.shutdown(socket.SHUT_WR)
        assert b"200" not in everything(client)
    assert asked(proxy, "CONNECT a:1 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 407 ")


@pytest.mark.parametrize("head_seconds", [0.5])
def test_silent_connections_of_others_are_bounded_and_end(proxy):
    silent = [connected(proxy) for _ in range(checked_proxy._MOST_UNKNOWN + 20)]
    try:
        for one in silent:
            assert everything(one) == b"", "the last ones at once, the others when their time is over"
    finally:
        for one in silent:
            one.close()
    assert asked(proxy, "CONNECT a:1 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 407 ")


def test_a_server_that_is_away_is_an_answer_to_try_again(proxy):
    port = free_port()
    given = proxy.issue()
    answer = asked(proxy, f"CONNECT {SERVER}:{port} HTTP/1.1\r\n{password(given)}\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ") and given.refused() is None
