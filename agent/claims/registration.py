# SPDX-License-Identifier: Apache-2.0
"""Offers the driver of claims to the kubelet through the front, for as long as it is served: calls in, answers out.

Sockets and connections belong to the front. So the end of this process ends none of them, and calls that it has not
answered go to the next process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from agent.claims.messages import ClaimService
from agent.claims.servicer import ClaimServicer
from agent.front.channel import CLAIM_VERSIONS, Kind
from agent.front.claims_offer import ClaimsOffer
from agent.link import Link, Offered
from agent.telemetry.counters import Counters
from gigaslice.core import errors
from gigaslice.core.claims.names import DRIVER
from gigaslice.core.errors import GigasliceError, SocketError
from gigaslice.core.text import plain
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.pb import pluginregistration_v1_pb2 as api

__all__ = ["ClaimRegistration", "offer"]

_FINISH_SECONDS = 5.0


class ClaimRegistration:
    """The driver's registration with the kubelet.

    Attributes:
        accepted: Whether the kubelet has accepted the driver; None while it has said nothing.
    """

    def __init__(
        self,
        service: ClaimService,
        kubelet_root: Path,
        link: Link,
        counters: Counters | None = None,
        *,
        registered: Callable[[], None] = lambda: None,
    ) -> None:
        """Initializes the registration.

        Args:
            service: Answers the calls.
            kubelet_root: The kubelet's own directory.
            link: The way to the front.
            counters: Where calls are counted; None where they are not.
            registered: Called when the kubelet has accepted the driver. A kubelet that starts does so after it has
                deleted what its node had published.
        """
        self.accepted: bool | None = None
        self._servicer = ClaimServicer(service, counters)
        self._link = link
        self._registered = registered
        self._offer = offer(kubelet_root)
        self._refusal: asyncio.Future[GigasliceError] | None = None
        self._withdrawn = asyncio.Event()
        self._log = get_logger("claims")

    def withdraw(self) -> None:
        """Ends what `run` serves, and the sockets too."""
        self._withdrawn.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until asked to stop, and then leaves what is open to the next process; withdraws it when cancelled.

        Raises:
            SocketError: A socket cannot be made.
            LockedError: Another agent serves there.
        """
        loop = asyncio.get_running_loop()
        self._refusal = loop.create_future()
        methods = self._servicer.methods
        number = self._link.add(Offered(methods, refused=self._refused, notified=self._notified))
        self._link.say(Kind.OFFER_CLAIMS, number, self._offer.to_bytes())
        ends = [loop.create_task(event.wait()) for event in (stop, self._withdrawn)]
        kept = False
        try:
            waited: set[asyncio.Future[Any]] = {*ends, self._refusal}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._refusal.done():
                raise self._refusal.result()
            if not self._withdrawn.is_set():
                await self._link.finish(number, _FINISH_SECONDS)
                kept = True
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            if not kept:
                self._link.say(Kind.WITHDRAW, number)
                self.accepted = None
            self._link.remove(number)

    def _refused(self, kind: str, text: str) -> None:
        error_type = getattr(errors, kind, SocketError)
        if self._refusal is not None and not self._refusal.done():
            self._refusal.set_result(error_type(text))

    def _notified(self, message: bytes) -> None:
        try:
            status = api.RegistrationStatus.FromString(message)
        except DecodeError:
            self._log.error("registration not understood", driver=DRIVER)
            return
        self.accepted = status.plugin_registered
        if status.plugin_registered:
            self._log.info("registered", driver=DRIVER, socket=self._offer.service)
            self._registered()
        else:
            self._log.error("registration refused", driver=DRIVER, detail=plain(status.error))


def offer(kubelet_root: Path) -> ClaimsOffer:
    """What the front is to serve in the kubelet's directory."""
    service = kubelet_root / "plugins" / DRIVER / "dra.sock"
    info = api.PluginInfo(
        type="DRAPlugin",
        name=DRIVER,
        endpoint=str(service),
        supported_versions=[f"{version}.DRAPlugin" for version in CLAIM_VERSIONS],
    )
    return ClaimsOffer(
        str(service),
        str(kubelet_root / "plugins_registry" / f"{DRIVER}-reg.sock"),
        DRIVER,
        info.SerializeToString(deterministic=True),
    )
