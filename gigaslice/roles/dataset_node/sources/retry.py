# SPDX-License-Identifier: Apache-2.0
"""When a failed read is tried again: later each time, at random within a quarter, and not before the server says."""

from __future__ import annotations

import random

__all__ = ["TRIES", "backoff"]

TRIES = 8
"""Of one unit; with the delays between them a server may be away for about a minute."""
_FIRST, _LONGEST = 0.2, 20.0


def backoff(failures: int, retry_after: float = 0.0) -> float:
    """Seconds until the next try after FAILURES in a row, and at least RETRY_AFTER."""
    delay = min(_LONGEST, _FIRST * 2.0 ** min(failures - 1, 16))
    return max(delay, retry_after) * (1 + random.random() / 4)
