# SPDX-License-Identifier: Apache-2.0
"""One fetch per key, however many tasks ask for it.

All tasks that wait for a key wait for the same flight. The first task starts it, with its own access to the source. The
others have proved their right to the data by listing the source. A flight can fail for a reason that only its starter
has, such as an expired token or a pod that was deleted. Then the next task that waits starts it again with its own
access, and it goes on from what has arrived.

When no task waits any more, a flight that has more than half of its bytes goes on to its end, since the data are likely
to be asked for again. Any other flight is stopped. What has arrived stays for a later attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from gigaslice.core.dataset.errors import SourceError
from gigaslice.roles.dataset_node.fetching.progress import Progress, ProgressMeter

__all__ = ["Flight", "SingleFlight"]

T = TypeVar("T")

_ENOUGH = 0.5


class Flight(Generic[T]):
    """One fetch under way."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.meter: ProgressMeter | None = None
        """Set by the fetch when it begins to read; none while it waits for its place."""
        self.waiting = 0
        self.result: asyncio.Task[T]
        self.stopping = False

    def started(self, meter: ProgressMeter) -> None:
        """To be given to `fetch`."""
        self.meter = meter

    @property
    def progress(self) -> Progress | None:
        """How far it is; none while it waits for its place."""
        return None if self.meter is None else self.meter.now()


class SingleFlight(Generic[T]):
    """All flights of a node."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight[T]] = {}

    def __getitem__(self, key: str) -> Flight[T] | None:
        return self._flights.get(key)

    def keys(self) -> frozenset[str]:
        """Of everything that is being fetched: none of it may be evicted."""
        return frozenset(self._flights)

    async def join(self, key: str, start: Callable[[Flight[T]], Awaitable[T]]) -> T:
        """Waits for the flight of KEY, and starts it if there is none.

        Args:
            key: Of the dataset's version.
            start: Does the whole work, from the place on the disk to the complete dataset.

        Raises:
            Exception: What START raised; another one's failure only after an own attempt, if the source was at fault.
        """
        while True:
            flight = self._flights.get(key)
            if flight is not None and flight.result.done():
                await asyncio.sleep(0)  # it is taken away by the event loop's next step
                continue
            own = flight is None
            if flight is None:
                flight = self._begin(key, start)
            elif flight.stopping:
                await asyncio.wait([flight.result])
                continue
            flight.waiting += 1
            try:
                await asyncio.wait([flight.result])  # a cancellation that comes out of it is this caller's
            finally:
                flight.waiting -= 1
                self._left_alone(flight)
            try:
                return flight.result.result()
            except SourceError as error:
                if own or error.changed:
                    raise
            except asyncio.CancelledError:
                if own:
                    raise

    def _begin(self, key: str, start: Callable[[Flight[T]], Awaitable[T]]) -> Flight[T]:
        flight: Flight[T] = Flight(key)

        async def run() -> T:
            return await start(flight)

        flight.result = asyncio.get_running_loop().create_task(run(), name=f"dataset {key[:12]}")
        self._flights[key] = flight
        flight.result.add_done_callback(lambda done: self._end(flight, done))
        return flight

    def _end(self, flight: Flight[T], done: asyncio.Task[T]) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
        if not done.cancelled():
            done.exception()  # no task may wait for it any more

    def _left_alone(self, flight: Flight[T]) -> None:
        if flight.waiting or flight.result.done():
            return
        progress = flight.progress
        if progress is None or progress.fraction <= _ENOUGH:
            flight.stopping = True
            flight.result.cancel()

    async def close(self) -> None:
        """Stops every flight; what has arrived is kept."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.stopping = True
            flight.result.cancel()
        if flights:
            await asyncio.wait([flight.result for flight in flights])
