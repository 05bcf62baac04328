"""Runs named tasks together: all of them until one is done, then none.

What `asyncio.TaskGroup` is for, which Python 3.10 lacks. A role is one piece: when a part of it fails the rest must not
go on half alive, and when the part that leads is done the others have nothing left to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

__all__ = ["run_together"]


async def run_together(parts: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Runs PARTS (name -> coroutine) until the first ends, cancels the others and waits for them.

    Raises what the first that failed raised; failures while the others are being cancelled are not lost but secondary.
    A part that ends by a cancellation that nobody asked for has failed too: a call that some library called off.
    """
    tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
    called_off: list[str] = []
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        called_off = [task.get_name() for task in done if task.cancelled()]
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    if called_off:
        raise RuntimeError(f"{', '.join(sorted(called_off))}: called off by something it waited for")
