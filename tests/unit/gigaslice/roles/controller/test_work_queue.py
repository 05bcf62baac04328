# SPDX-License-Identifier: Apache-2.0
"""Keys are worked on once at a time, again after failures, and no faster than they may be."""

from __future__ import annotations

import asyncio

import pytest

from gigaslice.kubeapi.client import ApiFailure
from gigaslice.roles.controller.work_queue import RateLimit, WorkQueue
from tests.fakes.eventually import until


def test_a_burst_of_changes_to_one_key_is_one_pass():
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    async def begin() -> None:
        queue = WorkQueue("q", work, gather=0.05)
        task = asyncio.create_task(queue.run())
        for _ in range(100):
            queue.add("a")
            queue.add("b")
        assert len(queue) == 2
        await until(lambda: len(done) == 2)
        await asyncio.sleep(0.1)
        assert sorted(done) == ["a", "b"]
        assert len(queue) == 0
        queue.add("a")
        queue.add("a", 0.0)
        await until(lambda: len(done) == 3)
        await asyncio.sleep(0.1)
        assert len(done) == 3, "the sooner of two passes, not both"
        task.cancel()

    asyncio.run(begin())


def test_a_key_that_changes_during_its_pass_gets_another_and_never_two_at_once():
    inside, most, passes = 0, 0, 0

    async def main() -> None:
        async def work(key: str) -> None:
            nonlocal inside, most, passes
            inside += 1
            most = max(most, inside)
            passes += 1
            await asyncio.sleep(0.01)
            inside -= 1

        queue = WorkQueue("q", work, workers=4)
        task = asyncio.create_task(queue.run())
        queue.add("a")
        await until(lambda: inside == 1)
        queue.add("a")
        queue.add("a")
        await until(lambda: passes == 2 and inside == 0)
        await asyncio.sleep(0.02)
        assert (most, passes, len(queue)) == (1, 2, 0)
        task.cancel()

    asyncio.run(main())


def test_different_keys_are_worked_on_together():
    inside: set[str] = set()

    async def main() -> None:
        async def work(key: str) -> None:
            inside.add(key)
            await until(lambda: len(inside) == 3)

        queue = WorkQueue("q", work, workers=3)
        task = asyncio.create_task(queue.run())
        for key in "abc":
            queue.add(key)
        await until(lambda: len(inside) == 3 and not len(queue))
        task.cancel()

    asyncio.run(main())


def test_a_failed_pass_is_repeated_after_the_time_that_the_server_asks_for():
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def work(key: str) -> None:
            times.append(loop.time())
            if len(times) == 1:
                raise ApiFailure("busy", 429, retry_after=0.2)
            if len(times) == 2:
                raise ApiFailure("conflict", 409)

        queue = WorkQueue("q", work, pause=0.01)
        task = asyncio.create_task(queue.run())
        queue.add("a")
        await until(lambda: len(times) == 3)
        assert times[1] - times[0] >= 0.2
        assert queue.failures == 2
        await until(lambda: len(queue) == 0)
        task.cancel()

    asyncio.run(main())


def test_a_mistake_of_ours_ends_the_queue():
    async def main() -> None:
        async def work(key: str) -> None:
            raise KeyError(key)

        queue = WorkQueue("q", work, workers=2)
        queue.add("a")
        with pytest.raises(KeyError):
            await asyncio.wait_for(queue.run(), 60)

    asyncio.run(main())


def test_a_cleared_queue_has_nothing_to_do():
    async def main() -> None:
        done: list[str] = []

        async def work(key: str) -> None:
            done.append(key)

        queue = WorkQueue("q", work, gather=0.01)
        queue.add("a")
        queue.clear()
        task = asyncio.create_task(queue.run())
        await asyncio.sleep(0.05)
        queue.add("b")
        await until(lambda: done == ["b"])
        task.cancel()

    asyncio.run(main())


def test_a_rate_has_a_burst_and_then_a_pace():
    now = 0.0
    limit = RateLimit(10.0, 5, clock=lambda: now)
    assert [limit.reserve() for _ in range(5)] == [0.0] * 5
    assert [round(limit.reserve(), 6) for _ in range(3)] == [0.1, 0.2, 0.3]
    now = 100.0
    assert [limit.reserve() for _ in range(5)] == [0.0] * 5
    assert limit.reserve() > 0
    now = 200.0
    assert [limit.ready() for _ in range(7)] == [True] * 5 + [False] * 2
    now += 0.1
    assert [limit.ready() for _ in range(2)] == [True, False]


@pytest.mark.parametrize("steps", range(6))
def test_it_ends_when_it_is_cancelled_together_with_a_new_key(steps: int):
    async def work(key: str) -> None:
        pass

    async def main() -> None:
        queue = WorkQueue("q", work)
        queue.add("later", 60.0)
        task = asyncio.create_task(queue.run())
        await asyncio.sleep(0.01)
        queue.add("sooner", 50.0)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=60)
        if not done:
            task.cancel()
        assert done

    asyncio.run(main())
