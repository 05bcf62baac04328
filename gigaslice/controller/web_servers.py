"""The controller's HTTP servers beside metrics and probes: the web page, and by TLS the admission webhook.

An address that cannot be bound is logged and tried again, as for the metrics: the rest of the controller works without.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from aiohttp import web

from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["serve"]

_RETRY_SECONDS = 5.0
_MOST_BODY = 8 << 20


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
    application = web.Application(client_max_size=_MOST_BODY)
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
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
