# SPDX-License-Identifier: Apache-2.0
"""Lines on standard error in the agent's own form, without the libraries that make those."""

from __future__ import annotations

import contextlib
import json
import sys
import time

__all__ = ["Log"]

_LEVELS = ("debug", "info", "warning", "error")


class Log:
    """Writes nothing until its level and style are set: the agent, which reads the settings, sends them."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._json = True

    def set_up(self, level: str, style: str) -> None:
        """As `gigaslice.runtime.logs.set_up`."""
        self._least, self._json = _LEVELS.index(level), style == "json"

    def say(self, level: str, part: str, event: str, **fields: object) -> None:
        """One event, if LEVEL is worth a line."""
        if self._least is None or _LEVELS.index(level) < self._least:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"
        if self._json:
            line = json.dumps({"part": part, **fields, "event": event, "level": level, "timestamp": stamp})
        else:
            details = " ".join(f"{name}={value}" for name, value in {"part": part, **fields}.items())
            line = f"{stamp} [{level:8}] {event:30} {details}"
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")  # in one piece: the agent writes to the same place
            sys.stderr.flush()
