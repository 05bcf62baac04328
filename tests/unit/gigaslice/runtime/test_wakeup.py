# SPDX-License-Identifier: Apache-2.0
"""What is waited for comes at its time, or when it is rung for, and no ring is lost or heard twice."""

from __future__ import annotations

import asyncio
import time

import pytest

from gigaslice.runtime.wakeup import Alarm

LONG = 60.0


def run(story):
    return asyncio.run(asyncio.wait_for(story, 30.0))


def test_without_a_ring_the_time_passes():
    async def story():
        begin = time.monotonic()
        assert await Alarm().wait(0.05) is False
        return time.monotonic() - begin

    assert run(story()) >= 0.05


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_time_at_all_lets_others_work_once(seconds):
    async def story():
        worked = []
        asyncio.get_running_loop().call_soon(worked.append, 1)
        assert await Alarm().wait(seconds) is False
        assert worked

    run(story())


def test_a_ring_before_the_wait_ends_it_at_once_and_counts_once():
    async def story():
        alarm = Alarm()
        alarm.ring()
        alarm.ring()
        assert await alarm.wait(LONG) is True
        assert await alarm.wait(0.01) is False

    run(story())


def test_a_ring_meanwhile_ends_the_wait_and_counts_once():
    async def story():
        alarm = Alarm()
        waiting = asyncio.create_task(alarm.wait(LONG))
        await asyncio.sleep(0)
        alarm.ring()
        alarm.ring()
        assert await waiting is True
        assert await alarm.wait(0.01) is False

    run(story())


def test_a_ring_at_the_end_of_the_time_is_heard_then_or_next():
    async def story():
        for _ in range(200):
            alarm = Alarm()
            asyncio.get_running_loop().call_later(0.001, alarm.ring)
            heard = await alarm.wait(0.001)
            assert heard or await alarm.wait(LONG)
            assert await alarm.wait(0.0) is False

    run(story())


def test_a_wait_that_is_cancelled_loses_no_ring():
    async def story():
        alarm = Alarm()
        waiting = asyncio.create_task(alarm.wait(LONG))
        await asyncio.sleep(0)
        alarm.ring()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await alarm.wait(LONG) is True

    run(story())
