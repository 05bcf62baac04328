# SPDX-License-Identifier: Apache-2.0
"""What a front hands over to the next: its endpoints as JSON can have them, and the descriptors that go with it.

A connection is its socket and the state of HTTP/2 on it. Of a resource the successor makes a socket of its own, and the
kubelet is told. Of the driver of claims the listening sockets go over too, so that the kubelet's registry does not
change: it would take a new socket there for a second driver.
"""

from __future__ import annotations

import binascii
import socket
import time
from typing import Any

from agent.front.claims_endpoint import ClaimsEndpoint
from agent.front.claims_offer import ClaimsOffer
from agent.front.endpoint import Endpoint
from agent.front.front import Call, Front
from agent.front.http2 import Connection
from agent.front.peer import Peer
from agent.front.port import Port
from agent.front.resource_endpoint import ResourceEndpoint
from agent.front.resource_offer import ResourceOffer

__all__ = ["MOST_DESCRIPTORS", "adopt", "export", "streams"]

MOST_DESCRIPTORS = 200  # of the 253 that the kernel passes at once


def export(front: Front, *, takes_claims: bool = True) -> tuple[dict[str, Any], list[int]]:
    """What FRONT has, and the descriptors that belong to it. Connections that nothing depends on are ended.

    TAKES_CLAIMS: whether the driver of claims goes, too. "claims" is there only where there are any: versions that
    serve none know of no such key.
    """
    fds: list[int] = []
    resources = [endpoint for endpoint in front.endpoints.values() if isinstance(endpoint, ResourceEndpoint)]
    drivers = [
        endpoint
        for endpoint in front.endpoints.values()
        if takes_claims and isinstance(endpoint, ClaimsEndpoint)
    ]
    # What there is one of comes first: no number of connections leaves it without a place.
    locks = {id(endpoint): _lock(endpoint, fds) for endpoint in (*resources, *drivers)}
    listeners = {id(port): _listener(port, fds) for driver in drivers for port in driver.ports}
    state = {
        "streams": streams(front),
        "endpoints": [
            {
                "offer": resource.offer.dump(),
                "devices": _text(resource.devices) if resource.devices is not None else None,
                "lock": locks[id(resource)],
                "peers": _resource_peers(front, resource, fds),
            }
            for resource in resources
        ],
    }
    claims = [
        {
            "offer": driver.offer.dump(),
            "status": _text(driver.status) if driver.status is not None else None,
            "lock": locks[id(driver)],
            "service": {
                "listener": listeners[id(driver.service)],
                "peers": _peers(front, driver.service, fds),
            },
            "registration": {
                "listener": listeners[id(driver.registration)],
                "peers": _peers(front, driver.registration, fds),
            },
        }
        for driver in drivers
    ]
    return {**state, "claims": claims} if claims else state, fds


def adopt(front: Front, state: dict[str, Any], fds: list[int]) -> None:
    """Has FRONT go on where another one made STATE and FDS."""
    for resource_state in state["endpoints"]:
        offer = ResourceOffer.load(resource_state["offer"])
        resource = ResourceEndpoint(front, offer)
        front.endpoints[offer.key] = resource
        resource.devices = _bytes(resource_state["devices"])
        _adopt_lock(resource, resource_state, fds)
        for peer_state in resource_state["peers"]:
            connection = Connection.restored(peer_state["connection"])
            watching = peer_state["watching"]
            slow = [stream for stream in watching if connection.waiting(stream)]  # an older one does not say
            sock = socket.socket(fileno=fds[peer_state["fd"]])
            peer = resource.adopt(sock, connection, watching, peer_state.get("behind", slow))
            _adopt_calls(front, resource, peer, peer_state)
    for driver_state in state.get("claims", []):
        claims_offer = ClaimsOffer.load(driver_state["offer"])
        driver = ClaimsEndpoint(front, claims_offer)
        front.endpoints[claims_offer.key] = driver
        driver.status = _bytes(driver_state["status"])
        _adopt_lock(driver, driver_state, fds)
        for port, name in ((driver.service, "service"), (driver.registration, "registration")):
            _adopt_port(front, driver, port, driver_state[name], fds)
    front.wake()


def streams(front: Front) -> int:
    """How many streams watch the devices of all resources."""
    return sum(
        len(endpoint.watchers)
        for endpoint in front.endpoints.values()
        if isinstance(endpoint, ResourceEndpoint)
    )


def _lock(endpoint: Endpoint, fds: list[int]) -> int | None:
    return None if endpoint.lock.descriptor is None else _added(fds, endpoint.lock.descriptor)


def _listener(port: Port, fds: list[int]) -> int | None:
    return None if port.listener is None else _added(fds, port.listener.fileno())


def _added(fds: list[int], fd: int) -> int:
    fds.append(fd)
    return len(fds) - 1


def _resource_peers(front: Front, endpoint: ResourceEndpoint, fds: list[int]) -> list[dict[str, Any]]:
    exported = []
    for peer in list(endpoint.peers):
        watching = [stream for watching_peer, stream in endpoint.watchers if watching_peer is peer]
        calls = _calls(front, peer)
        if (watching or calls) and len(fds) < MOST_DESCRIPTORS:
            more = {"watching": watching, "behind": endpoint.behind(peer), "calls": calls}
            exported.append({**_peer(peer, fds), **more})
        else:
            _end(front, endpoint.port, peer)
    return exported


def _peers(front: Front, port: Port, fds: list[int]) -> list[dict[str, Any]]:
    """All of them: the kubelet keeps a connection open between its calls, and takes its end for the driver's."""
    exported = []
    for peer in list(port.peers):
        if len(fds) < MOST_DESCRIPTORS:
            exported.append({**_peer(peer, fds), "calls": _calls(front, peer)})
        else:
            _end(front, port, peer)
    return exported


def _end(front: Front, port: Port, peer: Peer) -> None:
    peer.close()
    port.peers.remove(peer)
    front.peer_closed(peer)


def _peer(peer: Peer, fds: list[int]) -> dict[str, Any]:
    return {"fd": _added(fds, peer.sock.fileno()), "connection": peer.connection.export()}


def _calls(front: Front, peer: Peer) -> list[dict[str, Any]]:
    return [_call(call) for call in front.calls.values() if call.peer is peer]


def _call(call: Call) -> dict[str, Any]:
    now = time.monotonic()
    left = None if call.until is None else call.until - now
    return {
        "stream": call.stream,
        "method": call.method,
        "message": _text(call.message),
        "age": now - call.since,
        "left": left,
        "again": call.again,
    }


def _adopt_lock(endpoint: Endpoint, state: dict[str, Any], fds: list[int]) -> None:
    if state["lock"] is not None:
        endpoint.adopt_lock(fds[state["lock"]])


def _adopt_port(
    front: Front, endpoint: ClaimsEndpoint, port: Port, state: dict[str, Any], fds: list[int]
) -> None:
    if state["listener"] is not None:
        port.adopt_listener(socket.socket(fileno=fds[state["listener"]]))
    for peer_state in state["peers"]:
        sock = socket.socket(fileno=fds[peer_state["fd"]])
        peer = port.adopt(sock, Connection.restored(peer_state["connection"]))
        _adopt_calls(front, endpoint, peer, peer_state)


def _adopt_calls(front: Front, endpoint: Endpoint, peer: Peer, state: dict[str, Any]) -> None:
    for call in state["calls"]:
        front.put(_call_of(endpoint, peer, call))


def _call_of(endpoint: Endpoint, peer: Peer, state: dict[str, Any]) -> Call:
    now = time.monotonic()
    until = None if state["left"] is None else now + state["left"]
    message = binascii.a2b_base64(state["message"])
    since, again = now - state["age"], state["again"]
    return Call(endpoint, peer, state["stream"], state["method"], message, since, until, again)


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else binascii.a2b_base64(text)
