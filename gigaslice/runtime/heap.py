# SPDX-License-Identifier: Apache-2.0
"""Returns to the machine what the agent's C heap does not need any more.

Python's heap does not grow with the pods that come and go (tracemalloc: some KiB in thousands), but glibc's does: what
is freed stays in the heap, and each thread that allocates has an arena of its own, up to eight for every CPU. The
agent's threads run one at a time anyway (Python's lock), so all use one arena, and its free pages are given back once a
minute: about one MiB of 59 each time. Tests: tests/unit/gigaslice/runtime/test_heap.py.
"""

from __future__ import annotations

import asyncio
import ctypes

__all__ = ["keep_small", "limit_arenas", "trim"]

_M_ARENA_MAX = -8  # malloc.h
_INTERVAL = 60.0


def limit_arenas() -> bool:
    """Has all threads that begin from now on allocate in one arena; whether this C library knows how to."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))


def trim() -> None:
    """Gives free pages back, where this C library knows how to. Takes some milliseconds."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))


async def keep_small(interval: float = _INTERVAL) -> None:
    """Works until cancelled: trims every INTERVAL seconds."""
    while True:
        await asyncio.sleep(interval)
        await asyncio.to_thread(trim)
