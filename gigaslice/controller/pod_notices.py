"""When a waiting pod, or a node, is told something by an event. Pure; the time is an argument.

A text is said when it is new. In a busy cluster the reason why a pod waits can change with every pod that comes and
goes, so a pod hears of a change only some time after it heard the last: at once, then after half a minute, and so on to
five minutes. A text that it should hear and has not yet is the newest one when its time has come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Notices"]

_INTERVALS = (0.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds from an event to the next one, after so many events of one object."""


@dataclass(slots=True)
class _Told:
    text: str
    at: float
    times: int


@dataclass(slots=True)
class Notices:
    """What each object has been told, by its UID."""

    _told: dict[str, _Told] = field(default_factory=dict)

    def due(self, uid: str, text: str, now: float) -> float:
        """Returns seconds until TEXT is to be said to the object UID: 0 now, infinity when it has been said."""
        told = self._told.get(uid)
        if told is None:
            return 0.0
        if told.text == text:
            return math.inf
        return max(0.0, told.at + _INTERVALS[min(told.times, len(_INTERVALS) - 1)] - now)

    def said(self, uid: str, text: str, now: float) -> None:
        """Notes that TEXT has been said."""
        told = self._told.get(uid)
        self._told[uid] = _Told(text, now, 1 if told is None else told.times + 1)

    def forget(self, uid: str) -> None:
        """Forgets an object that is gone, or whose problem is over."""
        self._told.pop(uid, None)

    def __len__(self) -> int:
        return len(self._told)
