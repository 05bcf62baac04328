# SPDX-License-Identifier: Apache-2.0
"""What a stream of a command is: whether a person watches it, how wide it is, and whether colours are wanted.

The one place that decides it, for tables, progress and `--watch` of every command. $NO_COLOR takes colours away;
$FORCE_COLOR and $CLICOLOR_FORCE give them to pipes, too; $CLICOLOR=0 and TERM=dumb are a terminal without.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["STYLES", "Terminal", "painted", "terminal"]

STYLES = {"heading": "1", "good": "32", "doubtful": "33", "bad": "31"}
"""Name -> the number by which a terminal knows it (ECMA-48, SGR)."""
_DUMB = ("dumb", "unknown")
_WIDE = 200  # columns of what goes into a file or a pipe
_USUAL = 80  # columns of a terminal that does not tell


@dataclass(frozen=True, slots=True)
class Terminal:
    """live: whether lines can be drawn over, since a person watches. columns: characters of a line."""

    live: bool
    colour: bool
    columns: int


def terminal(stream: Any, environment: Mapping[str, str] | None = None) -> Terminal:
    """What STREAM is, a text stream or None where there is none. ENVIRONMENT: None for the process's own."""
    if environment is None:
        from gigaslice.runtime import settings  # noqa: PLC0415  (with YAML: not for who has one to pass)

        environment = settings.environment()
    try:
        is_terminal = bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        is_terminal = False
    live = is_terminal and environment.get("TERM", "") not in _DUMB
    columns = _columns(stream, environment.get("COLUMNS", "")) if is_terminal else _WIDE
    return Terminal(live, _colour(environment, live), columns)


def painted(text: str, style: str) -> str:
    """TEXT in one of STYLES, for a terminal that has colours; unchanged where STYLE is empty."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and text else text


def _columns(stream: Any, variable: str) -> int:
    """Of the window, and no more than $COLUMNS says; that may be older than the window's size."""
    said = int(variable) if variable.isascii() and variable.isdigit() else 0
    try:
        actual = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        actual = 0
    return min(filter(None, (said, actual)), default=_USUAL)


def _colour(environment: Mapping[str, str], live: bool) -> bool:
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return live and environment.get("CLICOLOR") != "0"
