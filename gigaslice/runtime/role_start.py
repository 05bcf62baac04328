# SPDX-License-Identifier: Apache-2.0
"""How every role begins: with its log, and with an ear for the wish that it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from typing import Any

from gigaslice.runtime import logs
from gigaslice.runtime.failures import catch_all

__all__ = ["set_at_signals", "start_log", "until"]


def start_log(part: str, level: str, form: str, warnings: Iterable[str]) -> Any:
    """Sets up the process's log, for unforeseen failures too, and logs WARNINGS of the configuration; PART's logger."""
    logs.set_up(level, form)
    log = logs.get_logger(part)
    catch_all(log)
    for sentence in warnings:
        log.warning("configuration", detail=sentence)
    return log


def set_at_signals(stop: asyncio.Event) -> asyncio.Event:
    """STOP, which SIGTERM and SIGINT set from now on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def until(stop: asyncio.Event) -> None:
    """Works until STOP is set."""
    await stop.wait()
