"""The agent's clock: tells Unix time, and passes as fast as a clock on the wall that nobody touches.

A node's time is set while its agent runs: at boot by years, later by an administrator, backwards too. What the agent
compares are spans (how old an allocation is, how long a GPU has been quiet), so it looks at the wall once, at its
start, and counts on from there. Times of different starts may contradict each other; who compares those says how it
copes (`health.rules.settled`, `AllocationService.age`). Tests: tests/unit/gigaslice/runtime/test_clock.py, and with an
agent whose time jumps tests/integration/agent/test_clock.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["steady"]


def steady() -> Callable[[], float]:
    """A function that gives Unix time in seconds, and that no change of the machine's time reaches any more."""
    begun = time.time() - time.monotonic()
    return lambda: begun + time.monotonic()
