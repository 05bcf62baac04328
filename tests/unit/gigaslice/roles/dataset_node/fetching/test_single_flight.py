# SPDX-License-Identifier: Apache-2.0
"""One flight per key: who starts it, who waits, who ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import pytest

from gigaslice.core.dataset.errors import CacheFullError, SourceError
from gigaslice.roles.dataset_node.fetching.progress import ProgressMeter
from gigaslice.roles.dataset_node.fetching.single_flight import SingleFlight


class Work:
    """A fetch that ends when it is told to."""

    def __init__(self, done: float = 0.0, error: Exception | None = None) -> None:
        self.starts = 0
        self.cancelled = 0
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self._done, self._error = done, error

    async def __call__(self, flight):
        self.starts += 1
        flight.started(ProgressMeter(100, int(self._done * 100)))
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self._error is not None:
            raise self._error
        return "ready"


def running(test):
    def run():
        asyncio.run(asyncio.wait_for(test(), 20))

    return run


@running
async def _eight():
    flights, work = SingleFlight(), Work()
    tasks = [asyncio.create_task(flights.join("k", work)) for _ in range(8)]
    await work.begun.wait()
    assert flights.keys() == {"k"}
    assert flights["k"].waiting == 8
    work.go.set()
    assert await asyncio.gather(*tasks) == ["ready"] * 8
    assert work.starts == 1
    assert flights.keys() == frozenset()


def test_eight_who_ask_wait_for_one_flight():
    _eight()


@pytest.mark.parametrize(("done", "finishes"), [(0.2, False), (0.5, False), (0.51, True), (0.9, True)])
def test_the_last_one_who_leaves_ends_a_flight_that_has_less_than_half(done, finishes):
    async def run():
        flights, work = SingleFlight(), Work(done)
        one, two = (asyncio.create_task(flights.join("k", work)) for _ in range(2))
        await work.begun.wait()
        one.cancel()
        await asyncio.wait([one])
        assert work.cancelled == 0, "the other one still waits"
        two.cancel()
        await asyncio.wait([two])
        await asyncio.sleep(0.01)
        assert work.cancelled == (not finishes)
        assert (flights["k"] is not None) == finishes
        work.go.set()
        await asyncio.sleep(0.01)
        assert flights.keys() == frozenset()

    asyncio.run(run())


def test_who_comes_while_a_flight_is_being_stopped_starts_it_anew():
    async def run():
        flights, work = SingleFlight(), Work()
        first = asyncio.create_task(flights.join("k", work))
        await work.begun.wait()
        first.cancel()
        await asyncio.sleep(0)
        second = asyncio.create_task(flights.join("k", work))
        work.go.set()
        assert await second == "ready"
        assert work.starts == 2

    asyncio.run(run())


def test_a_starter_whose_access_ends_does_not_fail_the_others():
    async def run():
        flights = SingleFlight()
        refused = Work(error=SourceError("the token has expired"))
        allowed = Work()
        one = asyncio.create_task(flights.join("k", refused))
        await refused.begun.wait()
        others = [asyncio.create_task(flights.join("k", allowed)) for _ in range(3)]
        await asyncio.sleep(0)
        refused.go.set()
        allowed.go.set()
        with pytest.raises(SourceError, match="expired"):
            await one
        assert await asyncio.gather(*others) == ["ready"] * 3
        assert (refused.starts, allowed.starts) == (1, 1)

    asyncio.run(run())


def test_everybody_fails_once_everybody_has_tried():
    async def run():
        flights = SingleFlight()
        work = Work(error=SourceError("away"))
        work.go.set()
        found = await asyncio.gather(*(flights.join("k", work) for _ in range(4)), return_exceptions=True)
        assert [str(one) for one in found] == ["away"] * 4
        assert work.starts == 4

    asyncio.run(run())


@pytest.mark.parametrize("error", [CacheFullError("full"), SourceError("x", changed=True)])
def test_what_is_not_the_starters_fault_fails_everybody_at_once(error):
    async def run():
        flights, work = SingleFlight(), Work(error=error)
        tasks = [asyncio.create_task(flights.join("k", work)) for _ in range(4)]
        await work.begun.wait()
        work.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found == [error] * 4
        assert work.starts == 1

    asyncio.run(run())


def test_keys_do_not_wait_for_each_other_and_close_ends_all():
    async def run():
        flights, one, two = SingleFlight(), Work(0.9), Work()
        tasks = [asyncio.create_task(flights.join("1", one)), asyncio.create_task(flights.join("2", two))]
        await one.begun.wait()
        await two.begun.wait()
        two.go.set()
        assert await tasks[1] == "ready"
        assert flights["1"].progress.fraction == 0.9
        await flights.close()
        assert one.cancelled == 1
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[0]

    asyncio.run(run())


@pytest.fixture
def _no_endless_loop():
    """An event loop that is stuck in one step hears of no time limit of its own."""

    def stuck(*_):
        raise AssertionError("the event loop is stuck in one step")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.setitimer(signal.ITIMER_REAL, 10, 0.2)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_no_endless_loop")
def test_a_flight_and_who_waits_for_it_are_cancelled_in_one_step():
    """As at the end of a program, which cancels whatever still runs."""

    async def story():
        flights, work = SingleFlight(), Work()
        tasks = [asyncio.create_task(flights.join("k", work)) for _ in range(3)]
        await work.begun.wait()
        for one in [flights["k"].result, *tasks]:
            one.cancel()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert all(isinstance(one, asyncio.CancelledError) for one in found), found
        assert work.starts == 1 and not flights.keys()

    asyncio.run(story())
