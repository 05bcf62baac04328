# SPDX-License-Identifier: Apache-2.0
"""Work in a thread: its end, its failure, and a caller that does not wait for either."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading

import pytest

from gigaslice.roles.dataset_node.sources.protocol import CancelFlag, in_thread


def test_results_and_failures_are_the_callers():
    assert asyncio.run(in_thread("test", lambda stop: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread("test", lambda stop: 1 // 0))


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_caller_that_is_cancelled_stops_the_work_and_leaves_no_failure_behind(cancels):
    stopped = threading.Event()
    logged = []

    def work(stop):
        while not stop:
            stop.wait(0.01)
        stopped.wait(0.05 if cancels == 1 else 0.3)
        stopped.set()
        raise ValueError("given up")

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        task = asyncio.create_task(in_thread("test", work, patience=5))
        for _ in range(cancels):
            await asyncio.sleep(0.05)
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert stopped.is_set() == (cancels == 1), "the first cancellation waits, the second does not"
        await asyncio.to_thread(stopped.wait, 5)
        await asyncio.sleep(0.05)
        del task
        gc.collect()

    asyncio.run(run())
    assert logged == []


def test_an_inner_stop_ends_with_the_outer_one():
    outer = CancelFlag()
    inner = CancelFlag(outer)
    assert not inner
    outer.set()
    assert inner
    assert inner.wait(0.01)
