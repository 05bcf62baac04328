# SPDX-License-Identifier: Apache-2.0
"""Offers a provider to the kubelet through the front, for as long as it is served: lists out, calls in.

Sockets and streams belong to the front. So the end of this process ends none of them, and calls that it has not
answered go to the next process.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agent.deviceplugin import messages
from agent.deviceplugin.servicer import Servicer
from agent.front.channel import Kind
from agent.front.resource_offer import ResourceOffer
from agent.link import Link, Offered
from gigaslice.core import errors
from gigaslice.core.errors import GigasliceError, SocketError

__all__ = ["Registration"]

_FINISH_SECONDS = 5.0  # an allocation takes milliseconds, on a disk that hangs it does not end


class Registration:
    """One provider's registration with the kubelet."""

    def __init__(
        self, servicer: Servicer, directory: Path, socket_name: str, resource: str, link: Link
    ) -> None:
        """Initializes the registration.

        Args:
            servicer: Answers the calls.
            directory: The kubelet's directory for device plugins.
            socket_name: The name of the socket there.
            resource: The resource that is offered.
            link: The way to the front.
        """
        self._servicer = servicer
        self._link = link
        options = servicer.options
        self._offer = ResourceOffer(
            str(directory),
            socket_name,
            resource,
            options.SerializeToString(),
            messages.register_request(resource, socket_name, options).SerializeToString(),
        )
        self._refusal: asyncio.Future[GigasliceError] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until asked to stop, then answers what the kubelet still waits for.

        Raises:
            SocketError: The socket cannot be made.
            LockedError: Another agent serves there.
        """
        loop = asyncio.get_running_loop()
        self._refusal = loop.create_future()
        number = self._link.add(
            Offered(self._servicer.methods, watched=self._servicer.watched, refused=self._refused)
        )
        self._link.say(Kind.OFFER, number, self._offer.to_bytes())
        feed = loop.create_task(self._feed(number))
        asked = loop.create_task(stop.wait())
        kept = False
        try:
            ends: set[asyncio.Future[Any]] = {feed, asked, self._refusal}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._refusal.done():
                raise self._refusal.result()
            if not stop.is_set():
                feed.result()
                raise RuntimeError("the list of devices ended by itself")
            await self._servicer.close()
            await self._link.finish(number, _FINISH_SECONDS)
            kept = True
        finally:
            for task in (feed, asked):
                task.cancel()
            await asyncio.gather(feed, asked, return_exceptions=True)
            if not kept:
                self._link.say(Kind.WITHDRAW, number)
            self._link.remove(number)
            self._servicer.watched(0)

    async def _feed(self, number: int) -> None:
        async for devices in self._servicer.lists():
            self._link.say(Kind.LIST, number, devices.SerializeToString())

    def _refused(self, kind: str, text: str) -> None:
        error_type = getattr(errors, kind, SocketError)
        if self._refusal is not None and not self._refusal.done():
            self._refusal.set_result(error_type(text))
