# SPDX-License-Identifier: Apache-2.0
"""How much a node fetches at once: datasets, reads of one dataset, bytes per second.

Places are given to the task that has the fewest, then to the one that has had the fewest, then to the one that has
waited longest: a pod with twenty datasets delays a pod with one by at most the dataset that is under way. Bytes per
second are shared equally by the datasets under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from gigaslice.roles.dataset_node.sources.protocol import CancelFlag

__all__ = ["FetchLimits", "Flow", "RateLimiter"]

_BURST_SECONDS = 0.25
_LONGEST_WAIT = 1.0


@dataclass(slots=True)
class Flow:
    """One fetch's account."""

    served: float = 0.0


@dataclass(order=True, slots=True)
class _Ticket:
    tag: float
    number: int
    size: int = field(compare=False)
    turn: threading.Event = field(compare=False, default_factory=threading.Event)
    given_up: bool = field(compare=False, default=False)


class RateLimiter:
    """At most so many bytes per second; 0 is without a limit. Callers are threads.

    Requests are served in the order of what their flow has had: a task that reads large files gets no more than one
    that reads small ones, and a flow that was idle saves nothing up.
    """

    def __init__(self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._paid_until = clock()
        self._served = 0.0
        self._number = 0
        self._tickets: list[_Ticket] = []

    def acquire(self, flow: Flow, size: int, stop: CancelFlag) -> None:
        """Returns when SIZE bytes may be read, or when the work is to end."""
        if self._rate <= 0:
            return
        with self._lock:
            flow.served = max(flow.served, self._served) + size
            self._number += 1
            mine = _Ticket(flow.served, self._number, size)
            heapq.heappush(self._tickets, mine)
        while not stop:
            wait = self._try(mine)
            if wait is None:
                return
            mine.turn.wait(wait)
            mine.turn.clear()
        with self._lock:
            mine.given_up = True
            self._wake_next()

    def _try(self, mine: _Ticket) -> float | None:
        """Serves MINE if it is the next one. Returns the seconds to wait for that; none when it was served."""
        with self._lock:
            if self._head() is not mine:
                return _LONGEST_WAIT
            now = self._clock()
            if self._paid_until > now:
                return min(self._paid_until - now, _LONGEST_WAIT)
            self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + mine.size / self._rate
            self._served = mine.tag
            heapq.heappop(self._tickets)
            self._wake_next()
            return None

    def _head(self) -> _Ticket | None:
        while self._tickets and self._tickets[0].given_up:
            heapq.heappop(self._tickets)
        return self._tickets[0] if self._tickets else None

    def _wake_next(self) -> None:
        head = self._head()
        if head is not None:
            head.turn.set()


class FetchLimits:
    """The bounds of one node; made once, used by every fetch.

    Args:
        datasets: How many are fetched at once.
        reads: How many reads of one dataset are under way at once.
        bytes_per_second: Of all together; 0 is without a limit.
    """

    def __init__(self, *, datasets: int = 4, reads: int = 64, bytes_per_second: float = 0.0) -> None:
        self.reads = reads
        self.pace = RateLimiter(bytes_per_second)
        self._free = datasets
        self._running: Counter[str] = Counter()
        self._served: Counter[str] = Counter()  # of tasks that run or wait
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def place(self, task: str) -> AsyncIterator[None]:
        """Waits for one of the places of datasets, on behalf of TASK, and holds it."""
        await self._enter(task)
        try:
            yield
        finally:
            self._leave(task)

    async def _enter(self, task: str) -> None:
        if self._free > 0:
            self._take(task)
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append((task, mine))
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._leave(task)
            else:
                self._waiting.remove((task, mine))
                self._forget(task)
            raise

    def _take(self, task: str) -> None:
        self._free -= 1
        self._running[task] += 1
        self._served[task] += 1

    def _forget(self, task: str) -> None:
        if not self._running[task]:
            del self._running[task]
            if all(other != task for other, _ in self._waiting):
                del self._served[task]

    def _next(self) -> int:
        """The one who waits with the fewest places, then with the fewest so far, then longest."""
        tasks = [task for task, _ in self._waiting]
        return min(
            range(len(tasks)),
            key=lambda index: (self._running[tasks[index]], self._served[tasks[index]], index),
        )

    def _leave(self, task: str) -> None:
        self._running[task] -= 1
        self._free += 1
        self._forget(task)
        while self._waiting and self._free > 0:
            chosen, future = self._waiting.pop(self._next())
            if future.done():
                continue
            self._take(chosen)
            future.set_result(None)
