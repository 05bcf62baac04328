"""A line with a bar that is redrawn while a person watches, for commands that take long."""

from __future__ import annotations

import shutil
import sys
import time

from gigaslice.core.text import plain

__all__ = ["Bar"]

_REDRAWN_SECONDS = 0.2
_WIDTH = 30
_REST = _WIDTH + 10


class Bar:
    """A line on standard error where that is a terminal, and nothing otherwise. Use it as a context manager."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.shown = not quiet and sys.stderr.isatty()
        self._last = time.monotonic()

    def __enter__(self) -> Bar:
        return self

    def draw(self, share: float, text: str, *, last: bool = False) -> None:
        """Redraws the line, a few times a second at most; LAST: in any case."""
        now = time.monotonic()
        if not self.shown or (now - self._last < _REDRAWN_SECONDS and not last):
            return
        self._last = now
        filled = "#" * int(min(1.0, max(0.0, share)) * _WIDTH)
        room = max(0, shutil.get_terminal_size().columns - _REST)  # a line that wraps cannot be drawn over
        line = f"[{filled:<{_WIDTH}}] {share:4.0%} {plain(text)[:room]}"
        _redraw(line)

    def clear(self) -> None:
        """Takes the line away, so that another can be printed."""
        if self.shown:
            _redraw("")

    def __exit__(self, *_: object) -> None:
        self.clear()


def _redraw(line: str) -> None:
    sys.stderr.write(f"\r{line}\x1b[K")
    sys.stderr.flush()
