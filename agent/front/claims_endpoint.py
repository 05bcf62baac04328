# SPDX-License-Identifier: Apache-2.0
"""The driver of claims at the kubelet: the socket by which the kubelet finds it, and the one at which it is called.

The kubelet connects by itself to whatever socket appears in its directory plugins_registry, so there is nothing to
repeat: both sockets are there, or are made anew. A call that is answered with an error costs a pod a minute. So a
call is held while the agent is away, for almost as long as the kubelet waits for it.
"""

from __future__ import annotations

from pathlib import Path

from agent.front import grpc
from agent.front.channel import CLAIM_METHODS, CLAIM_VERSIONS, Kind
from agent.front.claims_offer import ClaimsOffer
from agent.front.endpoint import Endpoint, EndpointOwner
from agent.front.health_check import asked_service, health
from agent.front.http2 import MessageReceived
from agent.front.peer import Peer
from agent.front.port import Port

__all__ = ["SERVICES", "ClaimsEndpoint"]

SERVICES = {f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin": version for version in CLAIM_VERSIONS}
"""Version of the API by its service."""
_REGISTRATION_SERVICE, _HEALTH_SERVICE = "pluginregistration.Registration", "grpc.health.v1.Health"
_REMEDY = "stop that one: a node has one driver of that name"


class ClaimsEndpoint(Endpoint):
    """What OFFER names, served for FRONT.

    Attributes:
        status: What the kubelet has said of the registration: a RegistrationStatus, as bytes. None: nothing yet.
    """

    # Longer than the kubelet's 45 seconds, so calls have ended before. Then the kubelet takes the node's slices back
    # after half a minute, and no more pods come here.
    patience = 60.0
    margin = 2.0

    def __init__(self, front: EndpointOwner, offer: ClaimsOffer) -> None:
        service, registration = Path(offer.service), Path(offer.registration)
        lock = service.with_name(
            f"{service.name}.lock"
        )  # not in the registry, which is the kubelet's to look through
        # The socket of the service first: the kubelet calls it as soon as it has seen the other.
        super().__init__(
            front,
            offer.key,
            f"the driver {offer.driver}",
            paths=[service, registration],
            lock=lock,
            remedy=_REMEDY,
        )
        self.offer = offer
        self.status: bytes | None = None

    @property
    def service(self) -> Port:
        """The socket for calls."""
        return self.ports[0]

    @property
    def registration(self) -> Port:
        """The socket in the kubelet's registry."""
        return self.ports[1]

    def attach(self, offer: ClaimsOffer, number: int) -> None:
        """The agent has started and makes this offer.

        The kubelet asks what the driver is at a registration only. So where that has changed, it is shown a new socket.
        """
        if offer.info != self.offer.info:
            self.registration.remove()
            self.status = None
        self.offer, self.number = offer, number
        if self.status is not None:
            self._front.say(Kind.NOTIFIED, number, self.status)
        self._front.wake()

    def handed_over(self) -> None:
        """Both sockets go to the successor as they are."""

    def _poll(self) -> None:
        for port in self.ports:
            if port.serving:
                continue
            if not (self._may_serve() and port.serve()):
                return
            self._logged.over("problem")

    def _may_serve(self) -> bool:
        directory = self.service.path.parent
        if directory.parent.is_dir():  # the kubelet's; the driver's own is the driver's to make
            directory.mkdir(mode=0o750, exist_ok=True)
        return super()._may_serve()

    # --- what the kubelet asks -------------------------------------------------------------------------------

    def _request_received(
        self, port: Port, peer: Peer, event: MessageReceived, service: str, method: str
    ) -> None:
        message = grpc.unpacked(event.body)
        if port is self.registration:
            if service != _REGISTRATION_SERVICE:
                raise grpc.not_served()
            peer.reply(event.stream, self._registration_answer(method, message))
        elif (service, method) == (_HEALTH_SERVICE, "Check"):
            peer.reply(event.stream, self._health_answer(message))
        else:
            call = f"{SERVICES.get(service)}.{method}"
            if call not in CLAIM_METHODS:
                raise grpc.not_served()
            self._front.call_received(self, peer, event, call, message)

    def _registration_answer(self, method: str, message: bytes) -> bytes:
        if method == "GetInfo":
            return self.offer.info
        if method == "NotifyRegistrationStatus":
            self.status = message
            if self.number is not None:
                self._front.say(Kind.NOTIFIED, self.number, message)
            return b""
        raise grpc.not_served()

    def _health_answer(self, message: bytes) -> bytes:
        service = asked_service(message)
        if service and service not in SERVICES:
            raise grpc.StatusError(grpc.NOT_FOUND, f"no service {service[:200]}")
        return health(serving=self.number is not None)
