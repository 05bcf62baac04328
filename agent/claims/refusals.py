# SPDX-License-Identifier: Apache-2.0
"""The claims that were answered with an error and wait, and what has to be over before another try is worth it.

Most wait for memory, which their allocations tell. What stands in the way of the others is noted with the refusal, as a
question that can be asked again and again: whoever wakes their pods asks it (`agent.claims.waking`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from agent.claims.messages import ClaimName
from gigaslice.core.errors import GigasliceError

__all__ = ["Over", "Refusals", "after", "never", "succeeds"]

Over = Callable[[], Awaitable[bool]]
"""Whether what a claim was refused for is over."""


class Refusals:
    """What was refused.

    Attributes:
        waiting: The claims by UID, in the order of their arrival. Who finds that nobody waits for one takes it out.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, ClaimName] = {}
        self._over: dict[str, Over] = {}  # by UID; of those that are waiting, or are being prepared

    def begun(self, uid: str) -> None:
        """A claim is asked for again: it may be refused for something else, and keeps its place until then."""
        self._over.pop(uid, None)

    def because(self, uid: str, over: Over) -> None:
        """Notes what a claim is refused for, where its allocations do not tell."""
        self._over[uid] = over

    def explained(self, uid: str) -> bool:
        """Whether something was noted that a claim is refused for."""
        return uid in self._over

    def refused(self, name: ClaimName) -> None:
        """The claim was answered with an error."""
        self.waiting.setdefault(name.uid, name)
        self._over = {uid: over for uid, over in self._over.items() if uid in self.waiting}

    def done(self, uid: str) -> None:
        """The claim waits no more: it is prepared, or the kubelet has given it up."""
        self.waiting.pop(uid, None)
        self._over.pop(uid, None)

    async def over(self, uid: str) -> bool | None:
        """Returns whether what was noted for a claim is over; None where nothing was."""
        over = self._over.get(uid)
        return None if over is None else await over()


async def never() -> bool:
    """Time mends nothing."""
    return False


def after(seconds: float, check: Over | None = None) -> Over:
    """Returns what is over after so many seconds, and once a check says so, which is not asked before."""
    due = time.monotonic() + seconds

    async def over() -> bool:
        return time.monotonic() >= due and (check is None or await check())

    return over


def succeeds(trial: Callable[[], None]) -> Over:
    """Returns what is over when a trial raises no GigasliceError. It may block."""

    async def over() -> bool:
        try:
            await asyncio.to_thread(trial)
        except GigasliceError:
            return False
        return True

    return over
