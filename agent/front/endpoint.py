"""One resource at the kubelet: its socket, its registration, and the streams that watch its devices.

It polls ten times a second and whenever a stream opens or ends; `lifecycle` decides what to do. A socket that
was wiped gets a new one; a stream that is open stays, since the kubelet goes on using the connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agent.front import grpc, lifecycle, sockets
from agent.front.http2 import Connection, Ended, Event, Heard, Reset
from agent.front.lifecycle import Action, Facts
from agent.front.offer import Offer
from agent.front.peer import Peer
from agent.persistence.lock import LockFile
from gigaslice.errors import GigasliceError, SocketError
from gigaslice.runtime.log_once import LogOnce

if TYPE_CHECKING:
    from agent.front.front import Front

__all__ = ["Endpoint"]

_REGISTER_SECONDS = 15.0  # the kubelet gives up dialling back after 10
_KUBELET_SOCKET = "kubelet.sock"
_REGISTER_PATH = "/v1beta1.Registration/Register"
_BACKLOG = 64


class Endpoint:
    """What OFFER names, served for FRONT."""

    def __init__(self, front: Front, offer: Offer) -> None:
        self.offer = offer
        self.number: int | None = None  # of the agent's offer; None while the agent is not there
        self.since = time.monotonic()  # when that began
        self.devices: bytes | None = None
        self.peers: list[Peer] = []
        self.watchers: list[tuple[Peer, int]] = []
        self.path = Path(offer.directory) / offer.socket
        self.lock = LockFile(self.path.with_name(f"{self.path.name}.lock"), f"the resource {offer.resource}")
        self.told: sockets.Identity | None = None
        self._front = front
        self._kubelet_path = self.path.with_name(_KUBELET_SOCKET)
        self._locked = False
        self._listener: socket.socket | None = None
        self._mine: sockets.Identity | None = None
        self._attempt: tuple[Peer, float] | None = None  # and when it is given up
        self._failures = 0
        self._streams = 0
        self._idle_since = time.monotonic()
        self._logged = LogOnce()
        self._backlog: set[tuple[int, int]] = set()  # watchers that have not taken the list before yet

    # --- the agent ------------------------------------------------------------------------------------------

    def take(self, offer: Offer, number: int) -> None:
        """The agent is there, and offers this. Other options than before are asked for by a new registration only."""
        if offer.options != self.offer.options or offer.register != self.offer.register:
            self._end_streams()
        self.offer, self.number = offer, number

    def lose(self) -> None:
        """The agent is away."""
        self.number, self.since = None, time.monotonic()

    def show(self, devices: bytes) -> None:
        """DEVICES are what the kubelet should see from now on."""
        if devices != self.devices:
            self.devices = devices
            for peer, stream in self.watchers:
                self._send(peer, stream)

    # --- life at the kubelet --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Does what is to be done now. Raises SocketError or LockedError when it may not."""
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
        """Ends the streams and takes the socket away; the kubelet then takes the devices for unhealthy."""
        self._give_up_attempt()
        self._end_streams()
        for peer in list(self.peers):
            peer.close()
            self._front.lost(peer)
        self.peers.clear()
        sockets.remove_if_same(self.path, self._mine)
        self.stop_listening()
        self.lock.release()

    def stop_listening(self) -> None:
        """Closes the socket that the kubelet would dial next; what is connected stays."""
        if self._listener is not None:
            self._front.selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        self._mine = None

    def adopt(self, peer_socket: socket.socket, connection: Connection, watching: list[int]) -> Peer:
        """Goes on with a connection that another process began, in which the streams WATCHING watch."""
        peer = self._connected(peer_socket, connection)
        self.watchers += [(peer, stream) for stream in watching if stream in connection.streams]
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
            told=self.told,
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
        sockets.check_free(self.path)
        hidden = sockets.hidden_name(directory)
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            fresh.bind(os.fspath(hidden))
            hidden.chmod(0o600)  # root's: so is the kubelet
            fresh.listen(_BACKLOG)
            hidden.rename(self.path)
        except FileNotFoundError:  # wiped in between by a kubelet that starts: another one, then
            fresh.close()
            return False
        except OSError as error:
            fresh.close()
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise SocketError(
                f"cannot listen on {self.path}: {error.strerror}; the directory must be writable"
            ) from error
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
        try:
            assert self._listener is not None
            accepted, _ = self._listener.accept()
        except OSError:
            return
        self._connected(accepted, Connection())

    def _connected(self, accepted: socket.socket, connection: Connection) -> Peer:
        peer = Peer(self._front.selector, accepted, connection, self._heard, self._gone)
        self.peers.append(peer)
        return peer

    # --- what the kubelet asks -------------------------------------------------------------------------------

    def _heard(self, peer: Peer, event: Event) -> None:
        if isinstance(event, Heard):
            try:
                self._asked(peer, event)
            except grpc.StatusError as error:
                peer.connection.answer(event.stream, grpc.failed(error.code, str(error)), end=True)
        elif isinstance(event, Reset):
            self._unwatch([(peer, event.stream)])
            self._front.given_up(peer, event.stream)
        self._watch_backlog(peer)

    def _asked(self, peer: Peer, event: Heard) -> None:
        method = grpc.method(event.fields)
        if event.large:
            raise grpc.StatusError(grpc.EXHAUSTED, "the request is larger than 4 MiB")
        message = grpc.unpacked(event.body)
        if method == "GetDevicePluginOptions":
            peer.connection.answer(event.stream, grpc.opening())
            peer.connection.data(event.stream, grpc.packed(self.offer.options))
            peer.connection.end(event.stream, grpc.done())
        elif method == "ListAndWatch":
            peer.connection.answer(event.stream, grpc.opening())
            self.watchers.append((peer, event.stream))
            if self.devices is not None:
                self._send(peer, event.stream)
            self._streams_changed("stream opened")
        else:
            self._front.called(self, peer, event, method, message)

    def _send(self, peer: Peer, stream: int) -> None:
        """Sends the devices as they are now, or later when the ones before are still on their way."""
        if peer.connection.waiting(stream):
            self._backlog.add((id(peer), stream))
        elif self.devices is not None:
            peer.connection.data(stream, grpc.packed(self.devices))
            peer.flush()

    def _watch_backlog(self, peer: Peer) -> None:
        for who, stream in [one for one in self._backlog if one[0] == id(peer)]:
            if not peer.connection.waiting(stream):
                self._backlog.discard((who, stream))
                self._send(peer, stream)

    def _gone(self, peer: Peer, _why: str) -> None:
        if peer in self.peers:
            self.peers.remove(peer)
        self._unwatch([one for one in self.watchers if one[0] is peer])
        self._backlog = {one for one in self._backlog if one[0] != id(peer)}
        self._front.lost(peer)

    def _unwatch(self, ended: list[tuple[Peer, int]]) -> None:
        before = len(self.watchers)
        self.watchers = [one for one in self.watchers if one not in ended]
        if len(self.watchers) != before:
            self._streams_changed("stream ended")

    def _end_streams(self) -> None:
        ended, self.watchers = self.watchers, []
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
        if kubelet != self.told:
            self._failures = 0  # a new kubelet that is not listening yet is asked again soon
        self.told = kubelet
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        dialled.setblocking(False)
        try:
            dialled.connect(os.fspath(self._kubelet_path))
        except OSError as error:
            dialled.close()
            self._failed("UNAVAILABLE", f"cannot connect to {self._kubelet_path}: {error.strerror}")
            return
        connection = Connection(client=True)
        connection.ask(grpc.request(_REGISTER_PATH, _REGISTER_SECONDS), grpc.packed(self.offer.register))
        peer = Peer(self._front.selector, dialled, connection, self._registered, self._not_registered)
        if peer.open:
            self._attempt = peer, time.monotonic() + _REGISTER_SECONDS

    def _registered(self, peer: Peer, event: Event) -> None:
        if isinstance(event, Ended):
            return
        code, text = grpc.status(event.fields) if isinstance(event, Heard) else ("CANCELLED", "given up")
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


def refusal(error: GigasliceError) -> dict[str, str]:
    """ERROR as the agent receives it."""
    return {"kind": type(error).__name__, "text": str(error)}
