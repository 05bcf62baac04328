"""Something to wait for that may come before its time.

`asyncio.wait_for(event.wait(), …)` makes a task, a future and a timer for each turn; who turns ten times a second for
years does with a future and a timer.
"""

from __future__ import annotations

import asyncio

__all__ = ["Alarm"]


class Alarm:
    """One waits; anybody on the same event loop rings, before or meanwhile."""

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
