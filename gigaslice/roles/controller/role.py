# SPDX-License-Identifier: Apache-2.0
"""The controller: follows the cluster, keeps its objects, tells pods why they wait, serves admission and the web page.

Every replica follows and serves; only the leader writes. Nothing is kept but what the API server has, so a replica may
end at any moment and another one goes on from there. Losing all of them stops no pod and no decision about pods.
"""

from __future__ import annotations

import asyncio
import os
import platform
import uuid

from gigaslice.core.errors import MissingError
from gigaslice.kubeapi.access import find_access
from gigaslice.kubeapi.client import KubeClient
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.controller.parts import ControllerParts
from gigaslice.runtime import logs
from gigaslice.runtime.heap import limit_arenas
from gigaslice.runtime.role_start import set_at_signals, start_log, until
from gigaslice.runtime.tasks import lasting, run_together

__all__ = ["run"]

_AGENT = "gigaslice-controller"


def run(config: ControllerConfig) -> None:
    """Runs the controller until SIGTERM or SIGINT. Raises a GigasliceError that says why it cannot."""
    limit_arenas()  # the page is written in a thread, whose own arena would keep what it took
    os.umask(0o077)
    log = start_log("controller", config.log_level, config.log_format, config.warnings)
    asyncio.run(_serve(config))
    log.info("stopped")


async def _serve(config: ControllerConfig) -> None:
    log = logs.get_logger("controller")
    access, origin = find_access(
        config.kubeconfig, config.kubernetes_service, variable=config.kubeconfig_variable
    )
    if access is None:
        raise MissingError(f"no API server: {origin}")
    stop = set_at_signals(asyncio.Event())
    identity = f"{config.identity or platform.node()}_{uuid.uuid4().hex[:8]}"
    log.info("starting", server=str(access), access=origin, identity=identity)
    async with KubeClient(access, _AGENT) as client:
        parts = ControllerParts(client, config, identity)
        running = {
            "signals": until(stop),
            **{name: part() for name, part in parts.essential.items()},
            **{name: lasting(name, part) for name, part in parts.restarted.items()},
        }
        await run_together("signals", running)
