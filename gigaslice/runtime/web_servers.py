# SPDX-License-Identifier: Apache-2.0
"""HTTP servers of the cluster's roles beside metrics and probes: the scheduler's extender, the web page, the webhook.

aiohttp parses and answers. Connections come from a `BoundedListener`, so that nobody who floods a port keeps others
out, and a request is read as a whole before anything is done about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from gigaslice.runtime.bounded_listener import BoundedListener
from gigaslice.runtime.connection_bounds import ConnectionBounds
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["serve", "served"]

_RETRY_SECONDS = 5.0
_MOST_BODY = 8 << 20
_IDLE_SECONDS = 75.0  # of a connection without a request
_LEAVE_SECONDS = 5.0  # for requests to be answered at the end
_CLOSE = {"Connection": "close"}


def _runner_of(routes: Sequence[web.RouteDef], middleware: Middleware, most_body: int) -> web.AppRunner:
    """Returns what answers by ROUTES, to be set up and given an address.

    A body is taken as it comes and never unpacked: a small one could become a large one.
    """
    application = web.Application(client_max_size=most_body, middlewares=[middleware])
    application.add_routes(routes)
    logger = logging.Logger("aiohttp.server", logging.WARNING)
    logger.addHandler(_Failures())
    return web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        auto_decompress=False,
        logger=logger,
        keepalive_timeout=_IDLE_SECONDS,
        shutdown_timeout=_LEAVE_SECONDS,
    )


class _Failures(logging.Handler):
    """Logs the exceptions that a route or the library has not foreseen, like those of every other part.

    A client that goes, or sends what is no HTTP and is answered with 400, is no line of the log.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Takes one line of the library's log."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | ConnectionError):
            get_logger("http").error("request failed", detail=record.getMessage(), exc_info=error)


async def serve(
    name: str,
    address: tuple[str | None, int],
    routes: Sequence[web.RouteDef],
    context: ssl.SSLContext | None = None,
    bounds: ConnectionBounds = ConnectionBounds(),  # noqa: B008  (frozen)
) -> None:
    """Serves ROUTES until cancelled. An address that cannot be bound is logged and tried again.

    Args:
        name: For the log.
        address: Host and port; a host of None means every address.
        routes: What is served.
        context: For TLS.
        bounds: Of the connections.
    """
    log, reported = get_logger("http"), LogOnce()
    async with served(routes, context, bounds) as listener:
        while True:
            try:
                addresses = await listener.start(*address)
            except OSError as error:
                if reported.new("address", str(error)):
                    log.warning("not served; tried again", server=name, detail=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            log.info("served", server=name, addresses=[f"{host}:{port}" for host, port in addresses])
            await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def served(
    routes: Sequence[web.RouteDef],
    context: ssl.SSLContext | None = None,
    bounds: ConnectionBounds = ConnectionBounds(),  # noqa: B008  (frozen)
    most_body: int = _MOST_BODY,
) -> AsyncIterator[BoundedListener]:
    """What answers by ROUTES, to be started at an address. At the end, requests have some seconds to be answered."""

    @web.middleware
    async def in_turn(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Reads the whole request, for so long, before anything is done about it."""
        listener.begun(request.transport)
        try:
            await request.read()
        except web.HTTPRequestEntityTooLarge:
            return web.Response(status=400, text="more bytes than are read here", headers=_CLOSE)
        except (web.RequestPayloadError, HttpProcessingError):
            return web.Response(status=400, text="the body is not sent as its headers say", headers=_CLOSE)
        except ConnectionError as error:
            error.__traceback__ = None  # with it the body stays until the next collection
            return web.Response(status=400)  # which nobody reads
        listener.asked(request.transport)
        try:
            return await handler(request)
        finally:
            listener.answered(request.transport)

    runner = _runner_of(routes, in_turn, most_body)
    await runner.setup()
    listener = BoundedListener(cast(Callable[[], asyncio.Protocol], runner.server), bounds, context)
    try:
        yield listener
    finally:
        await listener.close()
        await runner.cleanup()
