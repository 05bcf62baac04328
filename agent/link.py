# SPDX-License-Identifier: Apache-2.0
"""The agent's end of the connection to the front: calls come in; answers, device lists and offers go out.

There is one for the whole process, on whichever event loop is running. Where the front has a process of its own
(`gigaslice node`), that process has forked this one; elsewhere a thread of this process does the same work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from agent.front import supervise, thread
from agent.front.channel import CALL, METHODS, Buffer, Kind, frame
from gigaslice.runtime.logs import get_logger

__all__ = ["CallContext", "Link", "Offered", "OfferedMethod"]

_READ_BYTES = 256 << 10
_QUIET_SECONDS = 0.05
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class _AbortedError(Exception):
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class CallContext:
    """What a servicer may need of a call.

    Attributes:
        age: Seconds since the call came, where an earlier agent had it and may have carried it out; else None.
    """

    def __init__(self, left: float | None, age: float | None) -> None:
        self.age = age
        self._until = None if left is None else asyncio.get_running_loop().time() + left

    def time_remaining(self) -> float | None:
        """Returns the seconds that the caller still waits; None where it waits for ever."""
        return None if self._until is None else max(0.0, self._until - asyncio.get_running_loop().time())

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        """Ends the call with an error."""
        raise _AbortedError(code, text)


@dataclass(frozen=True, slots=True)
class OfferedMethod:
    """How the calls of one method are answered.

    Attributes:
        request: The message that is asked with.
        answer: Answers it.
        repeatable: The kubelet or the front asks again, so an agent that ends leaves it to the next one.
    """

    request: Any
    answer: Callable[[Any, CallContext], Awaitable[Any]]
    repeatable: bool = False


class Offered:
    """One offer as the link keeps it."""

    def __init__(
        self,
        methods: Mapping[str, OfferedMethod],
        *,
        refused: Callable[[str, str], None],
        watched: Callable[[int], None] = lambda count: None,
        notified: Callable[[bytes], None] = lambda message: None,
    ) -> None:
        """Initializes the offer.

        Args:
            methods: Answer its calls, by their names in `agent.front.channel.METHODS`.
            refused: Gets kind and text of the error for which the front cannot serve it.
            watched: Gets how many streams watch its devices.
            notified: Gets what the kubelet has said of the registration: a RegistrationStatus, as bytes.
        """
        self.methods = methods
        self.refused = refused
        self.watched = watched
        self.notified = notified
        self.calls: dict[int, tuple[str, asyncio.Task[None]]] = {}
        self.ended = 0.0  # when the last call was answered, by the loop's clock
        self.ending = False


class Link:
    """One end of a socket pair, of which the front has the other.

    Attributes:
        go: Set once no earlier agent serves the front any more.
    """

    def __init__(self, sock: socket.socket, front: threading.Thread | None = None) -> None:
        self.go = asyncio.Event()
        self._sock = sock
        self._front = front
        self._buffer, self._out = Buffer(), bytearray()
        self._offers: dict[int, Offered] = {}
        self._next = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log = get_logger("plugin")
        sock.setblocking(False)

    @classmethod
    def open(cls) -> Link:
        """Returns the link to the front that has forked this process, or to a new one in a thread."""
        sock = supervise.inherited()
        return cls(sock) if sock is not None else cls(*thread.start())

    def close(self) -> None:
        """Sends what is left to send, and ends; a front in a thread has closed its sockets when this returns."""
        with contextlib.suppress(OSError):
            self._sock.settimeout(5.0)
            self._sock.sendall(self._out)
        self._out.clear()
        self._sock.close()
        if self._front is not None:
            self._front.join(10.0)

    @contextlib.asynccontextmanager
    async def attached(self) -> AsyncIterator[None]:
        """Receives and sends on the running event loop meanwhile."""
        self.go = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock, self._read)
        try:
            self._flush()
            yield
        finally:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._loop = None

    def say(self, kind: int, number: int = 0, payload: bytes = b"") -> None:
        """Sends a frame."""
        self._out += frame(kind, number, payload)
        self._flush()

    def hello(self, level: str, style: str) -> None:
        """Tells the front how to log."""
        self.say(Kind.HELLO, 0, json.dumps({"level": level, "style": style}).encode())

    def add(self, offered: Offered) -> int:
        """Returns a number for an offer, whose calls come from now on."""
        self._next += 1
        self._offers[self._next] = offered
        return self._next

    def remove(self, number: int) -> None:
        """Takes no more calls for an offer."""
        self._offers.pop(number, None)

    async def finish(self, number: int, seconds: float) -> None:
        """Serves an offer on until the kubelet has its allocations, for so many seconds at most.

        The calls of one admission follow each other at once. Calls that the kubelet or the front can repeat are left to
        the next agent.
        """
        offered = self._offers[number]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        quiet_since = loop.time()
        while loop.time() < min(deadline, quiet_since + _QUIET_SECONDS):
            await asyncio.sleep(_QUIET_SECONDS / 5)
            lasting = any(not offered.methods[name].repeatable for name, _ in offered.calls.values())
            if lasting or offered.ended > quiet_since:
                quiet_since = loop.time()
        offered.ending = True
        left = [task for _, task in offered.calls.values()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # --- the socket ------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            if self._loop is not None:
                self._loop.add_writer(self._sock, self._flush)
            return
        except OSError:
            self._out.clear()
        if self._loop is not None:
            self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(1)  # without a front the kubelet cannot be served, and the state is on disk
        for kind, number, payload in self._buffer.add(data):
            self._received(kind, number, payload)

    def _received(self, kind: int, number: int, payload: bytes) -> None:
        if kind == Kind.CALL:
            self._call(number, payload)
        elif kind == Kind.CANCEL:
            for offered in self._offers.values():
                if number in offered.calls:
                    offered.calls[number][1].cancel()
        elif kind == Kind.STREAMS and number in self._offers:
            self._offers[number].watched(int.from_bytes(payload, "big"))
        elif kind == Kind.NOTIFIED and number in self._offers:
            self._offers[number].notified(payload)
        elif kind == Kind.REFUSED and number in self._offers:
            refusal = json.loads(payload)
            self._offers[number].refused(refusal["kind"], refusal["text"])
        elif kind == Kind.GO:
            self.go.set()
        elif kind == Kind.PING:
            self.say(Kind.PONG)

    # --- calls -----------------------------------------------------------------------------------------------

    def _call(self, number: int, payload: bytes) -> None:
        method, offer, age, left = CALL.unpack_from(payload)
        offered = self._offers.get(offer)
        if offered is None or offered.ending:
            return  # it stays with the front, for the next agent
        name = METHODS[method]
        context = CallContext(None if left < 0 else left, None if age < 0 else age)
        work = self._answer(number, offered, name, payload[CALL.size :], context)
        task = asyncio.get_running_loop().create_task(work)
        offered.calls[number] = name, task
        task.add_done_callback(lambda _: self._over(offered, number))

    def _over(self, offered: Offered, number: int) -> None:
        offered.calls.pop(number, None)
        offered.ended = asyncio.get_running_loop().time()

    async def _answer(
        self, number: int, offered: Offered, name: str, message: bytes, context: CallContext
    ) -> None:
        try:
            method = offered.methods[name]
            response = await method.answer(method.request.FromString(message), context)
        except _AbortedError as error:
            self._send_error(number, error.code, str(error))
        except DecodeError:
            self._send_error(number, grpc.StatusCode.INTERNAL, "Exception deserializing request!")
        except Exception as error:  # noqa: BLE001  (one call, not the agent)
            self._log.exception("call failed", call=name)
            self._send_error(number, grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        else:
            self.say(Kind.ANSWER, number, b"\0" + response.SerializeToString())

    def _send_error(self, number: int, code: grpc.StatusCode, text: str) -> None:
        self.say(Kind.ANSWER, number, bytes((code.value[0],)) + text.encode())
