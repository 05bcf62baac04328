"""One resource at the kubelet: its socket, its registration, and the streams that watch its devices.

It polls ten times a second and whenever a stream opens or ends; `lifecycle` decides what to do. A socket that
was wiped gets a new one; a stream that is open stays, since the kubelet goes on using the connection.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from agent.front import grpc, lifecycle, sockets
from agent.front.http2 import Connection, Event, GoAwayReceived, MessageReceived, StreamReset
from agent.front.lifecycle import Action, Facts
from agent.front.log import Log
from agent.front.peer import Peer
from agent.front.resource_offer import ResourceOffer
from agent.persistence.lock import LockFile
from gigaslice.core.errors import GigasliceError, SocketError
from gigaslice.runtime.log_once import LogOnce

__all__ = ["Endpoint", "EndpointOwner"]

_KUBELET_SOCKET = "kubelet.sock"
_REGISTER_PATH = "/v1beta1.Registration/Register"
_BACKLOG = 64
_MOST_PEERS, _MOST_WATCHERS = 32, 32  # a kubelet has one of each, and for a moment two


class EndpointOwner(Protocol):
    """What an endpoint needs of the front that it is a part of: the loop, and someone to answer the kubelet's calls."""

    log: Log
    selector: selectors.BaseSelector

    def wake(self) -> None:
        """Polls the endpoints at once."""

    def rest(self, listener: socket.socket, accept: Callable[[int], None]) -> None:
        """Leaves LISTENER alone until the next poll."""

    def stop_listening(self, listener: socket.socket) -> None:
        """Closes LISTENER."""

    def failed(self, error: Exception) -> None:
        """Logs that an error of this program has ended a connection."""

    def streams_changed(self, endpoint: Endpoint) -> None:
        """Another number of streams watches the devices of ENDPOINT."""

    def call_received(
        self, endpoint: Endpoint, peer: Peer, event: MessageReceived, method: str, message: bytes
    ) -> None:
        """The kubelet has called. Raises StatusError."""

    def call_cancelled(self, peer: Peer, stream: int) -> None:
        """The kubelet does not wait for the answer any more."""

    def awaits_answer(self, peer: Peer) -> bool:
        """Whether PEER has called and waits."""

    def peer_closed(self, peer: Peer) -> None:
        """The connection of PEER has ended."""


class Endpoint:
    """What OFFER names, served for FRONT."""

    def __init__(self, front: EndpointOwner, offer: ResourceOffer, *, register_seconds: float = 15.0) -> None:
        """REGISTER_SECONDS: for a registration's answer; the kubelet gives up dialling back after 10."""
        self.offer = offer
        self.number: int | None = None  # of the agent's offer; None while the agent is not there
        self.since = time.monotonic()  # when that began
        self.devices: bytes | None = None
        self.peers: list[Peer] = []
        self.watchers: list[tuple[Peer, int]] = []
        self.path = Path(offer.directory) / offer.socket
        self.lock = LockFile(self.path.with_name(f"{self.path.name}.lock"), f"the resource {offer.resource}")
        self.registered_with: sockets.Identity | None = None
        self._front = front
        self._register_seconds = register_seconds
        self._kubelet_path = self.path.with_name(_KUBELET_SOCKET)
        self._locked = False
        self._listener: socket.socket | None = None
        self._mine: sockets.Identity | None = None
        self._attempt: tuple[Peer, float] | None = None  # and when it is given up
        self._failures = 0
        self._streams = 0
        self._idle_since = time.monotonic()
        self._logged = LogOnce()
        self._has_served = False
        self._behind: set[tuple[Peer, int]] = set()  # watchers that have not taken the list before yet

    # --- the agent ------------------------------------------------------------------------------------------

    def attach(self, offer: ResourceOffer, number: int) -> None:
        """The agent has started and makes this offer.

        The kubelet asks for the options at a registration only. So where they have changed the streams are ended, and
        the kubelet registers anew.
        """
        if offer.options != self.offer.options or offer.register != self.offer.register:
            self._end_streams()
        self.offer, self.number = offer, number

    def detach(self) -> None:
        """The agent has ended."""
        self.number, self.since = None, time.monotonic()

    def set_devices(self, devices: bytes) -> None:
        """Sets what the kubelet sees from now on."""
        if devices != self.devices:
            self.devices = devices
            for peer, stream in self.watchers:
                self._send(peer, stream)

    # --- life at the kubelet --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Takes the next step of the life cycle, if one is due. Raises SocketError or LockedError."""
        try:
            self._poll()
        except OSError as error:  # no descriptors, or no memory: at the next poll, then
            self._say("cannot serve", socket=str(self.path), detail=error.strerror)

    def _poll(self) -> None:
        while True:
            if self._attempt is not None and time.monotonic() > self._attempt[1]:
                self._failed("DEADLINE_EXCEEDED", "the kubelet did not answer")
            rule = lifecycle.decide(self._facts())
            if rule.action is Action.SERVE and self._serve():
                continue
            if rule.action is Action.REGISTER:
                self._register()
            return

    def close(self) -> None:
        """Ends the streams and removes the socket. The kubelet then marks the devices unhealthy."""
        self._give_up_attempt()
        self._end_streams()
        for peer in list(self.peers):
            peer.close()
            self._front.peer_closed(peer)
        self.peers.clear()
        sockets.remove_if_same(self.path, self._mine)
        self.stop_listening()
        self.lock.release()

    def stop_listening(self) -> None:
        """Closes the socket that the kubelet would dial next; what is connected stays."""
        if self._listener is not None:
            self._front.stop_listening(self._listener)
            self._listener = None
        self._mine = None

    def behind(self, peer: Peer) -> list[int]:
        """Streams of PEER that wait for room to be sent the newest list."""
        return [stream for behind, stream in self._behind if behind is peer]

    def adopt(
        self, peer_socket: socket.socket, connection: Connection, watching: list[int], behind: list[int]
    ) -> Peer:
        """Goes on with a connection that another process began.

        Args:
            peer_socket: Is closed with the connection.
            connection: Its state.
            watching: Streams that watch the devices.
            behind: Those of them that have not been sent `devices`.
        """
        peer = self._connected(peer_socket, connection)
        self.watchers += [(peer, stream) for stream in watching if stream in connection.streams]
        self._behind.update((peer, stream) for stream in behind if stream in connection.streams)
        self._catch_up(peer)
        return peer

    def adopt_lock(self, fd: int) -> None:
        """Goes on with the lock that another process took."""
        self.lock.adopt(fd)
        self._locked = True

    def _facts(self) -> Facts:
        streams = len(self.watchers)
        if streams != self._streams:
            self._streams = streams
            self._idle_since = time.monotonic()
        return Facts(
            serving=self._mine is not None and sockets.identify(self.path) == self._mine,
            kubelet=sockets.identify(self._kubelet_path),
            registered_with=self.registered_with,
            registering=self._attempt is not None,
            failures=self._failures,
            streams=streams,
            idle=time.monotonic() - self._idle_since,
        )

    def _serve(self) -> bool:
        """Listens at the public path; False while a kubelet is about to make, or wipes, the directory."""
        directory = self.path.parent
        if not directory.is_dir():
            detail = "the directory does not exist yet"
            self._say("waiting for the kubelet", directory=str(directory), detail=detail)
            return False
        if not self._locked:
            self.lock.acquire()
            self._locked = True
            sockets.sweep(directory)
        if self._mine is not None and sockets.is_mine(self.path):
            self._mine = sockets.identify(self.path)  # its owner, mode or label was changed
            return True
        try:
            sockets.check_free(self.path)
            fresh = _listener(self.path)
        except SocketError as error:
            if not self._has_served:
                raise
            self._say(
                "cannot serve", socket=str(self.path), detail=str(error)
            )  # and tries again at every poll
            return False
        if fresh is None:  # wiped in between by a kubelet that starts: another one, then
            return False
        self._has_served = True
        self.stop_listening()
        fresh.setblocking(False)
        self._listener = fresh
        self._mine = sockets.identify(self.path)
        self._front.selector.register(fresh, 1, self._accept)
        self._front.log.say("info", "registration", "serving", socket=str(self.path))
        if sockets.identify(self._kubelet_path) is None:
            self._say("waiting for the kubelet", socket=str(self._kubelet_path))
        return True

    def _accept(self, _events: int) -> None:
        listener = self._listener
        if listener is None:
            return
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._front.rest(listener, self._accept)
            self._say("connection not accepted", socket=str(self.path), detail=error.strerror)
            return
        if len(self.peers) >= _MOST_PEERS and not self._leave_idle_peer():
            accepted.close()
            return
        self._connected(accepted, Connection())

    def _leave_idle_peer(self) -> bool:
        """Ends the oldest connection that waits for nothing; False where every one does."""
        watching = {peer for peer, _ in self.watchers}
        idle = next(
            (peer for peer in self.peers if peer not in watching and not self._front.awaits_answer(peer)),
            None,
        )
        if idle is not None:
            idle.close()
            self._peer_closed(idle, "too many connections")
        return idle is not None

    def _connected(self, accepted: socket.socket, connection: Connection) -> Peer:
        front = self._front
        peer = Peer(
            front.selector,
            accepted,
            connection,
            self._event_received,
            self._peer_closed,
            room=self._catch_up,
            failed=front.failed,
        )
        if peer.open:
            self.peers.append(peer)
        return peer

    # --- what the kubelet asks -------------------------------------------------------------------------------

    def _event_received(self, peer: Peer, event: Event) -> None:
        if isinstance(event, MessageReceived):
            try:
                self._request_received(peer, event)
            except grpc.StatusError as error:
                peer.connection.answer(event.stream, grpc.failed(error.code, str(error)), end=True)
        elif isinstance(event, StreamReset):
            self._unwatch([(peer, event.stream)])
            self._front.call_cancelled(peer, event.stream)

    def _request_received(self, peer: Peer, event: MessageReceived) -> None:
        method = grpc.method(event.fields)
        if event.large:
            raise grpc.StatusError(grpc.EXHAUSTED, "the request is larger than 4 MiB")
        message = grpc.unpacked(event.body)
        if method == "GetDevicePluginOptions":
            peer.connection.answer(event.stream, grpc.opening())
            peer.connection.data(event.stream, grpc.packed(self.offer.options))
            peer.connection.end(event.stream, grpc.done())
        elif method == "ListAndWatch":
            if len(self.watchers) >= _MOST_WATCHERS:
                raise grpc.StatusError(grpc.EXHAUSTED, "too many streams watch the devices")
            peer.connection.answer(event.stream, grpc.opening())
            self.watchers.append((peer, event.stream))
            if self.devices is not None:
                self._send(peer, event.stream)
            self._streams_changed("stream opened")
        else:
            self._front.call_received(self, peer, event, method, message)

    def _send(self, peer: Peer, stream: int) -> None:
        """Sends the devices as they are now, or later when the ones before are still on their way: in HTTP/2's
        window, or in the socket's.
        """
        self._behind.discard((peer, stream))  # or what the flush makes room for is sent twice
        peer.flush()
        if peer.connection.waiting(stream) or peer.connection.out:
            self._behind.add((peer, stream))
        elif self.devices is not None:
            peer.connection.data(stream, grpc.packed(self.devices))
            peer.flush()

    def _catch_up(self, peer: Peer) -> None:
        """Sends the newest devices to streams that had no room for them, as far as there is room now."""
        for stream in self.behind(peer):
            self._behind.discard((peer, stream))
            self._send(peer, stream)

    def _peer_closed(self, peer: Peer, _why: str) -> None:
        if peer in self.peers:
            self.peers.remove(peer)
        self._unwatch([watcher for watcher in self.watchers if watcher[0] is peer])
        self._front.peer_closed(peer)

    def _unwatch(self, ended: list[tuple[Peer, int]]) -> None:
        before = len(self.watchers)
        self._behind.difference_update(ended)
        self.watchers = [watcher for watcher in self.watchers if watcher not in ended]
        if len(self.watchers) != before:
            self._streams_changed("stream ended")

    def _end_streams(self) -> None:
        ended, self.watchers = self.watchers, []
        self._behind.clear()
        for peer, stream in ended:
            peer.connection.end(stream, grpc.done())
            peer.flush()
        if ended:
            self._streams_changed("stream ended")

    def _streams_changed(self, event: str) -> None:
        self._front.log.say("debug", "plugin", event, open=len(self.watchers))
        self._front.streams_changed(self)

    # --- registration ----------------------------------------------------------------------------------------

    def _register(self) -> None:
        kubelet = sockets.identify(self._kubelet_path)
        if kubelet != self.registered_with:
            self._failures = 0  # a new kubelet that is not listening yet is asked again soon
        self.registered_with = kubelet
        try:
            dialled = _dialled(self._kubelet_path)
        except OSError as error:
            self._failed("UNAVAILABLE", f"cannot connect to {self._kubelet_path}: {error.strerror}")
            return
        connection = Connection(client=True)
        connection.ask(grpc.request(_REGISTER_PATH, self._register_seconds), grpc.packed(self.offer.register))
        front = self._front
        peer = Peer(
            front.selector, dialled, connection, self._registered, self._not_registered, failed=front.failed
        )
        if peer.open:
            self._attempt = peer, time.monotonic() + self._register_seconds

    def _registered(self, peer: Peer, event: Event) -> None:
        if isinstance(event, GoAwayReceived):
            return
        code, text = (
            grpc.status(event.fields) if isinstance(event, MessageReceived) else ("CANCELLED", "given up")
        )
        if code != "OK":
            self._failed(code, text)
            return
        self._give_up_attempt()
        self._failures = 0
        self._logged.over("problem")
        self._front.log.say(
            "info", "registration", "registered", resource=self.offer.resource, socket=str(self.path)
        )

    def _not_registered(self, _peer: Peer, why: str) -> None:
        self._failed("UNAVAILABLE", why)

    def _failed(self, code: str, text: str) -> None:
        self._give_up_attempt()
        self._failures += 1
        self._say("registration failed", code=code, detail=text)

    def _give_up_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt[0].close()
            self._attempt = None
        self._idle_since = time.monotonic()
        self._front.wake()

    def _say(self, event: str, **fields: object) -> None:
        """Logs a problem that may repeat many times a second once, until there is another one."""
        if self._logged.new("problem", f"{event} {fields}"):
            self._front.log.say("warning", "registration", event, **fields)


def _listener(path: Path) -> socket.socket | None:
    """A socket that listens at PATH; None where it was removed before it had its name. Raises SocketError."""
    hidden = sockets.hidden_name(path.parent)
    fresh: socket.socket | None = None
    try:
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fresh.bind(os.fspath(hidden))
        hidden.chmod(0o600)  # root's: so is the kubelet
        fresh.listen(_BACKLOG)
        hidden.rename(path)
    except FileNotFoundError:
        if fresh is not None:
            fresh.close()
        return None
    except OSError as error:
        if fresh is not None:
            fresh.close()
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise SocketError(
            f"cannot listen on {path}: {error.strerror}; the directory must be writable"
        ) from error
    return fresh


def _dialled(path: Path) -> socket.socket:
    """A socket that is connected to PATH. Raises OSError."""
    dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        dialled.setblocking(False)
        dialled.connect(os.fspath(path))
    except OSError:
        dialled.close()
        raise
    return dialled


def refusal(error: GigasliceError) -> dict[str, str]:
    """ERROR as the agent receives it."""
    return {"kind": type(error).__name__, "text": str(error)}
