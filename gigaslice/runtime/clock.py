# SPDX-License-Identifier: Apache-2.0
"""The agent's clock: Unix time that no change of the machine's time disturbs.

A node's time is set while its agent runs: at boot by years, later by an administrator, backwards too. What the agent
compares are spans (how old an allocation is, how long a GPU has been quiet), so it reads the machine's time once, at
its start, and counts on from there. Times of different starts may contradict each other; code that compares those says
how it copes (`AllocationService.age`). Tests: tests/unit/gigaslice/runtime/test_clock.py, and with an agent whose time
jumps tests/integration/agent/test_clock.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["steady"]


def steady() -> Callable[[], float]:
    """A function that returns Unix time in seconds, whatever happens to the machine's time after this call."""
    begun = time.time() - time.monotonic()
    return lambda: begun + time.monotonic()
