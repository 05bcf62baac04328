# SPDX-License-Identifier: Apache-2.0
"""Waiting in tests, mostly of asyncio: until something holds, and for a story that runs beside what it is about.

`looking` looks at it all the while, from a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.fakes.threads import await_end

__all__ = ["looking", "run_beside", "until", "wait_until"]


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits until CONDITION holds; the test fails where it does not within SECONDS, about which nothing is asserted."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        if loop.time() > end:
            pytest.fail("what the test waits for has not come")
        await asyncio.sleep(0.005)


async def run_beside(
    work: Coroutine[Any, Any, None], story: Coroutine[Any, Any, None], seconds: float = 60.0
) -> None:
    """Runs STORY while WORK runs, which is cancelled at its end and has to end then."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait_for(story, seconds)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """As until(), for code of threads."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail("what the test waits for has not come")
        time.sleep(0.005)


@contextlib.contextmanager
def looking(look: Callable[[], None], seconds: float) -> Iterator[None]:
    """Calls LOOK every SECONDS in a thread of its own while the block runs; at the end, raises what it raised."""
    halt, errors = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            while not halt.wait(seconds):
                look()
        except BaseException as error:  # noqa: BLE001  (raised by the thread that ends it)
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        halt.set()
        await_end(thread)
    if errors:
        raise errors[0]
