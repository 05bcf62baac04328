"""The controller's HTTP servers beside metrics and probes: the web page, and by TLS the admission webhook.

An address that cannot be bound is logged and tried again, as for the metrics: the rest of the controller works without.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["runner_of", "serve"]

_RETRY_SECONDS = 5.0
_MOST_BODY = 8 << 20


def runner_of(routes: Sequence[web.RouteDef]) -> web.AppRunner:
    """Returns what answers by ROUTES, to be set up and given an address.

    A body is taken as it comes and never unpacked: a small one could become a large one.
    """
    application = web.Application(client_max_size=_MOST_BODY)
    application.add_routes(routes)
    logger = logging.Logger("aiohttp.server", logging.WARNING)
    logger.addHandler(_Failures())
    return web.AppRunner(
        application, access_log=None, handle_signals=False, auto_decompress=False, logger=logger
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
) -> None:
    """Serves ROUTES until cancelled.

    Args:
        name: For the log.
        address: Host and port; a host of None means every address.
        routes: What is served.
        context: For TLS.
    """
    log, reported = get_logger("http"), LogOnce()
    runner = runner_of(routes)
    await runner.setup()
    try:
        while True:
            try:
                await web.TCPSite(runner, *address, ssl_context=context).start()
            except OSError as error:
                if reported.new("address", str(error)):
                    log.warning("not served; tried again", server=name, detail=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            log.info("served", server=name, addresses=[str(one) for one in runner.addresses])
            await asyncio.Event().wait()
    finally:
        await runner.cleanup()
