"""Keeps providers served and registered beside each other: one that cannot be does not take the others down.

The resource of the agent itself ends the agent when it may not be served. Any other provider is tried again, with
pauses that grow; so is one that fails while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from agent.config import socket_name
from agent.deviceplugin.link import Link
from agent.deviceplugin.registration import Registration
from agent.deviceplugin.servicer import Servicer
from agent.providers.provider import Provider
from gigaslice.errors import GigasliceError
from gigaslice.runtime import logs
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import run_together

__all__ = ["host", "run_beside", "serve"]

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


async def host(provider: Provider, kubelet_dir: Path, stop: asyncio.Event, link: Link) -> None:
    """Serves PROVIDER over LINK until STOP is set, whatever happens to it."""
    log = get_logger("providers")
    pause = _FIRST_PAUSE
    while not stop.is_set():
        try:
            await _once(provider, kubelet_dir, stop, link)
        except GigasliceError as error:
            log.error("provider failed; tried again", resource=provider.resource, detail=str(error))
        except Exception:
            log.exception("provider failed; tried again", resource=provider.resource)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def run_beside(lead: Coroutine[Any, Any, None], others: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs LEAD with OTHERS beside it, which end by themselves soon after it has, or are cancelled when it fails."""
    tasks = [asyncio.create_task(other) for other in others]
    try:
        await lead
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(providers: Iterable[Provider], kubelet_dir: Path) -> None:
    """Serves PROVIDERS and nothing else until SIGTERM or SIGINT: a device plugin of one's own."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    link = Link.open()
    link.hello(*logs.chosen())
    try:
        async with link.attached():
            await asyncio.gather(*(host(provider, kubelet_dir, stop, link) for provider in providers))
    finally:
        await asyncio.to_thread(link.close)


async def _once(provider: Provider, kubelet_dir: Path, stop: asyncio.Event, link: Link) -> None:
    news = asyncio.Event()

    async def pass_on() -> None:
        while True:
            await news.wait()
            news.clear()
            await servicer.changed()

    servicer = Servicer(provider, lambda: None)
    name = socket_name(provider.resource)
    registration = Registration(servicer, kubelet_dir, name, provider.resource, link)
    await run_together(
        "registration",
        {
            "registration": registration.run(stop),
            "watch": provider.watch(news.set),
            "news": pass_on(),
        },
    )
