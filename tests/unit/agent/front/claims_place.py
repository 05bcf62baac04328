# SPDX-License-Identifier: Apache-2.0
"""A kubelet's directory with a front that serves the driver of claims in it, and the agents that the front has had."""

from __future__ import annotations

import contextlib
import threading
import time

import grpc
import pytest

from agent.front import channel as way
from agent.front.channel import CALL, METHODS, Buffer, Kind
from agent.front.claims_endpoint import SERVICES
from agent.front.claims_offer import ClaimsOffer
from agent.front.front import Front

GIVE_UP = 30.0
V1, BETA = SERVICES
GET_INFO = "/pluginregistration.Registration/GetInfo"
NOTIFY = "/pluginregistration.Registration/NotifyRegistrationStatus"
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
OWN = [("grpc.use_local_subchannel_pool", 1)]  # else a channel waits out the pause of one that was ended


class Agent:
    """The agent's end of the way to FRONT."""

    def __init__(self, front):
        ours, self.sock = way.pair()
        front.connect(ours)
        self.sock.settimeout(GIVE_UP)
        self.buffer, self.heard = Buffer(), []

    def offer(self, root, info=b"info", number=1):
        offer = ClaimsOffer(str(root / "plugins/d/dra.sock"), str(root / "registry/d-reg.sock"), "d", info)
        self.sock.sendall(way.frame(Kind.OFFER_CLAIMS, number, offer.to_bytes()))

    def next(self, kind):
        """Number and payload of the next frame of KIND."""
        while not (frames := [frame for frame in self.heard if frame[0] == kind]):
            data = self.sock.recv(1 << 20)
            assert data
            self.heard += self.buffer.add(data)
        self.heard.remove(frames[0])
        return frames[0][1:]

    def call(self):
        """Number, method, age, seconds left and message of the next call."""
        number, payload = self.next(Kind.CALL)
        method, _, age, left = CALL.unpack_from(payload)
        return number, METHODS[method], age, left, payload[CALL.size :]

    def answer(self, number, message, code=0):
        self.sock.sendall(way.frame(Kind.ANSWER, number, bytes((code,)) + message))


class Place:
    """A kubelet's directory, a front in a thread, and the agents that it has had."""

    def __init__(self, root):
        self.root, self.front, self.agents = root, Front(), []
        self.service, self.registration = root / "plugins/d/dra.sock", root / "registry/d-reg.sock"
        self._halt, self._pause = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self):
        while not self._halt.is_set():
            with self._pause:
                self.front.step(0.02)

    @contextlib.contextmanager
    def halted(self):
        """The front, while it does nothing."""
        with self._pause:
            yield self.front

    def start(self):
        for name in ("plugins", "registry"):
            (self.root / name).mkdir()
        self._thread.start()
        return self.new_agent()

    def new_agent(self, **offer):
        with self.halted() as front:
            agent = Agent(front)
        self.agents.append(agent)
        agent.offer(self.root, **offer)
        until(self.registration.is_socket)
        return agent

    def lose_agent(self):
        self.agents[-1].sock.close()
        until(lambda: not self.front.connected)

    def end(self, front):
        """What the kernel does for FRONT at the end of a process that has handed over."""
        for endpoint in front.endpoints.values():
            for port in endpoint.ports:
                port.stop_listening()
                for peer in list(port.peers):
                    peer.leave()
                port.peers.clear()
            endpoint.lock.release()
        front.endpoints.clear()
        front.calls.clear()
        front.pending.clear()

    def close(self):
        self._halt.set()
        if self._thread.is_alive():
            self._thread.join(GIVE_UP)
        self.front.close()
        for agent in self.agents:
            agent.sock.close()


def until(condition):
    deadline = time.monotonic() + GIVE_UP
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def dialled(path):
    return grpc.insecure_channel(f"unix:{path}", OWN)


def begin(channel, message=b"claims", method=PREPARE, service=V1, timeout=45):
    return channel.unary_unary(f"/{service}/{method}").future(message, timeout=timeout)


def ask(path, method, message=b""):
    with dialled(path) as channel:
        return channel.unary_unary(method)(message, timeout=GIVE_UP)


def code_of(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code()
