# SPDX-License-Identifier: Apache-2.0
"""Calls while the agent is away: they wait, come to the next agent with their age, and are given up in the end."""

import socket
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from agent.front import channel as way
from agent.front import grpc as grpc_wire
from agent.front.channel import CALL, METHODS, Buffer, Kind
from agent.front.front import Front
from agent.front.http2 import Connection, MessageReceived
from agent.front.resource_endpoint import ResourceEndpoint
from agent.front.resource_offer import ResourceOffer

AGENTS = []


class Agent:
    """The agent's end of the way to FRONT."""

    def __init__(self, front: Front) -> None:
        ours, self.sock = way.pair()
        front.connect(ours)
        self.sock.settimeout(30)
        self.buffer, self.heard = Buffer(), []
        AGENTS.append(self)

    def offer(self, directory):
        offer = ResourceOffer(str(directory), "p.sock", "example.com/x", b"\x08\x01", b"register")
        self.sock.sendall(way.frame(Kind.OFFER, 1, offer.to_bytes()) + way.frame(Kind.LIST, 1, b"devices"))

    def call(self):
        """Number, method, age and message of the next call."""
        while not (calls := [one for one in self.heard if one[0] == Kind.CALL]):
            self.heard += self.buffer.add(self.sock.recv(65536))
        self.heard.remove(calls[0])
        _, number, payload = calls[0]
        method, _, age, _ = CALL.unpack_from(payload)
        return number, METHODS[method], age, payload[CALL.size :]

    def wait_for(self, kind, number):
        while not [one for one in self.heard if one[:2] == (kind, number)]:
            self.heard += self.buffer.add(self.sock.recv(65536))

    def answer(self, number, message):
        self.sock.sendall(way.frame(Kind.ANSWER, number, b"\0" + message))


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        front, halt = Front(), threading.Event()

        def work():
            while not halt.is_set():
                front.step(0.02)
            front.close()

        agent = Agent(front)
        agent.offer(name)
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        path = Path(name) / "p.sock"
        while not path.exists():
            time.sleep(0.01)
        with grpc.insecure_channel(f"unix:{path}") as channel:
            yield front, agent, channel, Path(name)
        halt.set()
        thread.join(30)
        while AGENTS:
            AGENTS.pop().sock.close()


def allocate(channel, message=b"wanted"):
    return channel.unary_unary("/v1beta1.DevicePlugin/Allocate").future(message, timeout=60)


def test_an_unanswered_call_is_put_to_the_next_agent(place):
    front, agent, channel, directory = place
    future = allocate(channel)
    _, method, age, message = agent.call()
    assert (method, age, message) == ("Allocate", -1.0, b"wanted")
    agent.sock.close()
    while front.connected:
        time.sleep(0.01)
    options = channel.unary_unary("/v1beta1.DevicePlugin/GetDevicePluginOptions")
    assert options(b"", timeout=30) == b"\x08\x01", "the front answers for itself"
    other = Agent(front)
    other.offer(directory)
    number, _, age, message = other.call()
    assert age >= 0 and message == b"wanted"
    other.answer(number, b"given")
    assert future.result(30) == b"given"


def test_a_stream_goes_on_and_the_same_list_is_not_sent_twice(place):
    front, agent, channel, directory = place
    stream = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"", timeout=60)
    assert next(stream) == b"devices"
    agent.sock.close()
    while front.connected:
        time.sleep(0.01)
    other = Agent(front)
    other.offer(directory)
    other.sock.sendall(way.frame(Kind.LIST, 1, b"changed"))
    assert next(stream) == b"changed"
    stream.cancel()


def test_patience_ends(place, monkeypatch):
    _, agent, channel, directory = place
    stream = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"", timeout=60)
    assert next(stream) == b"devices"
    monkeypatch.setattr(ResourceEndpoint, "patience", 0.2)
    agent.sock.close()
    future = allocate(channel)
    with pytest.raises(grpc.RpcError) as caught:
        future.result(30)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert list(stream) == [], "the kubelet sees that no plugin is there"
    until = time.monotonic() + 30
    while (directory / "p.sock").exists() and time.monotonic() < until:
        time.sleep(0.01)  # the front tells the kubelet first
    assert not (directory / "p.sock").exists()


def test_a_call_that_the_kubelet_gives_up_is_taken_back(place):
    _, agent, channel, _ = place
    future = allocate(channel)
    number = agent.call()[0]
    future.cancel()
    agent.wait_for(Kind.CANCEL, number)


def test_the_newest_list_leaves_as_soon_as_there_is_room(place):
    """Lists larger than the window wait for the reader; when it reads on, nothing else happens that could wake us."""
    _, agent, channel, _ = place
    stream = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"", timeout=60)
    assert next(stream) == b"devices"
    lists = [bytes([65 + number]) * 1_000_000 for number in range(6)]
    for devices in lists:
        agent.sock.sendall(way.frame(Kind.LIST, 1, devices))
    shown = []
    while not shown or shown[-1] != lists[-1]:
        shown.append(next(stream))
    assert shown == [each for each in lists if each in shown], "in order, and each at most once"
    stream.cancel()


def test_a_malformed_timeout_is_answered_and_ends_nothing(place):
    _, agent, channel, directory = place
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(directory / "p.sock"))
        client = Connection(client=True)
        block = grpc_wire.request("/v1beta1.DevicePlugin/Allocate", 1.0)
        client.ask(block.replace(b"1000m", b"9.99m"), grpc_wire.packed(b"wanted"))
        raw.sendall(client.out)
        heard = []
        while not heard:
            heard = [event for event in client.receive(raw.recv(65536)) if isinstance(event, MessageReceived)]
    assert grpc_wire.status(heard[0].fields) == ("INTERNAL", "malformed grpc-timeout")
    future = allocate(channel)
    agent.answer(agent.call()[0], b"given")
    assert future.result(30) == b"given"


def test_a_mistake_of_ours_ends_one_connection_and_is_logged(place, monkeypatch, capsys):
    front, agent, channel, directory = place
    front.log.set_up("info", "json")
    monkeypatch.setattr(front, "call_cancelled", lambda *_: 1 // 0)
    future = allocate(channel)
    number = agent.call()[0]
    future.cancel()
    agent.wait_for(Kind.CANCEL, number)
    monkeypatch.undo()
    assert "ZeroDivisionError" in capsys.readouterr().err
    own = [
        ("grpc.use_local_subchannel_pool", 1)
    ]  # else it waits out the pause of the connection that was ended
    with grpc.insecure_channel(f"unix:{directory / 'p.sock'}", own) as other:
        second = allocate(other, b"second")
        number, _, _, message = agent.call()
        assert message == b"second"
        agent.answer(number, b"given")
        assert second.result(30) == b"given"


def test_a_list_is_sent_once_where_the_flush_before_it_makes_room():
    """The flush tells the endpoint that there is room, while the endpoint is about to send the list itself."""
    endpoint, sent = object.__new__(ResourceEndpoint), []
    connection = SimpleNamespace(
        waiting=lambda stream: False, out=b"", data=lambda stream, message: sent.append(message)
    )
    peer = SimpleNamespace(connection=connection, flush=lambda: endpoint.room_made(peer))
    endpoint.devices, endpoint._behind = b"newest", _Pairs([(peer, 1)])
    endpoint._send(peer, 1)
    assert len(sent) == 1 and endpoint.behind(peer) == []


class _Pairs(list):
    """Watchers that wait, of peers that are no keys."""

    def add(self, pair):
        if pair not in self:
            self.append(pair)

    def discard(self, pair):
        if pair in self:
            self.remove(pair)
