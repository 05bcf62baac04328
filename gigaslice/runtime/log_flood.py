# SPDX-License-Identifier: Apache-2.0
"""Keeps an event that repeats from filling the node's logs: it is written some times, then counted.

Tenants decide how often much of what is logged happens: a program that faults in a loop makes an Xid each time, a
ledger can be made to grow as often as it is cut back, a pod that cannot start is asked about again and again. So the
log has one rule for all of it, and the code that logs need not care. The line that is written next says how many were
not. Pure: times are arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping

__all__ = ["Flood", "subject"]

_BURST = 10.0
_REFILL = 60.0  # seconds for another one
_REMEMBERED = 2048  # subjects; the one that was silent longest is forgotten first
_ABOUT = ("name", "allocation", "container", "pod", "gpu", "xid", "resource", "path", "address")


def subject(fields: Mapping[str, object]) -> tuple[str, ...]:
    """What a line with these FIELDS is about: lines of the same subject are repetitions, whatever else they say."""
    return tuple(str(fields.get(name, "")) for name in ("part", "event", *_ABOUT))


class Flood:
    """Which lines are written."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, tuple[float, float, int]] = OrderedDict()  # tokens, when, left out

    def left_out(self, about: Hashable, now: float) -> int | None:
        """How many lines ABOUT this were left out since the last one, when the one of NOW is to be written.

        None: it is left out, too. NOW: seconds that only grow.
        """
        tokens, at, missing = self._seen.get(about, (_BURST, now, 0))
        tokens = min(_BURST, tokens + (now - at) / _REFILL)
        written = tokens >= 1
        self._seen[about] = (tokens - 1, now, 0) if written else (tokens, now, missing + 1)
        self._seen.move_to_end(about)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return missing if written else None
