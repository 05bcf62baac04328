# SPDX-License-Identifier: Apache-2.0
"""The role `gigaslice driver-limits`: answers the node agent on one socket.

It is a container of its own because setting a limit takes CAP_SYS_ADMIN, and the agent is not to have that. So it has
nothing else: no token, no network, no file but its socket; it keeps nothing and decides nothing
(docs/adr/0112-setting-driver-limits-is-a-container-of-its-own.md). Whoever may open the socket may ask.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

from gigaslice.core.errors import ControlError, MissingError
from gigaslice.core.limits.driver_limit_messages import (
    ApplyAnswer,
    ApplyRequest,
    MessageError,
    WatchRequest,
)
from gigaslice.roles.driver_limits.applier import Applier
from gigaslice.roles.driver_limits.cgroup_tree import CgroupTree
from gigaslice.roles.driver_limits.driver_thread import DriverThread
from gigaslice.roles.driver_limits.memory_limits import LimitCallError, MemoryLimits
from gigaslice.roles.driver_limits.pod_watch import PodWatch
from gigaslice.roles.driver_limits.settings import DriverLimitSettings
from gigaslice.roles.driver_limits.support import find_support
from gigaslice.runtime.local_sockets import Answer, LineServer
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.role_start import set_at_signals, start_log, until
from gigaslice.runtime.tasks import run_together

__all__ = ["DriverLimitService", "run"]

_APPLY_SECONDS = 4.0  # the agent waits for 5
_SUPPORT_SECONDS = 15.0  # the agent waits for 20; opening a driver takes seconds
_GRACE_SECONDS = 0.5  # for the call in which a pass notices that it is late
_CLONE_NEWNET = 0x40000000  # <linux/sched.h>


class DriverLimitService:
    """All parts of the role.

    Args:
        settings: What the role was told.
        limits: The driver.
        apply_seconds: How long a pass may take.
    """

    def __init__(
        self, settings: DriverLimitSettings, limits: MemoryLimits, *, apply_seconds: float = _APPLY_SECONDS
    ) -> None:
        self._limits = limits
        self._apply_seconds = apply_seconds
        self._tree = CgroupTree(settings.cgroup_root)
        self._thread = DriverThread()
        self._watch = PodWatch(self._tree)
        self._server = LineServer(settings.socket, self._serve)
        self._failed: asyncio.Future[None] | None = None
        self._log = get_logger("driver-limits")

    async def run(self, stop: asyncio.Event) -> None:
        """Works until STOP is set. Raises MissingError where only another process can go on."""
        self._failed = asyncio.get_running_loop().create_future()
        await run_together(
            "signals",
            {
                "signals": until(stop),
                "socket": self._server.run(),
                "cgroups": self._watch.run(),
                "driver": self._driver(self._failed),
            },
        )

    async def _driver(self, failed: asyncio.Future[None]) -> None:
        await failed

    async def _serve(self, request: dict[str, Any], answer: Answer) -> None:
        asked = next((name for name in ("support", "apply", "watch") if name in request), "")
        if not asked:
            raise ControlError("this is no request of driver limits; use the same version of both programs")
        document = request[asked]
        if not isinstance(document, dict):
            raise MessageError(f"{asked} must be an object")
        try:
            reply = await self._replies[asked](self, document)
        except MissingError as error:
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)
            raise
        await answer({**reply, **{key: request[key] for key in ("id",) if key in request}})

    async def _support(self, _: dict[str, Any]) -> dict[str, Any]:
        support = await self._thread.run(lambda: find_support(self._limits, self._tree), _SUPPORT_SECONDS)
        self._log.info("support", backend=support.backend, detail=support.reason, driver=support.driver)
        return support.encode()

    async def _apply(self, document: dict[str, Any]) -> dict[str, Any]:
        request = ApplyRequest.decode(document)
        end = time.monotonic() + self._apply_seconds
        late = lambda: time.monotonic() > end  # noqa: E731
        answer = await self._thread.run(
            lambda: self._applied(request, late), self._apply_seconds + _GRACE_SECONDS
        )
        return answer.encode()

    def _applied(self, request: ApplyRequest, late: Callable[[], bool]) -> ApplyAnswer:
        """Sets what REQUEST asks for; once more with the driver opened anew where it has given no answer at all."""
        try:
            self._limits.open()
            answer = Applier(self._limits, self._tree, late).apply(request)
            if not self._limits.silent:
                return answer
            self._limits.renew()
            return Applier(self._limits, self._tree, late).apply(request)
        except LimitCallError as error:
            raise ControlError(str(error)) from error

    async def _watched(self, document: dict[str, Any]) -> dict[str, Any]:
        request = WatchRequest.decode(document)
        return (await self._watch.changed(request.sequence, request.seconds)).encode()

    _replies = {"support": _support, "apply": _apply, "watch": _watched}  # noqa: RUF012


def run(settings: DriverLimitSettings, version: str) -> None:
    """Runs the role until SIGTERM or SIGINT. VERSION: for the log."""
    log = start_log("driver-limits", settings.log_level, settings.log_format, settings.warnings)
    _leave_network(log)
    from gigaslice.roles.driver_limits.nvml import NvmlLimits  # noqa: PLC0415  (after the log can say what it lacks)

    log.info("starting", version=version, socket=str(settings.socket), cgroups=str(settings.cgroup_root))
    asyncio.run(_run(settings, NvmlLimits()))
    log.info("stopped")


async def _run(settings: DriverLimitSettings, limits: MemoryLimits) -> None:
    await DriverLimitService(settings, limits).run(set_at_signals(asyncio.Event()))


def _leave_network(log: Any) -> None:
    """Goes into a network of its own, in which there is nothing: this role needs none. Before there are threads."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        log.warning("network not left", detail=os.strerror(ctypes.get_errno()))
