# SPDX-License-Identifier: Apache-2.0
"""A wait with a time limit that can be ended early, for loops that run for years.

Waiting for an event (`gigaslice.runtime.time_limit`) makes a task, two futures and a timer for each pass; this makes a
future and a timer.
"""

from __future__ import annotations

import asyncio

__all__ = ["Alarm"]


class Alarm:
    """One task waits; any code on the same event loop rings, before or meanwhile."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Ends the wait that is under way, or else the next one, at once."""
        self._rung = True
        self._end()

    async def wait(self, seconds: float) -> bool:
        """Waits SECONDS at most; whether it has rung, which from now on counts as heard."""
        if not self._rung:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(max(0.0, seconds), self._end)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        rung, self._rung = self._rung, False
        return rung

    def _end(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
