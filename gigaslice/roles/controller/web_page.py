# SPDX-License-Identifier: Apache-2.0
"""The read-only web page over HTTP: one page, made by `gigaslice.core.views.page`, for an aiohttp application.

It is made again when the cluster has changed, or after half a minute for the ages in it, and at most once in a few
seconds however many ask: a page of a large cluster takes some time. A browser that has it already is told so by its
ETag. There is no login here: the page belongs behind a proxy that has one, or kubectl port-forward. It answers under
its own names alone (`page_hosts`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from gigaslice.core.text import plain
from gigaslice.roles.controller.page_hosts import PageHosts

__all__ = ["PageMaker", "page_routes"]

_FRESH_SECONDS = 2.0
_OLD_SECONDS = 30.0  # for which a page of an unchanged cluster is right enough
_SHARE = 20  # at most one part in so many of the controller's time is spent on pages
_REMEMBERED = 32  # pages of different queries
_MISDIRECTED = 421

PageMaker = Callable[[Mapping[str, str]], Awaitable[Callable[[], str]]]
"""Takes what the page needs from the present state for a query, and returns the function that writes it."""


@dataclass(frozen=True, slots=True)
class _Page:
    made: float
    until: float
    revision: int
    body: bytes
    tag: str


class _Pages:
    def __init__(self, make: PageMaker, revision: Callable[[], int], clock: Callable[[], float]) -> None:
        self._make = make
        self._revision = revision
        self._clock = clock
        self._pages: OrderedDict[tuple[tuple[str, str], ...], _Page] = OrderedDict()
        self._lock = asyncio.Lock()

    async def page(self, query: Mapping[str, str]) -> _Page:
        key = tuple(sorted(query.items()))
        async with self._lock:  # one page at a time, however many ask
            cached = self._pages.get(key)
            revision = self._revision()
            now = self._clock()
            if cached is not None and (
                now < cached.until or (cached.revision == revision and now - cached.made < _OLD_SECONDS)
            ):
                self._pages.move_to_end(key)
                return cached
            write = await self._make(query)
            held = self._clock() - now  # of which about half were breaks
            body = (await asyncio.get_running_loop().run_in_executor(None, write)).encode()
            until = self._clock() + max(_FRESH_SECONDS, _SHARE * held)
            rendered = _Page(now, until, revision, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
            self._pages[key] = rendered
            self._pages.move_to_end(key)
            while len(self._pages) > _REMEMBERED:
                self._pages.popitem(last=False)
            return rendered


def page_routes(
    make: PageMaker,
    revision: Callable[[], int],
    headers: Mapping[str, str],
    hosts: PageHosts,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[web.RouteDef]:
    """Returns the page's route.

    Args:
        make: Makes a page.
        revision: Grows when a page would be another one.
        headers: What a page is sent with.
        hosts: Under which names it is served.
        clock: Gives seconds that only grow.
    """
    pages = _Pages(make, revision, clock)

    async def handle(request: web.Request) -> web.Response:
        named = request.headers.getall("Host", [])
        if not hosts.admits(named):
            return web.Response(status=_MISDIRECTED, text=_misdirected(named))
        query = {key: request.query[key] for key in sorted(set(request.query))[:8]}
        page = await pages.page(query)
        told = {**headers, "ETag": page.tag}
        if page.tag in [
            tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")
        ]:
            return web.Response(status=304, headers={key: told[key] for key in told if key != "Content-Type"})
        return web.Response(body=page.body, headers=told)

    return [web.get("/", handle)]


def _misdirected(named: list[str]) -> str:
    name = plain(", ".join(named))[:100] or "no name"
    return (
        f"The page is not served under {name}: write localhost, an IP address or the full name of its Service, or have "
        "an administrator name the host in --page-hosts (in the chart controller.settings.pageHosts).\n"
    )
