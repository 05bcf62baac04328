# SPDX-License-Identifier: Apache-2.0
"""The agent's end of the link to its front, of which the test is the other end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import grpc
import pytest

from agent.front.channel import CALL, METHODS, Buffer, Kind, frame
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.link import Link, Offered, OfferedMethod

ALLOCATE, START = METHODS.index("Allocate"), METHODS.index("PreStartContainer")


class Front:
    """The other end. A call says nothing of its age, and may take as long as it likes."""

    def __init__(self, sock):
        self.sock, self.buffer = sock, Buffer()
        sock.setblocking(False)

    def say(self, kind, number, payload=b""):
        self.sock.sendall(frame(kind, number, payload))

    def call(self, number, method):
        self.say(Kind.CALL, number, CALL.pack(method, 1, -1.0, -1.0))

    async def answer(self):
        """The number, the code and the rest of the next answer."""
        while True:
            for kind, number, payload in self.buffer.add(await self.received()):
                if kind == Kind.ANSWER:
                    return number, payload[0], bytes(payload[1:])

    async def received(self):
        return await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16)


class Servicer:
    """Answers nothing: fails at Allocate, and never returns from a start."""

    def __init__(self):
        self.started = asyncio.Event()
        self.methods = {
            "Allocate": OfferedMethod(api.AllocateRequest, self.Allocate),
            "PreStartContainer": OfferedMethod(
                api.PreStartContainerRequest, self.PreStartContainer, repeatable=True
            ),
        }

    async def Allocate(self, request: api.AllocateRequest, context: object):  # noqa: N802
        raise RuntimeError("a mistake")

    async def PreStartContainer(self, request: api.PreStartContainerRequest, context: object):  # noqa: N802
        self.started.set()
        await asyncio.Event().wait()


@pytest.fixture
def run():
    """Runs a story with the front, the link and what was refused, behind one offer."""

    def running(story):
        async def main():
            here, there = socket.socketpair()
            front, link, refusals, servicer = Front(there), Link(here), [], Servicer()
            with contextlib.closing(here), contextlib.closing(there):
                async with link.attached():
                    offered = Offered(servicer.methods, refused=lambda *refusal: refusals.append(refusal))
                    assert link.add(offered) == 1
                    await story(front, link, refusals, servicer)

        asyncio.run(asyncio.wait_for(main(), 20))

    return running


def test_what_the_kubelet_refuses_reaches_whoever_offered_it(run):
    async def story(front, link, refusals, servicer):
        front.say(Kind.REFUSED, 1, json.dumps({"kind": "registration", "text": "no such version"}).encode())
        front.say(Kind.REFUSED, 2, json.dumps({"kind": "registration", "text": "of another offer"}).encode())
        while not refusals:
            await asyncio.sleep(0.01)
        assert refusals == [("registration", "no such version")]

    run(story)


def test_a_mistake_in_a_call_is_answered_and_ends_that_call_alone(run):
    async def story(front, link, refusals, servicer):
        for number in (7, 8):
            front.call(number, ALLOCATE)
            assert await front.answer() == (
                number,
                grpc.StatusCode.UNKNOWN.value[0],
                b"RuntimeError: a mistake",
            )

    run(story)


def test_an_offer_ends_with_the_calls_that_another_agent_can_repeat(run):
    async def story(front, link, refusals, servicer):
        front.call(7, START)
        await servicer.started.wait()
        await link.finish(1, 0.1)
        front.call(8, ALLOCATE)
        front.say(Kind.PING, 0)
        answers = Buffer().add(await front.received())
        assert [kind for kind, _, _ in answers] == [Kind.PONG], "neither call is answered"

    run(story)
