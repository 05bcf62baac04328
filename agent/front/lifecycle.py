# SPDX-License-Identifier: Apache-2.0
"""When to make the own socket and when to register: the plugin's life beside the kubelet's, as one table of rules.

The kubelet never retries for a plugin, deletes its socket at every start, and keeps one client per resource by name: a
second registration while a stream is open ends with the newer stream closed and nothing allocatable. So: be serving
before registering, register when no stream is open and only then, at once for a kubelet that has not been told, and
again after a while when no stream has come.

The rules depend on what is true now and not on what has happened, so no order of events can leave them in a wrong
state. They touch no sockets and no clocks; `endpoint` finds the facts and carries out the
action.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum

__all__ = ["QUIET_SECONDS", "RULES", "Action", "Facts", "LifecycleRule", "decide"]

QUIET_SECONDS = 1.5
"""How long no stream may be open before registering again; the kubelet opens one within milliseconds."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0


class Action(Enum):
    """What to do now."""

    REST = "rest"
    SERVE = "make the own socket"
    REGISTER = "register"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true now.

    serving: the own socket is there and is ours. kubelet: identity of the kubelet's socket, None while there is none.
    registered_with: identity of the kubelet at the last attempt to register. registering: an attempt is under way.
    failures: attempts in a row that failed. streams: open ListAndWatch streams. idle: seconds since the last attempt or
    stream ended.
    """

    serving: bool = False
    kubelet: Hashable | None = None
    registered_with: Hashable | None = None
    registering: bool = False
    failures: int = 0
    streams: int = 0
    idle: float = 0.0

    @property
    def pause(self) -> float:
        """Seconds to leave between two attempts."""
        if not self.failures:
            return QUIET_SECONDS
        return float(min(_FIRST_PAUSE * 2 ** min(self.failures - 1, 10), _LONGEST_PAUSE))


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """One line of the table: what is the case, in words and as a test, and what to do then."""

    case: str
    test: Callable[[Facts], bool]
    action: Action


RULES: tuple[LifecycleRule, ...] = (
    LifecycleRule("own socket not there, or wiped", lambda now: not now.serving, Action.SERVE),
    LifecycleRule("stream open", lambda now: now.streams > 0, Action.REST),
    LifecycleRule("registering", lambda now: now.registering, Action.REST),
    LifecycleRule("kubelet gone", lambda now: now.kubelet is None, Action.REST),
    LifecycleRule(
        "a kubelet that has not been told", lambda now: now.registered_with != now.kubelet, Action.REGISTER
    ),
    LifecycleRule("stream may still come", lambda now: now.idle < now.pause, Action.REST),
    LifecycleRule("no stream came, or it was lost", lambda now: True, Action.REGISTER),
)
"""The first rule that holds decides."""


def decide(now: Facts) -> LifecycleRule:
    """The rule to follow now."""
    return next(rule for rule in RULES if rule.test(now))
