# SPDX-License-Identifier: Apache-2.0
"""Keys to work on: each once at a time, however often it is added, again after a failure, and not too many a second.

A burst of changes to one key is gathered into one pass over it. Workers never work on the same key at the same time, so
a pass need not lock what belongs to its key. A pass that fails for the API server's sake is repeated after pauses that
grow; another exception is a mistake in this program and ends the role's part, which is started again.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from gigaslice.kubeapi.client import ApiFailure
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of
from gigaslice.runtime.time_limit import set_within

__all__ = ["RateLimit", "WorkQueue"]

K = TypeVar("K", bound=Hashable)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 60.0


class RateLimit:
    """Lets RATE requests a second pass, and BURST at once after a quiet time."""

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gap = 1.0 / rate
        self._ahead = burst * self._gap
        self._clock = clock
        self._next = -float("inf")  # when the next request would be due at an even pace

    def reserve(self) -> float:
        """Takes the next place; returns seconds until it is due."""
        now = self._clock()
        self._next = max(self._next, now - self._ahead) + self._gap
        return max(0.0, self._next - now)

    def ready(self) -> bool:
        """Takes the next place where it is due now; whether it is."""
        if max(self._next, self._clock() - self._ahead) + self._gap > self._clock():
            return False
        self.reserve()
        return True

    async def take(self) -> None:
        """Waits until one more request may be sent."""
        wait = self.reserve()
        if wait > 0:
            await asyncio.sleep(wait)


class WorkQueue(Generic[K]):
    """Keys and the workers on them.

    Args:
        name: For the log.
        work: Makes one pass over a key.
        workers: Keys that are worked on at the same time.
        gather: Seconds from the first change of a key to its pass.
        pause: The first pause after a failure.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[K], Awaitable[None]],
        *,
        workers: int = 1,
        gather: float = 0.0,
        pause: float = _FIRST_PAUSE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        """Passes that the API server made fail, ever."""
        self._name = name
        self._work = work
        self._workers = workers
        self._gather = gather
        self._pause = pause
        self._clock = clock
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0  # keys need not be ordered among themselves
        self._working: set[K] = set()
        self._again: dict[K, float] = {}
        self._failed: dict[K, int] = {}
        self._news = asyncio.Event()
        self._reported = LogOnce()
        self._log = get_logger("controller")

    def __len__(self) -> int:
        return len(self._due) + len(self._working)

    def add(self, key: K, delay: float | None = None) -> None:
        """Has KEY worked on after DELAY seconds (the gathering time without one), or sooner where that is due."""
        at = self._clock() + (self._gather if delay is None else delay)
        if key in self._working:
            self._again[key] = min(at, self._again.get(key, at))
        elif at < self._due.get(key, float("inf")):
            self._due[key] = at
            self._count += 1
            heapq.heappush(self._heap, (at, self._count, key))
            self._news.set()

    def clear(self) -> None:
        """Forgets every key that is not being worked on."""
        self._due.clear()
        self._heap.clear()
        self._again.clear()
        self._failed.clear()

    async def run(self) -> None:
        """Works until cancelled, or until a pass fails with anything but ApiFailure."""
        await all_of(*(self._worker() for _ in range(self._workers)))

    async def _worker(self) -> None:
        while True:
            key = await self._next()
            self._working.add(key)
            delay: float | None = None
            try:
                await self._work(key)
                self._failed.pop(key, None)
                self._reported.over("failing")
            except ApiFailure as failure:
                delay = self._after(key, failure)
            finally:
                self._working.discard(key)
                at = self._again.pop(key, None)
            if delay is not None:
                self.add(key, delay)
            elif at is not None:
                self.add(key, max(0.0, at - self._clock()))

    def _after(self, key: K, failure: ApiFailure) -> float:
        self.failures += 1
        times = self._failed[key] = self._failed.get(key, 0) + 1
        if times > 1 and self._reported.new("failing", str(failure)):
            self._log.warning(
                "write failed; tried again", queue=self._name, key=str(key), detail=str(failure)
            )
        pause: float = min(_LONGEST_PAUSE, self._pause * 2 ** min(times - 1, 10)) * random.uniform(0.5, 1.0)
        return max(failure.retry_after, pause)

    async def _next(self) -> K:
        while True:
            while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
                heapq.heappop(self._heap)
            wait = self._heap[0][0] - self._clock() if self._heap else None
            if wait is not None and wait <= 0:
                key = heapq.heappop(self._heap)[2]
                del self._due[key]
                return key
            self._news.clear()
            await set_within(self._news, wait)
