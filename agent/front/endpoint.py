# SPDX-License-Identifier: Apache-2.0
"""What the agent offers to the kubelet in one place, whichever of its APIs that is for: sockets, a lock, an agent.

It polls ten times a second and whenever something asks for it. The agent may come and go meanwhile.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol

from agent.front import grpc, sockets
from agent.front.http2 import Event, MessageReceived, StreamReset
from agent.front.peer import Peer
from agent.front.port import Loop, Port
from agent.persistence.lock import LockFile
from gigaslice.core.errors import GigasliceError
from gigaslice.runtime.log_once import LogOnce

__all__ = ["Endpoint", "EndpointOwner"]


class EndpointOwner(Loop, Protocol):
    """What an endpoint needs of the front that it is a part of: the loop, and someone to answer the kubelet's calls."""

    def wake(self) -> None:
        """Polls the endpoints at once."""

    def say(self, kind: int, number: int = 0, payload: bytes = b"") -> None:
        """Sends a frame to the agent, if there is one."""

    def call_received(
        self, endpoint: Endpoint, peer: Peer, event: MessageReceived, method: str, message: bytes
    ) -> None:
        """The kubelet has called. Raises StatusError."""

    def call_cancelled(self, peer: Peer, stream: int) -> None:
        """The kubelet does not wait for the answer any more."""

    def awaits_answer(self, peer: Peer) -> bool:
        """Whether PEER has called and waits."""


class Endpoint(ABC):
    """One offer of the agent, served for FRONT.

    Attributes:
        key: Where it is; what it is may change.
        name: What it is, for people.
        number: Of the agent's offer; None while the agent is not there.
        since: When that began.
        ports: Its sockets, in the order in which they are made.
        patience: Seconds for which an agent may be away before the kubelet sees it.
        margin: Seconds before the end of its caller's patience at which a call is given up that no agent has; None
            where it is not given up before `patience` has ended.
    """

    patience = 20.0
    margin: float | None = None

    def __init__(
        self,
        front: EndpointOwner,
        key: tuple[str, str],
        name: str,
        *,
        paths: list[Path],
        lock: Path,
        remedy: str,
    ) -> None:
        """Initializes the endpoint.

        Args:
            front: Serves it.
            key: As the attribute.
            name: As the attribute.
            paths: Of its sockets.
            lock: Path of the lock that its server holds.
            remedy: What to do where another program has its sockets.
        """
        self.key = key
        self.name = name
        self.number: int | None = None
        self.since = time.monotonic()
        self.ports = [Port(front, self, path, remedy) for path in paths]
        self.lock = LockFile(lock, name)
        self._front = front
        self._locked = False
        self._logged = LogOnce()

    # --- the agent ------------------------------------------------------------------------------------------

    @abstractmethod
    def attach(self, offer: Any, number: int) -> None:
        """The agent has started and makes this offer."""

    def detach(self) -> None:
        """The agent has ended."""
        self.number, self.since = None, time.monotonic()

    # --- life at the kubelet --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Takes the next step, if one is due. Raises SocketError or LockedError."""
        try:
            self._poll()
        except OSError as error:  # no descriptors, or no memory: at the next poll, then
            self.say("cannot serve", socket=str(self.ports[0].path), detail=error.strerror)

    @abstractmethod
    def _poll(self) -> None:
        """Takes the next step, if one is due. Raises SocketError, LockedError or OSError."""

    def close(self) -> None:
        """Ends the connections and removes the sockets, the last one first. The kubelet then takes the plugin for
        gone.
        """
        for port in reversed(self.ports):
            port.close()
        self.lock.release()

    @abstractmethod
    def handed_over(self) -> None:
        """A successor has what is open."""

    def resume(self) -> None:
        """Goes on with what a successor was to be given and has not taken."""
        for port in self.ports:
            port.resume()
        if self.lock.descriptor is not None:
            self.lock.adopt(self.lock.descriptor)  # whose holder the file names

    def abandon(self) -> None:
        """Gives up what was adopted: the process before keeps it."""
        for port in self.ports:
            port.abandon()
        self.lock.release()

    def adopt_lock(self, fd: int) -> None:
        """Goes on with the lock that another process took."""
        self.lock.adopt(fd)
        self._locked = True

    def _may_serve(self) -> bool:
        """Whether sockets can be made: not while a kubelet is about to make, or wipes, their directories."""
        directories = dict.fromkeys(port.path.parent for port in self.ports)
        for directory in directories:
            if not directory.is_dir():
                detail = "the directory does not exist yet"
                self.say("waiting for the kubelet", directory=str(directory), detail=detail)
                return False
        if not self._locked:
            self.lock.acquire()
            self._locked = True
            for directory in directories:
                sockets.sweep(directory)
        return True

    def say(self, event: str, **fields: object) -> None:
        """Logs a problem that may repeat many times a second once, until there is another one."""
        if self._logged.new("problem", f"{event} {fields}"):
            self._front.log.say("warning", "registration", event, **fields)

    # --- what the kubelet asks -------------------------------------------------------------------------------

    def event_received(self, port: Port, peer: Peer, event: Event) -> None:
        """PEER has asked at PORT, or has given up asking."""
        if isinstance(event, MessageReceived):
            try:
                service, method = grpc.method(event.fields)
                if event.large:
                    raise grpc.StatusError(grpc.EXHAUSTED, "the request is larger than 4 MiB")
                self._request_received(port, peer, event, service, method)
            except grpc.StatusError as error:
                peer.connection.answer(event.stream, grpc.failed(error.code, str(error)), end=True)
        elif isinstance(event, StreamReset):
            self._stream_reset(peer, event.stream)
            self._front.call_cancelled(peer, event.stream)

    @abstractmethod
    def _request_received(
        self, port: Port, peer: Peer, event: MessageReceived, service: str, method: str
    ) -> None:
        """Answers a request, now or later. Raises StatusError."""

    def _stream_reset(self, peer: Peer, stream: int) -> None:  # noqa: B027  (most have nothing to do)
        """A stream of PEER has been given up."""

    def room_made(self, peer: Peer) -> None:  # noqa: B027  (most have nothing to do)
        """PEER may have room for more."""

    def peer_closed(self, peer: Peer) -> None:  # noqa: B027  (most have nothing to do)
        """The connection of PEER has ended."""

    def waits(self, peer: Peer) -> bool:
        """Whether PEER waits for something that will be sent."""
        return self._front.awaits_answer(peer)


def refusal(error: GigasliceError) -> dict[str, str]:
    """ERROR as the agent receives it."""
    return {"kind": type(error).__name__, "text": str(error)}
