# SPDX-License-Identifier: Apache-2.0
"""One thread for the driver: what it does in turn, and what becomes of calls that hang."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gigaslice.core.errors import ControlError
from gigaslice.roles.driver_limits.driver_thread import DriverThread


def test_work_is_done_in_one_thread_and_in_turn():
    async def main():
        thread, order = DriverThread(), []

        def work(number):
            order.append(number)
            return threading.get_ident()

        idents = await asyncio.gather(
            *(thread.run(lambda number=number: work(number), 20) for number in range(5))
        )
        assert order == [0, 1, 2, 3, 4] and len(set(idents)) == 1 and idents[0] != threading.get_ident()

    asyncio.run(main())


def test_what_work_raises_is_raised():
    async def main():
        thread = DriverThread()
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 // 0, 20)
        assert await thread.run(lambda: 7, 20) == 7

    asyncio.run(main())


def test_a_call_that_hangs_is_left_and_refuses_what_follows_until_it_is_back():
    async def main():
        thread, release, done = DriverThread(), threading.Event(), []
        refusal = "busy"
        while "busy" in refusal:  # on a busy machine its turn does not come in time
            with pytest.raises(ControlError) as error:
                await thread.run(lambda: release.wait(60), 0.05)
            refusal = str(error.value)
        assert refusal == "a call of the NVIDIA driver has not come back within 0.05 s"
        with pytest.raises(ControlError, match="nothing was done"):
            await thread.run(lambda: done.append(1), 20)
        release.set()
        while True:
            try:
                await thread.run(lambda: done.append(2), 20)
                break
            except ControlError:
                await asyncio.sleep(0.01)
        assert done == [2]

    asyncio.run(main())


def test_work_whose_turn_does_not_come_in_time_is_not_done():
    async def main():
        thread, release, done = DriverThread(), threading.Event(), []
        first = asyncio.ensure_future(thread.run(lambda: release.wait(60), 60))
        await asyncio.sleep(0)
        with pytest.raises(ControlError, match=r"busy for 0\.05 s; nothing was done"):
            await thread.run(lambda: done.append(1), 0.05)
        release.set()
        assert await first
        await thread.run(lambda: done.append(2), 20)
        assert done == [2]

    asyncio.run(main())
