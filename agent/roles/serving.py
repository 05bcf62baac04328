# SPDX-License-Identifier: Apache-2.0
"""Serves both of the kubelet's APIs: the one that gives out what is new, and the other while anybody has some of it.

The first ends the agent when it cannot be served. The other one, like resources that have nothing to do with memory of
GPUs, is served again with growing pauses (`agent.deviceplugin.hosting`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from agent.config import Config, socket_name
from agent.deviceplugin.hosting import host, run_beside, serve_one
from agent.link import Link
from agent.persistence.store import Store
from agent.roles.node_parts import Parts
from gigaslice.core.claims.origin import claim_of
from gigaslice.core.deviceplugin.origin import is_plugin
from gigaslice.core.errors import GigasliceError
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.time_limit import set_within

__all__ = ["serve", "while_needed"]

_ROUND_SECONDS = 1.0
_REPEATED_SECONDS = 30.0
"""After a start in which claims are served although none is left: the agent before may have ended between the record of
the last one's end and the answer, for which the kubelet asks again, and its pod stays Terminating meanwhile."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


async def serve(config: Config, parts: Parts, store: Store, stop: asyncio.Event, link: Link) -> None:
    """Serves until asked to end.

    Raises:
        SocketError: The first API cannot be served.
        LockedError: Another agent serves there.
    """
    others = [host(provider, config.kubelet_dir, stop, link) for provider in parts.providers]
    plugins = [host(provider, config.kubelet_dir, stop, link, parts.counters) for provider in parts.types]
    if config.api == "dra":
        assert parts.claims is not None
        plugins.append(host(parts.servicer.provider, config.kubelet_dir, stop, link, parts.counters))
        whole = [host(provider, config.kubelet_dir, stop, link) for provider in parts.whole_gpus]
        needed = _any(store, is_plugin)
        beside = [while_needed(plugin, needed, stop) for plugin in (*plugins, *whole)]
        await run_beside(_claims(parts, stop), [*beside, *others])
        return
    whole = [host(provider, config.kubelet_dir, stop, link) for provider in parts.whole_gpus]
    claims = []
    if parts.claims is not None:
        left = _any(store, lambda allocation: claim_of(allocation) is not None)
        until = time.monotonic() + _REPEATED_SECONDS
        claims.append(
            while_needed(_claims_again(parts, stop), lambda: left() or time.monotonic() < until, stop)
        )
    lead = serve_one(
        parts.servicer, config.kubelet_dir, socket_name(parts.servicer.provider.resource), stop, link
    )
    await run_beside(lead, [*plugins, *whole, *others, *claims])


async def while_needed(
    serving: Coroutine[Any, Any, None], needed: Callable[[], bool], stop: asyncio.Event
) -> None:
    """Runs a coroutine for as long as it is needed; what it serves is withdrawn then. At a stop it ends by itself."""
    if not needed():
        serving.close()
        return
    task = asyncio.ensure_future(serving)
    try:
        while not task.done() and (stop.is_set() or needed()):
            await asyncio.wait({task}, timeout=_ROUND_SECONDS)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _claims(parts: Parts, stop: asyncio.Event) -> None:
    assert parts.claims is not None
    await parts.claims.registration.run(stop)


async def _claims_again(parts: Parts, stop: asyncio.Event) -> None:
    """Serves claims again after each failure: their pods end only when their claims do."""
    log, pause = get_logger("claims"), _FIRST_PAUSE
    while not stop.is_set():
        try:
            await _claims(parts, stop)
        except GigasliceError as error:
            log.error("claims not served; retrying", detail=str(error))
        except Exception:
            log.exception("claims not served; retrying")
        await set_within(stop, pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _any(store: Store, belongs: Callable[[Any], bool]) -> Callable[[], bool]:
    return lambda: any(belongs(allocation) for allocation in store.table.allocations)
