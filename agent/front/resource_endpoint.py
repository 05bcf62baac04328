# SPDX-License-Identifier: Apache-2.0
"""One resource at the kubelet: its socket, its registration, and the streams that watch its devices.

`lifecycle` decides what to do at each poll, and it is polled whenever a stream opens or ends. Where the socket was
wiped, a stream that is open stays.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from agent.front import grpc, lifecycle, sockets
from agent.front.channel import DEVICE_METHODS, Kind
from agent.front.endpoint import Endpoint, EndpointOwner
from agent.front.http2 import Connection, Event, GoAwayReceived, MessageReceived
from agent.front.lifecycle import Action, Facts
from agent.front.peer import Peer
from agent.front.port import Port
from agent.front.resource_offer import ResourceOffer

__all__ = ["ResourceEndpoint"]

_KUBELET_SOCKET = "kubelet.sock"
_SERVICE = "v1beta1.DevicePlugin"
_REGISTER_PATH = "/v1beta1.Registration/Register"
_MOST_WATCHERS = 32  # a kubelet has one, and for a moment two
_REMEDY = "stop that one or choose another --resource"


class ResourceEndpoint(Endpoint):
    """What OFFER names, served for FRONT."""

    def __init__(self, front: EndpointOwner, offer: ResourceOffer, *, register_seconds: float = 15.0) -> None:
        """REGISTER_SECONDS: for a registration's answer; the kubelet gives up dialling back after 10."""
        path = Path(offer.directory) / offer.socket
        lock = path.with_name(f"{path.name}.lock")
        super().__init__(
            front, offer.key, f"the resource {offer.resource}", paths=[path], lock=lock, remedy=_REMEDY
        )
        self.offer = offer
        self.devices: bytes | None = None
        self.watchers: list[tuple[Peer, int]] = []
        self.path = path
        self.registered_with: sockets.Identity | None = None
        self._register_seconds = register_seconds
        self._kubelet_path = path.with_name(_KUBELET_SOCKET)
        self._attempt: tuple[Peer, float] | None = None  # and when it is given up
        self._failures = 0
        self._streams = 0
        self._idle_since = time.monotonic()
        self._behind: set[tuple[Peer, int]] = set()  # watchers that have not taken the list before yet

    @property
    def port(self) -> Port:
        """The socket of the resource."""
        return self.ports[0]

    @property
    def peers(self) -> list[Peer]:
        """Who is connected to it."""
        return self.port.peers

    # --- the agent ------------------------------------------------------------------------------------------

    def attach(self, offer: ResourceOffer, number: int) -> None:
        """The agent has started and makes this offer.

        The kubelet asks for the options at a registration only. So where they have changed the streams are ended, and
        the kubelet registers anew.
        """
        if offer.options != self.offer.options or offer.register != self.offer.register:
            self._end_streams()
        self.offer, self.number = offer, number
        self._tell_streams()

    def set_devices(self, devices: bytes) -> None:
        """Sets what the kubelet sees from now on."""
        if devices != self.devices:
            self.devices = devices
            for peer, stream in self.watchers:
                self._send(peer, stream)

    # --- life at the kubelet --------------------------------------------------------------------------------

    def _poll(self) -> None:
        while True:
            if self._attempt is not None and time.monotonic() > self._attempt[1]:
                self._failed("DEADLINE_EXCEEDED", "the kubelet did not answer")
            rule = lifecycle.decide(self._facts())
            if rule.action is Action.SERVE and self._may_serve() and self.port.serve():
                if sockets.identify(self._kubelet_path) is None:
                    self.say("waiting for the kubelet", socket=str(self._kubelet_path))
                continue
            if rule.action is Action.REGISTER:
                self._register()
            return

    def close(self) -> None:
        """Ends the streams and removes the socket. The kubelet then marks the devices unhealthy."""
        self._give_up_attempt()
        self._end_streams()
        super().close()

    def handed_over(self) -> None:
        """Closes the socket that the kubelet would dial next: the successor makes and registers one of its own."""
        self.port.stop_listening()

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
        peer = self.port.adopt(peer_socket, connection)
        self.watchers += [(peer, stream) for stream in watching if stream in connection.streams]
        self._behind.update((peer, stream) for stream in behind if stream in connection.streams)
        self.room_made(peer)
        return peer

    def _facts(self) -> Facts:
        streams = len(self.watchers)
        if streams != self._streams:
            self._streams = streams
            self._idle_since = time.monotonic()
        return Facts(
            serving=self.port.serving,
            kubelet=sockets.identify(self._kubelet_path),
            registered_with=self.registered_with,
            registering=self._attempt is not None,
            failures=self._failures,
            streams=streams,
            idle=time.monotonic() - self._idle_since,
        )

    # --- what the kubelet asks -------------------------------------------------------------------------------

    def _request_received(
        self, port: Port, peer: Peer, event: MessageReceived, service: str, method: str
    ) -> None:
        del port
        if service != _SERVICE:
            raise grpc.not_served()
        message = grpc.unpacked(event.body)
        if method == "GetDevicePluginOptions":
            peer.reply(event.stream, self.offer.options)
        elif method == "ListAndWatch":
            if len(self.watchers) >= _MOST_WATCHERS:
                raise grpc.StatusError(grpc.EXHAUSTED, "too many streams watch the devices")
            peer.connection.answer(event.stream, grpc.opening())
            self.watchers.append((peer, event.stream))
            if self.devices is not None:
                self._send(peer, event.stream)
            self._streams_changed("stream opened")
        elif method in DEVICE_METHODS:
            self._front.call_received(self, peer, event, method, message)
        else:
            raise grpc.not_served()

    def _stream_reset(self, peer: Peer, stream: int) -> None:
        self._unwatch([(peer, stream)])

    def room_made(self, peer: Peer) -> None:
        """Sends the newest devices to streams that had no room for them, as far as there is room now."""
        for stream in self.behind(peer):
            self._behind.discard((peer, stream))
            self._send(peer, stream)

    def waits(self, peer: Peer) -> bool:
        """Whether PEER watches the devices, or has called."""
        return any(watching is peer for watching, _ in self.watchers) or super().waits(peer)

    def peer_closed(self, peer: Peer) -> None:
        """Its streams have ended."""
        self._unwatch([watcher for watcher in self.watchers if watcher[0] is peer])

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
        self._tell_streams()

    def _tell_streams(self) -> None:
        self._front.wake()
        if self.number is not None:
            self._front.say(Kind.STREAMS, self.number, len(self.watchers).to_bytes(4, "big"))

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
        self.say("registration failed", code=code, detail=text)

    def _give_up_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt[0].close()
            self._attempt = None
        self._idle_since = time.monotonic()
        self._front.wake()


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
