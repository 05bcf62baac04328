# SPDX-License-Identifier: Apache-2.0
"""Long work in the agent's own thread, in pieces, with room for other tasks between them.

The kubelet's calls are answered in the same thread, and a node's admissions wait for each of them. Reading the ledgers
of many containers takes milliseconds, and no call should wait for that. It is not done in another thread because the
allocation table is read and changed in this one alone. What comes after a break must not rely on the allocation table
being as it was before. Tests: tests/unit/gigaslice/runtime/test_yielding.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from typing import TypeVar

__all__ = ["in_pieces", "with_breaks"]

_PIECE = 0.0005
_BREAK = 0.001
"""Seconds of work in one piece, and the break after it, in which a whole call can be answered."""

T = TypeVar("T")


async def with_breaks(
    items: Iterable[T], clock: Callable[[], float] = time.perf_counter, piece: float = _PIECE
) -> AsyncIterator[T]:
    """ITEMS, one after the other, with a break after each PIECE of seconds that the caller has worked on them."""
    begun = clock()
    for item in items:
        if clock() - begun >= piece:
            await asyncio.sleep(_BREAK)
            begun = clock()
        yield item


async def in_pieces(
    steps: Generator[None, None, T], clock: Callable[[], float] = time.perf_counter, piece: float = 0.004
) -> T:
    """Runs a generator step by step, and returns its result.

    After each PIECE of seconds it sleeps as long as it has worked, so that other tasks run.
    """
    begun = clock()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        taken = clock() - begun
        if taken >= piece:
            await asyncio.sleep(min(taken, 10 * piece))
            begun = clock()
