# SPDX-License-Identifier: Apache-2.0
"""Remembers what was reported, so that a condition that lasts is reported once and not at every pass.

A part that runs every few seconds finds the same problem again and again. It reports a text when it is new, and forgets
the subject when the problem is over, so that the next problem of that subject is reported again. How often different
lines may be written is bounded elsewhere (`log_flood`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

__all__ = ["LogOnce"]


class LogOnce:
    """The last text that was reported of each subject."""

    def __init__(self) -> None:
        self._texts: dict[Hashable, str] = {}

    def new(self, subject: Hashable, text: str = "") -> bool:
        """Whether TEXT differs from the last one of SUBJECT; from now on it is the last one."""
        if self._texts.get(subject) == text:
            return False
        self._texts[subject] = text
        return True

    def over(self, subject: Hashable) -> bool:
        """Forgets SUBJECT, whose problem is over; whether there was one."""
        return self._texts.pop(subject, None) is not None

    def keep(self, relevant: Callable[[Hashable], bool]) -> None:
        """Forgets every subject that is not RELEVANT any more."""
        self._texts = {subject: text for subject, text in self._texts.items() if relevant(subject)}
