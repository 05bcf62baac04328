# SPDX-License-Identifier: Apache-2.0
"""One socket that the kubelet connects to, and its connections.

A socket whose file was wiped gets a new one; what is connected stays, since the kubelet goes on using a connection. It
listens under a hidden name first and is then renamed, so it appears only when it answers.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from agent.front import sockets
from agent.front.http2 import Connection, Event
from agent.front.log import Log
from agent.front.peer import Peer
from gigaslice.core.errors import SocketError

__all__ = ["MOST_PEERS", "Loop", "Port", "PortOwner"]

MOST_PEERS = 32
"""A kubelet has one, and for a moment two."""
_BACKLOG = 64


class Loop(Protocol):
    """What a port needs of the front that it is a part of."""

    log: Log
    selector: selectors.BaseSelector

    def rest(self, listener: socket.socket, accept: Callable[[int], None]) -> None:
        """Leaves LISTENER alone until the next poll."""

    def stop_listening(self, listener: socket.socket) -> None:
        """Closes LISTENER."""

    def failed(self, error: Exception) -> None:
        """Logs that an error of this program has ended a connection."""

    def peer_closed(self, peer: Peer) -> None:
        """The connection of PEER has ended."""


class PortOwner(Protocol):
    """Whoever answers at a port."""

    def event_received(self, port: Port, peer: Peer, event: Event) -> None:
        """PEER, which is connected to PORT, has asked or has given up asking."""

    def room_made(self, peer: Peer) -> None:
        """PEER may have room for more."""

    def peer_closed(self, peer: Peer) -> None:
        """The connection of PEER has ended."""

    def waits(self, peer: Peer) -> bool:
        """Whether PEER waits for something that will be sent."""

    def say(self, event: str, **fields: object) -> None:
        """Logs a problem once."""


class Port:
    """The socket at PATH. OWNER answers who connects, in the loop of FRONT.

    Attributes:
        peers: Who is connected.
        listener: Listens; None while no socket does.
    """

    def __init__(self, front: Loop, owner: PortOwner, path: Path, remedy: str) -> None:
        """REMEDY: what to do where another program listens there."""
        self.path = path
        self.peers: list[Peer] = []
        self.listener: socket.socket | None = None
        self._front = front
        self._owner = owner
        self._remedy = remedy
        self._mine: sockets.Identity | None = None
        self._has_served = False

    @property
    def serving(self) -> bool:
        """Whether the file is there and is ours."""
        return self._mine is not None and sockets.identify(self.path) == self._mine

    def serve(self) -> bool:
        """Listens at the path, anew where that is needed; False where that is to be tried again.

        Raises:
            SocketError: It cannot be served, and has not been before.
        """
        if self.listener is not None and sockets.is_mine(self.path):
            self._mine = sockets.identify(self.path)  # its owner, mode or label was changed
            return True
        try:
            sockets.check_free(self.path, self._remedy)
            fresh = _listener(self.path)
        except SocketError as error:
            if not self._has_served:
                raise
            self._owner.say("cannot serve", socket=str(self.path), detail=str(error))
            return False
        if fresh is None:  # wiped in between by a kubelet that starts: another one, then
            return False
        self.stop_listening()
        self._listen(fresh)
        self._mine = sockets.identify(self.path)
        self._front.log.say("info", "registration", "serving", socket=str(self.path))
        return True

    def adopt_listener(self, listener: socket.socket) -> None:
        """Goes on with LISTENER, which another process has put in place."""
        # From now on peers are shown this process and no longer the one before: `sockets.is_mine` goes by that.
        listener.listen(_BACKLOG)
        self._listen(listener)

    def resume(self) -> None:
        """Goes on with the listener of its own, which another process may have begun to adopt."""
        if self.listener is not None:
            self.listener.listen(_BACKLOG)

    def adopt(self, peer_socket: socket.socket, connection: Connection) -> Peer:
        """Goes on with CONNECTION, which another process began. PEER_SOCKET is closed with it."""
        return self._connected(peer_socket, connection)

    def stop_listening(self) -> None:
        """Closes the socket that the kubelet would dial next; what is connected stays."""
        if self.listener is not None:
            self._front.stop_listening(self.listener)
            self.listener = None
        self._mine = None

    def abandon(self) -> None:
        """Closes what was adopted. It stays open in the process that had it before, and nothing is said to anybody."""
        for peer in self.peers:
            peer.leave()
        self.peers.clear()
        self.stop_listening()

    def remove(self) -> None:
        """Removes the file, if it is ours, and listens no longer."""
        sockets.remove_if_same(self.path, self._mine)
        self.stop_listening()

    def close(self) -> None:
        """Removes the file, and ends every connection."""
        for peer in list(self.peers):
            peer.close()
            self._front.peer_closed(peer)
        self.peers.clear()
        self.remove()

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self.listener = listener
        self._has_served = True
        self._front.selector.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _events: int) -> None:
        listener = self.listener
        if listener is None:
            return
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._front.rest(listener, self._accept)
            self._owner.say("connection not accepted", socket=str(self.path), detail=error.strerror)
            return
        if len(self.peers) >= MOST_PEERS and not self._leave_idle_peer():
            accepted.close()
            return
        self._connected(accepted, Connection())

    def _leave_idle_peer(self) -> bool:
        """Ends the oldest connection that waits for nothing; False where every one does."""
        idle = next((peer for peer in self.peers if not self._owner.waits(peer)), None)
        if idle is not None:
            idle.close()
            self._peer_closed(idle, "too many connections")
        return idle is not None

    def _connected(self, accepted: socket.socket, connection: Connection) -> Peer:
        peer = Peer(
            self._front.selector,
            accepted,
            connection,
            lambda peer, event: self._owner.event_received(self, peer, event),
            self._peer_closed,
            room=self._owner.room_made,
            failed=self._front.failed,
        )
        if peer.open:
            self.peers.append(peer)
        return peer

    def _peer_closed(self, peer: Peer, _why: str) -> None:
        if peer in self.peers:
            self.peers.remove(peer)
        self._owner.peer_closed(peer)
        self._front.peer_closed(peer)


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
