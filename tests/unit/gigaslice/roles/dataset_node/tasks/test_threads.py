# SPDX-License-Identifier: Apache-2.0
"""Blocking work whose end is waited for, also by a caller that was cancelled."""

import asyncio
import threading

import pytest

from gigaslice.roles.dataset_node.tasks.threads import Threads


def test_a_caller_that_is_cancelled_goes_when_the_work_is_over_and_not_before():
    threads, begun, go, over = Threads(), threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go.wait()
        over.append(True)

    async def story():
        caller = asyncio.ensure_future(threads.run(work))
        await asyncio.to_thread(begun.wait)
        for _ in range(2):
            caller.cancel()
            await asyncio.sleep(0.02)
            assert not caller.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert over

    asyncio.run(story())
    threads.close()


def test_what_the_work_raises_is_the_callers():
    threads = Threads()

    def work(number):
        raise ValueError(number)

    with pytest.raises(ValueError, match="7"):
        asyncio.run(threads.run(work, 7))
    threads.close()
