# SPDX-License-Identifier: Apache-2.0
"""Blocking work of tasks in threads of its own, which a cancellation waits for.

A mount that is under way when its pod is deleted must be over before it is undone, so a caller that is cancelled goes
on waiting for its thread and is cancelled then. What may wait for storage on a
network has threads of its own, so that a server which is gone never takes those of the local disk.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["Threads"]

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A few threads, made when they are first needed."""

    def __init__(self, most: int = 8, name: str = "dataset-disk") -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs WORK, and returns only when it is over."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, functools.partial(work, *args, **kwargs))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            future.exception()  # its caller is gone
            raise cancelled
        return future.result()

    def close(self) -> None:
        """Ends the threads as soon as they are done."""
        self._pool.shutdown(wait=False)
