# SPDX-License-Identifier: Apache-2.0
"""What an endpoint remembers from one attempt to the next; its life beside a kubelet is in tests/integration/agent."""

import contextlib
import os
import resource
import socket
import struct
import tempfile
import time
from pathlib import Path

import pytest

from agent.front import grpc, port
from agent.front import resource_endpoint as module
from agent.front.front import Front
from agent.front.handover_state import adopt, export
from agent.front.http2 import PREFACE
from agent.front.resource_offer import ResourceOffer
from agent.front.sockets import hidden_name, identify


@pytest.fixture
def register_seconds():
    return 15.0


@pytest.fixture
def place(register_seconds):
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        directory = Path(name)
        front, offer = Front(), ResourceOffer(name, "own.sock", "example.com/x", b"", b"")
        endpoint = module.ResourceEndpoint(front, offer, register_seconds=register_seconds)
        front.endpoints[endpoint.offer.key] = endpoint
        endpoint.number = 1
        yield front, endpoint, directory
        front.close()


def until(front, condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        front.step(0.01)


def test_a_new_kubelet_does_not_pay_for_the_failures_of_the_one_before(place):
    """A socket is there a moment before a process listens; the attempt that falls into it is repeated soon."""
    _, endpoint, directory = place
    for failures in (1, 2, 3):
        with socket.socket(socket.AF_UNIX) as dead:
            if failures == 1:
                dead.bind(str(directory / "kubelet.sock"))  # and no process listens, as after a kill
            endpoint._register()
        assert endpoint._failures == failures
    (directory / "kubelet.sock").unlink()
    with socket.socket(socket.AF_UNIX) as fresh:
        fresh.bind(str(directory / "kubelet.sock"))
        endpoint._register()
    assert endpoint._failures == 1


def test_a_kubelet_that_wipes_the_directory_while_a_socket_is_made(place, monkeypatch):
    """It removes every socket there when it starts: also the one that is about to get its public name."""
    front, _, directory = place
    names = []

    def hidden(where):
        names.append(hidden_name(where))
        return names[-1]

    class Wiped(socket.socket):
        def listen(self, backlog):
            super().listen(backlog)
            if len(names) < 3:
                names[-1].unlink()

    monkeypatch.setattr(port.sockets, "hidden_name", hidden)
    monkeypatch.setattr(port.socket, "socket", Wiped)
    until(front, (directory / "own.sock").is_socket)
    assert len(names) == 3


def test_a_socket_that_is_relabelled_is_still_the_own_one(place):
    """restorecon and chown change a file and no server: the front must not take itself for another program."""
    front, endpoint, directory = place
    path = directory / "own.sock"
    until(front, path.is_socket)
    listener = endpoint.port.listener
    for mode in (0o700, 0o755):
        path.chmod(mode)
        until(front, lambda: identify(path) == endpoint.port._mine)
    assert endpoint.port.listener is listener


@pytest.mark.parametrize(("register_seconds", "gone"), [(0.05, False), (60.0, True)], ids=["silent", "gone"])
def test_a_silent_kubelet_is_given_up_and_a_gone_one_too(place, gone):
    front, endpoint, directory = place
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(directory / "kubelet.sock"))
        silent.listen()
        if gone:
            until(front, lambda: endpoint._attempt is not None)
            accepted, _ = silent.accept()
            accepted.close()
        until(front, lambda: endpoint._failures == 1)


class Watcher:
    """A client that watches the devices, and gives no more room than it is told to."""

    def __init__(self, front, directory):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(directory / "own.sock"))
        self.sock.setblocking(False)
        self.read = bytearray()
        block = grpc.request("/v1beta1.DevicePlugin/ListAndWatch", 60.0)
        self.say(PREFACE + frame(4, 0, 0) + frame(1, 0x4, 1, block) + frame(0, 0x1, 1, grpc.packed(b"")))
        self.front = front

    def say(self, data):
        self.sock.sendall(data)

    def give_room(self, count):
        self.say(frame(8, 0, 0, struct.pack("!I", count)) + frame(8, 0, 1, struct.pack("!I", count)))

    def lists(self):
        """The whole messages that have come, after what is to happen has happened."""
        with contextlib.suppress(BlockingIOError):
            while data := self.sock.recv(1 << 20):
                self.read += data
        at, body = 0, bytearray()
        while at + 9 <= len(self.read):
            length = int.from_bytes(self.read[at : at + 3], "big")
            if self.read[at + 3] == 0:
                body += self.read[at + 9 : at + 9 + length]
            at += 9 + length
        lists = []
        while len(body) >= 5 and len(body) >= 5 + (size := int.from_bytes(body[1:5], "big")):
            lists.append(bytes(body[5 : 5 + size]))
            del body[: 5 + size]
        return lists


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def turns(front, count=20):
    for _ in range(count):
        front.step(0.001)


@pytest.fixture
def watcher(place):
    front, endpoint, directory = place
    until(front, (directory / "own.sock").is_socket)
    endpoint.set_devices(b"a" * 60_000)
    made = Watcher(front, directory)
    until(front, lambda: made.lists() == [b"a" * 60_000])
    yield made
    made.sock.close()


def test_room_alone_brings_the_newest_list(place, watcher):
    """No call, no change and no other event follows for as long as nobody starts a pod."""
    front, endpoint, _ = place
    for name in (b"b", b"c", b"d"):
        endpoint.set_devices(name * 60_000)
    turns(front)
    assert watcher.lists() == [b"a" * 60_000]
    watcher.give_room(60_000)  # the rest of b, and a part of what follows
    turns(front)
    watcher.give_room(60_000)
    until(front, lambda: watcher.lists() == [name * 60_000 for name in (b"a", b"b", b"d")])


def test_a_socket_that_is_full_delays_the_newest_list_and_loses_none(place, watcher):
    front, endpoint, _ = place
    watcher.give_room(1 << 30)
    turns(front)
    for number in range(40):
        endpoint.set_devices(b"%02d" % number * 100_000)
    held = sum(len(peer.connection.out) for peer in endpoint.peers)
    assert held <= 200_100, "one list at a time"
    until(front, lambda: watcher.lists()[-1] == b"39" * 100_000)


@contextlib.contextmanager
def handed_over(front, endpoint, without=()):
    """A front that goes on where FRONT was, as one whose state lacks WITHOUT."""
    known, fds = export(front)
    for peer in known["endpoints"][0]["peers"]:
        for name in without:
            del peer[name]
    successor = Front()
    adopt(successor, known, [os.dup(fd) for fd in fds])
    yield successor
    for peer in list(endpoint.peers):
        peer.leave()
    endpoint.peers.clear()
    endpoint.watchers.clear()
    successor.close()


def test_a_successor_sends_the_newest_list_when_there_is_room(place, watcher):
    front, endpoint, _ = place
    endpoint.set_devices(b"b" * 60_000)
    endpoint.set_devices(b"c" * 60_000)
    turns(front)
    with handed_over(front, endpoint) as successor:
        watcher.give_room(200_000)
        until(successor, lambda: watcher.lists()[-1] == b"c" * 60_000)


def test_a_successor_of_an_older_version_s_front_sends_it_once_more(place, watcher):
    """Those did not say who had not been sent the newest list."""
    front, endpoint, _ = place
    endpoint.set_devices(b"b" * 60_000)
    turns(front)
    endpoint.devices = b"c" * 60_000  # came too late for the version that is replaced
    with handed_over(front, endpoint, without=["behind"]) as successor:
        watcher.give_room(200_000)
        until(successor, lambda: watcher.lists()[-1] == b"c" * 60_000)


def test_pings_that_nobody_reads_the_answers_of_cost_little(place, watcher):
    front, endpoint, _ = place
    (peer,) = endpoint.peers
    pings, sent, most = frame(6, 0, 0, b"12345678") * 1000, 0, 0
    for _ in range(2000):
        with contextlib.suppress(BlockingIOError):
            sent += watcher.sock.send(pings[sent % 17 :])
        front.step(0.0)
        most = max(most, len(peer.connection.out))
    assert most < 1 << 20
    assert sent < 20 << 20, "it is not read from for ever"
    until(
        front, lambda: watcher.lists() and len(watcher.read) >= sent // 17 * 17
    )  # each is answered in the end


def test_connections_are_bounded_and_the_one_that_watches_stays(place, watcher):
    front, endpoint, directory = place
    others = []
    for _ in range(3 * port.MOST_PEERS):
        others.append(socket.socket(socket.AF_UNIX))
        others[-1].connect(str(directory / "own.sock"))
        turns(front, 3)
    assert len(endpoint.peers) == port.MOST_PEERS
    endpoint.set_devices(b"b")
    until(front, lambda: watcher.lists()[-1] == b"b")
    for other in others:
        other.close()


def test_streams_that_watch_are_bounded(place, watcher):
    front, endpoint, _ = place
    block = grpc.request("/v1beta1.DevicePlugin/ListAndWatch", 60.0)
    for number in range(3, 3 + 4 * module._MOST_WATCHERS, 2):
        watcher.say(frame(1, 0x4, number, block) + frame(0, 0x1, number, grpc.packed(b"")))
    turns(front)
    assert len(endpoint.watchers) == module._MOST_WATCHERS


@pytest.fixture
def accepts(monkeypatch):
    """When connections were accepted, or were to be."""
    times = []
    accept = port.Port._accept

    def counted(self, events):
        times.append(time.monotonic())
        accept(self, events)

    monkeypatch.setattr(port.Port, "_accept", counted)
    return times


def test_without_descriptors_it_waits_and_does_not_spin(accepts, place, watcher):
    front, endpoint, directory = place
    clients = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.dup(0))
        accepts.clear()
        clients[0].connect(str(directory / "own.sock"))
        began = time.monotonic()
        polls = 0
        while time.monotonic() < began + 1.0:
            front.step(0.1)
            polls += 1
        assert 1 <= len(accepts) <= 15 and polls < 60, "once in a poll"
        (directory / "own.sock").unlink()
        turns(front, 300)
        assert not (directory / "own.sock").exists()
        endpoint.set_devices(b"b")
        until(front, lambda: watcher.lists()[-1] == b"b")
    finally:
        for fd in filled:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    until(front, (directory / "own.sock").is_socket)
    peers = len(endpoint.peers)
    clients[1].connect(str(directory / "own.sock"))
    until(front, lambda: len(endpoint.peers) == peers + 1)
    for client in clients:
        client.close()


def test_a_plain_file_in_its_place_does_not_end_who_serves(place, watcher):
    front, endpoint, directory = place
    path = directory / "own.sock"
    path.unlink()
    path.write_text("no socket")
    turns(front, 300)
    front.wake()
    turns(front)
    assert front.endpoints and path.read_text() == "no socket"
    endpoint.set_devices(b"b")
    until(front, lambda: watcher.lists()[-1] == b"b")
    path.unlink()
    until(front, path.is_socket)


def test_a_plain_file_in_its_place_is_refused_at_the_start():
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        front = Front()
        endpoint = module.ResourceEndpoint(front, ResourceOffer(name, "own.sock", "example.com/x", b"", b""))
        front.endpoints[endpoint.offer.key] = endpoint
        endpoint.number = 1
        (Path(name) / "own.sock").write_text("no socket")
        turns(front)
        assert not front.endpoints
        front.close()
