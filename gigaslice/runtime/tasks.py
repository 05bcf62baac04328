# SPDX-License-Identifier: Apache-2.0
"""Runs named tasks together: all of them until the one that leads is done, then none.

What `asyncio.TaskGroup` is for, which Python 3.10 lacks. When the part that leads is done the others have nothing left
to do. Any other part works until it is cancelled by us, so one that ends otherwise has failed, however quietly:
returned, or called off together with a call that it was waiting for. That ends the role, unless the others can do
without the part: then it is wrapped in `lasting`, which starts it again (docs/adr/0054-which-parts-end-the-agent.md).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from gigaslice.core.errors import MissingError
from gigaslice.runtime.logs import get_logger

__all__ = ["LEAVE_SECONDS", "TERMINATION_SECONDS", "all_of", "lasting", "leave_within", "run_together"]

T = TypeVar("T")

TERMINATION_SECONDS = 30.0
"""From SIGTERM until the kubelet kills: terminationGracePeriodSeconds of daemonset.yaml and the chart, which a test
compares."""
LEAVE_SECONDS = TERMINATION_SECONDS / 3
"""Of them for files to be closed and the driver to be left; the rest is for what ends before."""

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_LIVED_SECONDS = 300.0  # a part that worked for so long is started again soon


async def all_of(*parts: Coroutine[Any, Any, T]) -> list[T]:
    """Runs PARTS until all have ended, and returns what they do.

    When one fails the others are cancelled, and its failure is raised.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_together(lead: str, parts: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Runs PARTS (name -> coroutine) until the one named LEAD ends, cancels the others and waits for them.

    Raises what the first that failed raised, and RuntimeError for one that ended by itself; further failures, while the
    others are being cancelled, are logged.
    """
    tasks = {name: asyncio.create_task(part, name=name) for name, part in parts.items()}
    ended: list[str] = []
    try:
        done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        ended = sorted(name for name, task in tasks.items() if task in done)
        if lead in ended and not tasks[lead].cancelled():
            ended = []
    finally:
        for task in tasks.values():
            task.cancel()
        outcomes = await asyncio.gather(*tasks.values(), return_exceptions=True)
    failed = {
        name: outcome for name, outcome in zip(tasks, outcomes, strict=True) if isinstance(outcome, Exception)
    }
    first = next((name for name in (*ended, *failed) if name in failed), "")
    for name, failure in failed.items():
        if name != first:
            get_logger("node").error("component failed while stopping", name=name, exc_info=failure)
    if first:
        raise failed[first]
    if ended:
        raise RuntimeError(f"ended by itself: {', '.join(ended)}")


async def lasting(
    name: str,
    part: Callable[[], Coroutine[Any, Any, None]],
    failed: Callable[[str], None] = lambda name: None,
    *,
    pause: float = _FIRST_PAUSE,
) -> None:
    """Runs PART until cancelled: again after each failure, with pauses from PAUSE seconds to a minute.

    FAILED is called with NAME at each. The log has the stack of every failure: it is a mistake in this program. A
    MissingError was foreseen and is raised: only another process can have what this one lacks.
    """
    log = get_logger("node")
    first = pause
    while True:
        begun = time.monotonic()
        task = asyncio.create_task(part(), name=name)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        (failure,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(failure, MissingError):
            raise failure
        failed(name)
        pause = first if time.monotonic() - begun > _LIVED_SECONDS else min(pause, _LONGEST_PAUSE)
        log.error(
            "component failed; restarted",
            name=name,
            again_seconds=pause,
            detail=repr(failure) if failure is not None else "ended by itself",
            exc_info=failure,
        )
        await asyncio.sleep(pause)
        pause *= 2


def leave_within(seconds: float, failure: str = "") -> None:
    """Sees to it that this process is gone SECONDS from now: 1 with FAILURE, which it may not get to say, else 0.

    The interpreter waits for all threads before it ends, and one that asks a driver that hangs never comes back.
    Nothing is lost: what is kept was written when it was decided, and locks end with their process.
    """

    def leave() -> None:
        get_logger("node").error("thread left behind: the driver hangs", detail=failure)
        os._exit(1 if failure else 0)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
