# SPDX-License-Identifier: Apache-2.0
"""What takes too long is ended, and a cancellation is never lost, whatever comes together with it."""

from __future__ import annotations

import asyncio

import pytest

from gigaslice.runtime.time_limit import set_within, within

LONG = 60.0


def test_what_is_done_in_time_is_returned_or_raised():
    async def answer(found):
        await asyncio.sleep(0)
        if isinstance(found, Exception):
            raise found
        return found

    assert asyncio.run(within(answer(5), LONG)) == 5
    with pytest.raises(ValueError, match="no"):
        asyncio.run(within(answer(ValueError("no")), None))


def test_what_takes_longer_is_cancelled_and_has_ended():
    ended = []

    async def slow():
        try:
            await asyncio.sleep(LONG)
        finally:
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(within(slow(), 0.01))
    assert ended


def test_an_event_is_set_in_time_or_not():
    async def story():
        event = asyncio.Event()
        assert await set_within(event, 0.01) is False
        asyncio.get_running_loop().call_later(0.01, event.set)
        assert await set_within(event, LONG) is True
        assert await set_within(event, None) is True

    asyncio.run(story())


@pytest.mark.parametrize("ticks", range(6))
def test_a_cancellation_that_comes_with_the_event_is_not_lost(ticks):
    async def story():
        event = asyncio.Event()
        task = asyncio.create_task(set_within(event, LONG))
        await asyncio.sleep(0.01)
        event.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        if task.done():
            return
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        assert task.cancelled()

    asyncio.run(story())
