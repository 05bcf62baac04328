# SPDX-License-Identifier: Apache-2.0
"""Waits with a time limit that lose no cancellation.

`asyncio.wait_for` before Python 3.12 swallows a cancellation that comes together with what it waits for: the task goes
on, and its owner, which cancelled it to end the program, waits for ever. The linter refuses it for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["set_within", "within"]

T = TypeVar("T")


async def within(work: Awaitable[T], seconds: float | None) -> T:
    """What WORK returns; asyncio.TimeoutError when it takes longer than SECONDS. It is cancelled then, and ends."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    if not done:
        task.cancel()
        await asyncio.wait({task})
        raise asyncio.TimeoutError
    return task.result()


async def set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether EVENT is set within SECONDS."""
    try:
        return await within(event.wait(), seconds)
    except asyncio.TimeoutError:
        return False
