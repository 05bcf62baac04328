# SPDX-License-Identifier: Apache-2.0
"""How long ago something was, in the way of kubectl: "12 s", "5 min", "3 h", "4 days". Pure."""

from __future__ import annotations

from datetime import datetime, timezone

from gigaslice.core.text import plural

__all__ = ["age", "duration"]

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def age(since: str, now: float) -> str:
    """The time from SINCE, as the API server writes times, to NOW in Unix time; empty where SINCE is no time."""
    try:
        begun = datetime.strptime(since, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return ""
    return duration(now - begun)


def duration(seconds: float) -> str:
    """A length of time in its largest unit that leaves two or more, so that it is right to a half."""
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole} s"
    if whole < 2 * _HOUR:
        return f"{whole // _MINUTE} min"
    return f"{whole // _HOUR} h" if whole < 2 * _DAY else plural(whole // _DAY, "day")
