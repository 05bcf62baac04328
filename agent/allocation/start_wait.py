# SPDX-License-Identifier: Apache-2.0
"""The waiting before a start: one call is held until nothing stands in the way, or until it is answered with a reason.

Both of the kubelet's APIs have a call before a start that is repeated after an error, and in the pause free memory
idles. So a call is held for nearly as long as its caller waits, and decided on again whenever the allocation table
changes. Each decision reads the ledgers of all neighbours, so all that wait together take a part of this thread's time
at most.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.allocation.start import StartBlocker
from agent.persistence.store import Store

__all__ = ["StartTimes", "StartWaiter"]


@dataclass(frozen=True, slots=True)
class StartTimes:
    """How long a start is waited for, and how often it is decided on. Seconds, and parts of this thread's time.

    Attributes:
        patience: How long one call is held: the kubelet gives up after 30 seconds.
        unwatched_patience: The same where nothing would show that the pod is to be deleted.
        margin: The time before the caller gives up in which what was decided reaches the disk.
        report_after: The waiting after which the pod is told what it waits for.
        interval: The shortest time between two decisions over one start.
        thread_part: What all that wait may take of the thread, since each decision reads the ledgers of all neighbours.
        changed_part: The same while the allocation table changes, as it does when memory has become free.
    """

    patience: float = 25.0
    unwatched_patience: float = 5.0
    margin: float = 5.0
    report_after: float = 5.0
    interval: float = 0.1
    thread_part: float = 0.05
    changed_part: float = 0.25


class StartWaiter:
    """Holds calls.

    Attributes:
        waiting: How many calls are held now.
        times: How long.
    """

    def __init__(self, store: Store, blocked: Callable[[], None], times: StartTimes) -> None:
        """Args: store: The allocation table. blocked: Called at each decision to wait. times: How long is waited."""
        self.waiting = 0
        self.times = times
        self._store = store
        self._blocked = blocked
        self._closed = False

    def close(self) -> None:
        """Makes every call return at its next decision: the agent is about to end."""
        self._closed = True

    async def wait(
        self,
        blocker: Callable[[], Awaitable[StartBlocker | None]],
        patience: Callable[[], float],
        remaining: float | None,
        report: Callable[[StartBlocker], None],
    ) -> StartBlocker | None:
        """Returns None once nothing stands in the way; else what still does.

        Args:
            blocker: Returns what stands in the way now. One that is final is returned at once.
            patience: Returns how long the call is held in all, by what is known now. Seconds.
            remaining: Seconds until the caller gives up, None where it does not.
            report: Called once when the waiting has become long.
        """
        longest = math.inf if remaining is None else max(remaining - self.times.margin, remaining / 2)
        self.waiting += 1
        try:
            return await self._wait(blocker, patience, longest, report)
        finally:
            self.waiting -= 1

    async def _wait(
        self,
        blocker: Callable[[], Awaitable[StartBlocker | None]],
        patience: Callable[[], float],
        longest: float,
        report: Callable[[StartBlocker], None],
    ) -> StartBlocker | None:
        came, reported, times = time.monotonic(), False, self.times
        while True:
            begun = time.thread_time()
            reason = await blocker()
            held = time.monotonic() - came
            left = min(patience(), longest) - held
            if reason is None or reason.final or self._closed or left <= 0:
                return reason
            if held >= times.report_after and not reported:
                reported = True
                report(reason)
            self._blocked()
            busy = (time.thread_time() - begun) * self.waiting
            await self._pause(min(busy / times.changed_part, left), min(busy / times.thread_part, left))

    async def _pause(self, shortest: float, longest: float) -> None:
        """Sleeps so long, and the shorter time where the allocation table changes or the agent is about to end."""
        table, begun = self._store.table, time.monotonic()
        await asyncio.sleep(max(self.times.interval, shortest))
        while self._store.table is table and not self._closed:
            left = longest - (time.monotonic() - begun)
            if left <= 0:
                return
            await asyncio.sleep(min(self.times.interval, left))
