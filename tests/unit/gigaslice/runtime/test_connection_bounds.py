# SPDX-License-Identifier: Apache-2.0
"""Which connection is ended where one more has come."""

from __future__ import annotations

from gigaslice.runtime.connection_bounds import (
    ConnectionBounds,
    ConnectionState,
    ConnectionTable,
    OpenConnection,
)

SILENT, UNASKED, KEPT = ConnectionState


def table(
    *peers: str, state: ConnectionState = UNASKED, **bounds: int
) -> tuple[ConnectionTable, list[OpenConnection]]:
    found = ConnectionTable(ConnectionBounds(**bounds))
    connections = [OpenConnection(peer) for peer in peers]
    for now, connection in enumerate(connections):
        found.add(connection, state, float(now))
    return found, connections


def test_who_floods_ends_its_own_first():
    found, (honest, first, *_) = table("api-server", "flood", "flood", "flood")
    assert found.victim(UNASKED) is first
    found.remove(first)
    found.add(OpenConnection("flood"), UNASKED, 9.0)
    assert found.victim(UNASKED) is not honest


def test_of_one_peer_the_one_that_waits_longest_is_ended():
    found, (first, second) = table("a", "a")
    found.remove(first)
    found.add(first, UNASKED, 5.0)
    assert found.victim(UNASKED) is second


def test_a_state_does_not_push_out_another():
    found, (kept,) = table("a", state=KEPT, unasked=2)
    for _ in range(2):
        found.add(OpenConnection("a"), UNASKED, 0.0)
    assert found.full(UNASKED) and not found.full(KEPT) and not found.full(SILENT)
    assert found.victim(UNASKED) is not kept and found.victim(KEPT) is kept and found.victim(SILENT) is None


def test_who_is_gone_is_counted_once():
    found, (one,) = table("a")
    found.hold(one, 10)
    assert found.remove(one) and not found.remove(one)
    assert found.count(UNASKED) == 0 and found.held == 0 and found.everyone() == []


def test_who_holds_most_is_ended_where_it_is_too_much_in_all():
    found, (small, large) = table("a", "b", held_bytes=100)
    found.hold(small, 40)
    found.hold(large, 60)
    assert found.heaviest() is None
    found.hold(small, 1)
    assert found.heaviest() is large


def test_a_place_goes_to_who_has_fewest_and_then_to_who_came_last():
    found, _ = table("flood", "flood")
    waiting = [OpenConnection(peer) for peer in ("flood", "api-server", "api-server", "flood")]
    assert found.next_of(dict.fromkeys(waiting)) is waiting[2]


def test_patience_shrinks_with_those_that_wait():
    found, _ = table(unasked=10)
    assert found.grace(0) == 0.25 > found.grace(5) > found.grace(9) >= found.grace(1000) > 0
