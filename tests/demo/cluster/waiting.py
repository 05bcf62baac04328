# SPDX-License-Identifier: Apache-2.0
"""Waiting for what the cluster's parts do by themselves."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from tests.demo.clients import DemoError

PATIENCE = 60.0
"""Seconds until it is given up; nothing is claimed about time."""


async def holds(condition: Callable[[], object | Awaitable[object]], seconds: float = PATIENCE) -> bool:
    """Whether CONDITION comes to hold within SECONDS."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        answer = condition()
        if await answer if inspect.isawaitable(answer) else answer:
            return True
        await asyncio.sleep(0.05)
    return False


async def wait(condition: Callable[[], object | Awaitable[object]], what: str) -> None:
    """Waits until CONDITION, which WHAT says in words, holds. Raises DemoError."""
    if not await holds(condition):
        raise DemoError(f"not after {PATIENCE:.0f} s: {what}")
