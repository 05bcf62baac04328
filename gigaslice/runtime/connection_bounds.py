# SPDX-License-Identifier: Apache-2.0
"""How many connections one port keeps open, and which is ended where one more has come. Pure.

A connection is silent until its first byte, then unasked until it has sent a whole request, then kept. Silent ones cost
a socket. Unasked ones cost the buffers of TLS and of a request. What is kept has shown that it speaks the protocol.
Each state has a number of its own, so those that say nothing never push out one that was answered, or is about to be.

Among those of a state, one of the peer that has most of them is ended, and of these the one that has waited longest. So
who floods ends its own connections first; and where all come from one address, a client that goes on is soon past the
states that are crowded.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ConnectionBounds", "ConnectionState", "ConnectionTable", "OpenConnection"]


class ConnectionState(enum.Enum):
    """How far a connection has come."""

    SILENT = "silent"
    UNASKED = "unasked"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Numbers of one port.

    Attributes:
        silent, unasked, kept: How many connections may be in a state.
        seconds: For a connection to send its first request, and for each later one to come once it has begun.
        grace: Seconds that an unasked connection is left alone though others wait for its place, so that a burst of
            honest clients waits in turn and is not ended. Less, down to a tenth of it, the more are waiting.
        held_bytes: Of requests that are not answered, of all connections together.
    """

    silent: int = 512
    unasked: int = 256
    kept: int = 512
    seconds: float = 10.0
    grace: float = 0.25
    held_bytes: int = 64 << 20

    def most(self, state: ConnectionState) -> int:
        """Returns how many connections may be in a state."""
        return {"silent": self.silent, "unasked": self.unasked, "kept": self.kept}[state.value]


@dataclass(eq=False, slots=True)
class OpenConnection:
    """One connection. peer: whose it is. since: when it came into its state. held: bytes of its request."""

    peer: str
    state: ConnectionState = ConnectionState.SILENT
    since: float = 0.0
    held: int = 0
    at: Any = field(default=None, repr=False)
    """What serves it: nothing here looks at it."""


class ConnectionTable:
    """The connections of one port."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._states: dict[ConnectionState, dict[str, dict[OpenConnection, None]]] = {
            state: {} for state in ConnectionState
        }
        self._counts = dict.fromkeys(ConnectionState, 0)
        self.held = 0

    def count(self, state: ConnectionState) -> int:
        """Returns how many connections are in a state."""
        return self._counts[state]

    def full(self, state: ConnectionState) -> bool:
        """Whether a state has no room for one more."""
        return self._counts[state] >= self._bounds.most(state)

    def add(self, connection: OpenConnection, state: ConnectionState, now: float) -> None:
        """Puts a connection into a state, as the one that came last."""
        connection.state, connection.since = state, now
        self._states[state].setdefault(connection.peer, {})[connection] = None
        self._counts[state] += 1

    def remove(self, connection: OpenConnection) -> bool:
        """Takes a connection out; says whether it was there."""
        of_state = self._states[connection.state]
        of_peer = of_state.get(connection.peer, {})
        if connection not in of_peer:
            return False
        del of_peer[connection]
        if not of_peer:
            del of_state[connection.peer]
        self._counts[connection.state] -= 1
        self.hold(connection, -connection.held)
        return True

    def hold(self, connection: OpenConnection, size: int) -> None:
        """Counts bytes of a connection's request, or gives them back."""
        connection.held += size
        self.held += size

    def victim(self, state: ConnectionState) -> OpenConnection | None:
        """Returns which connection of a state is to be ended; None where there is none."""
        peers = self._states[state]
        return next(iter(peers[max(peers, key=lambda peer: len(peers[peer]))])) if peers else None

    def heaviest(self) -> OpenConnection | None:
        """Returns the connection that holds most bytes, where all together hold too many; else None."""
        if self.held <= self._bounds.held_bytes:
            return None
        connections = (
            connection for peers in self._states.values() for crowd in peers.values() for connection in crowd
        )
        return max(connections, key=lambda connection: connection.held, default=None)

    def everyone(self) -> list[OpenConnection]:
        """Returns all connections."""
        return [
            connection for peers in self._states.values() for crowd in peers.values() for connection in crowd
        ]

    def grace(self, waiting: int) -> float:
        """Returns the seconds that an unasked connection is left alone where so many others wait."""
        return self._bounds.grace * max(0.1, 1 - waiting / self._bounds.unasked)

    def next_of(self, waiting: dict[OpenConnection, Any]) -> OpenConnection:
        """Returns which of those that wait for a place among the unasked gets the next one.

        One whose peer has fewest of these places, and the one that came last: where they come faster than they can be
        served, the first have been given up by their clients.
        """
        places = self._states[ConnectionState.UNASKED]
        fewest = min(len(places.get(connection.peer, ())) for connection in waiting)
        return next(
            connection for connection in reversed(waiting) if len(places.get(connection.peer, ())) == fewest
        )
