# SPDX-License-Identifier: Apache-2.0
"""The front's loop: endpoints at the kubelet on one side, the agent on the other, and the calls in between.

When the agent ends before it has answered a call, the front keeps the call and gives it to the next agent. The kubelet
waits meanwhile, for an endpoint's `patience` at most: for a device plugin it is short, because the kubelet's one loop
admits the pods of the whole node. After that the front closes the endpoint, so the kubelet sees what it would see
without a front: the plugin is gone. A call about claims is given up shortly before its caller gives it up.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from agent.front import channel, grpc
from agent.front.channel import CALL, METHODS, Buffer, Kind
from agent.front.claims_endpoint import ClaimsEndpoint
from agent.front.claims_offer import ClaimsOffer
from agent.front.endpoint import Endpoint, refusal
from agent.front.http2 import MessageReceived
from agent.front.log import Log
from agent.front.peer import Peer
from agent.front.resource_endpoint import ResourceEndpoint
from agent.front.resource_offer import ResourceOffer
from gigaslice.core.errors import GigasliceError

__all__ = ["Call", "Front"]

_POLL_SECONDS = 0.1
_READ_BYTES = 256 << 10
_AWAY = "the node agent of {} is being started; asked again by itself"


class Call(NamedTuple):
    """One call of the kubelet, unanswered. since: when it came. until: when its caller gives up; None: never. Both by
    the monotonic clock.
    """

    endpoint: Endpoint
    peer: Peer
    stream: int
    method: str
    message: bytes
    since: float
    until: float | None
    again: bool = False  # an agent has had it before


class Front:
    """Joins the kubelet and an agent.

    HOOK gets the frames that only a supervisor can act on, as their kind and payload.
    """

    def __init__(self, log: Log | None = None, hook: Callable[[int, bytes], None] | None = None) -> None:
        self.log = log or Log()
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.endpoints: dict[tuple[str, str], Endpoint] = {}
        self.calls: dict[int, Call] = {}  # by number
        self.pending: set[int] = set()  # of these, not with the agent
        self.holding = False  # calls are not passed on any more: this agent is about to end
        self.served = False  # the present agent, or the last one, has offered something
        self.heard_at = 0.0  # when the agent last sent anything
        self._hook = hook or (lambda kind, payload: None)
        self._agent: socket.socket | None = None
        self._buffer, self._out = Buffer(), bytearray()
        self._numbers: dict[int, Endpoint] = {}
        self._next = 0
        self._due = 0.0
        self._resting: list[tuple[socket.socket, Callable[[int], None]]] = []

    # --- the loop --------------------------------------------------------------------------------------------

    def step(self, longest: float = _POLL_SECONDS) -> None:
        """Waits for something to happen, LONGEST seconds at most, and handles it."""
        now = time.monotonic()
        for key, events in self.selector.select(max(0.0, min(longest, self._due - now))):
            key.data(events)
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _POLL_SECONDS
            self._wake_resting()
            for endpoint in list(self.endpoints.values()):
                self._poll(endpoint, now)

    def wake(self) -> None:
        """Polls at once instead of at the next interval."""
        self._due = 0.0

    def rest(self, listener: socket.socket, accept: Callable[[int], None]) -> None:
        """Does not select LISTENER until the next poll. It would be ready all the time without descriptors."""
        self.selector.unregister(listener)
        self._resting.append((listener, accept))

    def failed(self, error: Exception) -> None:
        """Logs that an error of this program has ended a connection."""
        self.log.say("error", "front", "connection ended by a mistake", detail=repr(error))

    def _wake_resting(self) -> None:
        resting, self._resting = self._resting, []
        for listener, accept in resting:
            if listener.fileno() >= 0:
                self.selector.register(listener, selectors.EVENT_READ, accept)

    def stop_listening(self, listener: socket.socket) -> None:
        """Closes LISTENER, which may rest."""
        with contextlib.suppress(KeyError):
            self.selector.unregister(listener)
        listener.close()

    def close(self) -> None:
        """Ends every stream and connection."""
        for number in list(self.calls):
            self._fail(number, "the node agent has ended")
        for endpoint in self.endpoints.values():
            endpoint.close()
        self.endpoints.clear()
        self.disconnect()
        self.selector.close()

    def _poll(self, endpoint: Endpoint, now: float) -> None:
        if endpoint.number is None and not self.holding and now - endpoint.since > endpoint.patience:
            self.log.say("error", "front", "agent not back in time", offer=endpoint.name)
            self.drop(endpoint)
            return
        if endpoint.margin is not None:
            self._give_up_calls(endpoint, now + endpoint.margin)
        try:
            endpoint.poll()
        except GigasliceError as error:
            self._refuse(endpoint, error)

    def _refuse(self, endpoint: Endpoint, error: GigasliceError) -> None:
        if endpoint.number is not None:
            self.say(Kind.REFUSED, endpoint.number, json.dumps(refusal(error)).encode())
        self.drop(endpoint)

    def _give_up_calls(self, endpoint: Endpoint, before: float) -> None:
        """Answers the calls that no agent has and whose callers give up BEFORE that time: an error of ours says why."""
        for number in sorted(self.pending):
            call = self.calls[number]
            if call.endpoint is endpoint and call.until is not None and call.until < before:
                self._fail(number, _AWAY.format(endpoint.name))

    def abandon(self, endpoint: Endpoint) -> None:
        """Gives up ENDPOINT, which was adopted from another process and is that one's again."""
        self.calls = {number: call for number, call in self.calls.items() if call.endpoint is not endpoint}
        self.pending &= self.calls.keys()
        endpoint.abandon()
        self.endpoints.pop(endpoint.key, None)

    def drop(self, endpoint: Endpoint) -> None:
        """Ends ENDPOINT, and the calls of it."""
        for number, call in list(self.calls.items()):
            if call.endpoint is endpoint:
                self._fail(number, _AWAY.format(endpoint.name))
        endpoint.close()
        self.endpoints.pop(endpoint.key, None)
        self._numbers = {
            number: numbered for number, numbered in self._numbers.items() if numbered is not endpoint
        }

    # --- the agent -------------------------------------------------------------------------------------------

    def connect(self, agent: socket.socket) -> None:
        """Begins to serve the agent at the other end of AGENT, which has just started."""
        agent.setblocking(False)
        self.served = False
        self._agent, self._buffer, self._out = agent, Buffer(), bytearray()
        self.selector.register(agent, selectors.EVENT_READ, self._from_agent)

    @property
    def connected(self) -> bool:
        """Whether there is a way to an agent."""
        return self._agent is not None

    def disconnect(self) -> None:
        """Closes the connection to the agent. Calls that it has not answered are given to the next one."""
        if self._agent is not None:
            self.selector.unregister(self._agent)
            self._agent.close()
            self._agent = None
        self._numbers.clear()
        for endpoint in self.endpoints.values():
            if endpoint.number is not None:
                endpoint.detach()
        for number, call in list(self.calls.items()):
            if number not in self.pending:
                self.calls[number] = call._replace(again=True)
                self.pending.add(number)

    def drain(self) -> None:
        """Reads what an agent sent before it ended, since its answers count."""
        while self._agent is not None:
            try:
                data = self._agent.recv(_READ_BYTES)
            except OSError:
                return
            if not data:
                return
            for kind, number, payload in self._buffer.add(data):
                self._frame_received(kind, number, payload)

    def say(self, kind: int, number: int = 0, payload: bytes = b"") -> None:
        """Sends a frame to the agent, if there is one."""
        if self._agent is not None:
            self._out += channel.frame(kind, number, payload)
            self._flush()

    def _flush(self) -> None:
        assert self._agent is not None
        try:
            while self._out:
                del self._out[: self._agent.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # its end is heard where its process is waited for
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        self.selector.modify(self._agent, events, self._from_agent)

    def _from_agent(self, events: int) -> None:
        if events & selectors.EVENT_WRITE and self._agent is not None:
            self._flush()
        if not events & selectors.EVENT_READ or self._agent is None:
            return
        try:
            data = self._agent.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.disconnect()
            return
        self.heard_at = time.monotonic()
        for kind, number, payload in self._buffer.add(data):
            self._frame_received(kind, number, payload)

    def _frame_received(self, kind: int, number: int, payload: bytes) -> None:
        if kind == Kind.ANSWER:
            self._answer(number, payload[0], payload[1:])
        elif kind == Kind.LIST:
            endpoint = self._numbers.get(number)
            if isinstance(endpoint, ResourceEndpoint):
                endpoint.set_devices(payload)
        elif kind == Kind.OFFER:
            self._offer_received(number, ResourceOffer.of_bytes(payload), ResourceEndpoint)
        elif kind == Kind.OFFER_CLAIMS:
            self._offer_received(number, ClaimsOffer.of_bytes(payload), ClaimsEndpoint)
        elif kind == Kind.WITHDRAW:
            endpoint = self._numbers.get(number)
            if endpoint is not None:
                self.drop(endpoint)
        elif kind == Kind.HELLO:
            self.log.set_up(**json.loads(payload))
        else:
            self._hook(kind, payload)

    def _offer_received(self, number: int, offer: Any, endpoint_type: Callable[[Any, Any], Endpoint]) -> None:
        endpoint = self.endpoints.get(offer.key)
        if endpoint is None:
            endpoint = self.endpoints[offer.key] = endpoint_type(self, offer)
        endpoint.attach(offer, number)
        self.served = True
        self._numbers[number] = endpoint
        self.wake()
        for each in sorted(self.pending):
            if self.calls[each].endpoint is endpoint:
                self._pass_on(each)

    # --- calls -----------------------------------------------------------------------------------------------

    def call_received(
        self, endpoint: Endpoint, peer: Peer, event: MessageReceived, method: str, message: bytes
    ) -> None:
        """A call of the kubelet that only an agent can answer: METHOD is one of METHODS. Raises StatusError."""
        now, left = time.monotonic(), grpc.time_left(event.fields)
        until = None if left is None else now + left
        self.put(Call(endpoint, peer, event.stream, method, message, now, until))

    def put(self, call: Call) -> None:
        """Has CALL answered as soon as there is an agent."""
        self._next += 1
        self.calls[self._next] = call
        self.pending.add(self._next)
        self._pass_on(self._next)

    def call_cancelled(self, peer: Peer, stream: int) -> None:
        """Drops a call whose answer the kubelet does not wait for any more."""
        for number, call in list(self.calls.items()):
            if call.peer is peer and call.stream == stream:
                self._forget(number)

    def awaits_answer(self, peer: Peer) -> bool:
        """Whether PEER waits for an answer."""
        return any(call.peer is peer for call in self.calls.values())

    def peer_closed(self, peer: Peer) -> None:
        """Drops the calls of PEER, whose connection has ended."""
        for number, call in list(self.calls.items()):
            if call.peer is peer:
                self._forget(number)

    def _forget(self, number: int) -> None:
        if number not in self.pending:
            self.say(Kind.CANCEL, number)
        self.pending.discard(number)
        del self.calls[number]

    def _pass_on(self, number: int) -> None:
        call = self.calls[number]
        if call.endpoint.number is None or self.holding or self._agent is None:
            return
        self.pending.discard(number)
        now = time.monotonic()
        left = -1.0 if call.until is None else max(0.0, call.until - now)
        age = now - call.since if call.again else -1.0
        head = CALL.pack(METHODS.index(call.method), call.endpoint.number, age, left)
        self.say(Kind.CALL, number, head + call.message)

    def _answer(self, number: int, code: int, payload: bytes) -> None:
        call = self.calls.pop(number, None)
        if call is None:
            return
        if code:
            text = payload.decode("utf-8", "replace")
            call.peer.connection.answer(call.stream, grpc.failed(code, text), end=True)
        else:
            call.peer.reply(call.stream, payload)
        call.peer.flush()

    def _fail(self, number: int, text: str) -> None:
        self.pending.discard(number)
        self._answer(number, grpc.UNAVAILABLE, text.encode())
