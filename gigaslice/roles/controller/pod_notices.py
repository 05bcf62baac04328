# SPDX-License-Identifier: Apache-2.0
"""When an event about a waiting pod, or about a node, is to be sent. Pure; the time is an argument.

A text is sent when it is new. In a busy cluster the reason why a pod waits can change with every pod that comes and
goes. So there is a pause after each event of an object: half a minute after the first, and more up to five minutes.
What changes during the pause is not sent; at its end the text is sent that is true then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Notices"]

_INTERVALS = (0.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds from an event to the next one, after so many events of one object."""


@dataclass(slots=True)
class _SentText:
    text: str
    at: float
    times: int


@dataclass(slots=True)
class Notices:
    """The last text that was sent about each object, by its UID."""

    _sent: dict[str, _SentText] = field(default_factory=dict)

    def seconds_until_due(self, uid: str, text: str, now: float) -> float:
        """Returns seconds until TEXT is to be sent about the object UID: 0 now, infinity when it was the last."""
        last = self._sent.get(uid)
        if last is None:
            return 0.0
        if last.text == text:
            return math.inf
        return max(0.0, last.at + _INTERVALS[min(last.times, len(_INTERVALS) - 1)] - now)

    def note_sent(self, uid: str, text: str, now: float) -> None:
        """Notes that TEXT has been sent."""
        last = self._sent.get(uid)
        self._sent[uid] = _SentText(text, now, 1 if last is None else last.times + 1)

    def forget(self, uid: str) -> None:
        """Forgets an object that is gone, or whose problem is over."""
        self._sent.pop(uid, None)

    def __len__(self) -> int:
        return len(self._sent)
