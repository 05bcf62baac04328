"""Runs named tasks together: all of them until the one that leads is done, then none.

What `asyncio.TaskGroup` is for, which Python 3.10 lacks. A role is one piece: when a part of it fails the rest must not
go on half alive, and when the part that leads is done the others have nothing left to do. Any other part works until it
is cancelled by us, so one that ends otherwise has failed, however quietly: returned, or called off together with a call
that it was waiting for.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

from agent.telemetry.logs import get_logger

__all__ = ["leave_within", "run_together"]


async def run_together(lead: str, parts: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Runs PARTS (name -> coroutine) until the one named LEAD ends, cancels the others and waits for them.

    Raises what the first that failed raised, and RuntimeError for one that ended by itself; failures while the others
    are being cancelled are not lost but secondary.
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
        results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    if ended:
        raise RuntimeError(f"ended by itself: {', '.join(ended)}")


def leave_within(seconds: float, failure: str = "") -> None:
    """Sees to it that this process is gone SECONDS from now: 1 with FAILURE, which it may not get to say, else 0.

    The interpreter waits for all threads before it ends, and one that asks a driver that hangs never comes back.
    Nothing is lost: what is kept was written when it was decided, and locks end with their process.
    """

    def leave() -> None:
        get_logger("node").error("left a thread behind that does not end: the driver hangs", detail=failure)
        os._exit(1 if failure else 0)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
