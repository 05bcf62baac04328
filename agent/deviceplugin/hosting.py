# SPDX-License-Identifier: Apache-2.0
"""Serves providers beside each other, each with a registration of its own.

The agent's own resource ends the agent when it cannot be served. Any other provider is served again, with growing
pauses, and does not take the others down; so is one that fails while it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from agent.config import socket_name
from agent.deviceplugin.registration import Registration
from agent.deviceplugin.servicer import Servicer
from agent.link import Link
from agent.providers.resource import DevicePluginResource
from agent.telemetry.counters import Counters
from gigaslice.core.errors import GigasliceError
from gigaslice.runtime import logs
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.role_start import set_at_signals
from gigaslice.runtime.tasks import run_together
from gigaslice.runtime.time_limit import set_within

__all__ = ["host", "run_beside", "serve", "serve_one"]

_LONGEST_PAUSE = 60.0


async def serve_one(
    servicer: Servicer, kubelet_dir: Path, name: str, stop: asyncio.Event, link: Link
) -> None:
    """Serves a provider until it is asked to end.

    Args:
        servicer: The provider's servicer.
        kubelet_dir: The kubelet's directory for device plugins.
        name: The name of the provider's socket there.
        stop: Ends it.
        link: The way to the front.

    Raises:
        SocketError: It may not serve there.
        LockedError: Another agent serves there.
    """
    news = asyncio.Event()

    async def pass_on() -> None:
        while True:
            await news.wait()
            news.clear()
            await servicer.changed()

    provider = servicer.provider
    registration = Registration(servicer, kubelet_dir, name, provider.resource, link)
    await run_together(
        "registration",
        {
            "registration": registration.run(stop),
            "watch": provider.watch(news.set),
            "news": pass_on(),
        },
    )


async def host(
    provider: DevicePluginResource,
    kubelet_dir: Path,
    stop: asyncio.Event,
    link: Link,
    counters: Counters | None = None,
    *,
    pause: float = 1.0,
) -> None:
    """Serves a provider until it is asked to end, again after each failure. Its calls may be counted.

    PAUSE: seconds after the first failure; then twice as long.
    """
    log = get_logger("providers")
    while not stop.is_set():
        try:
            await serve_one(
                Servicer(provider, counters), kubelet_dir, socket_name(provider.resource), stop, link
            )
        except GigasliceError as error:
            log.error("provider failed; retrying", resource=provider.resource, detail=str(error))
        except Exception:
            log.exception("provider failed; retrying", resource=provider.resource)
        await set_within(stop, pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def run_beside(lead: Coroutine[Any, Any, None], others: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine with others beside it. They end by themselves soon after it; if it fails they are cancelled."""
    tasks = [asyncio.create_task(other) for other in others]
    try:
        await lead
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(providers: Iterable[DevicePluginResource], kubelet_dir: Path) -> None:
    """Serves providers and nothing else until SIGTERM or SIGINT: for a program of its own."""
    stop = set_at_signals(asyncio.Event())
    link = Link.open()
    link.hello(*logs.chosen())
    try:
        async with link.attached():
            await asyncio.gather(*(host(provider, kubelet_dir, stop, link) for provider in providers))
    finally:
        await asyncio.to_thread(link.close)
