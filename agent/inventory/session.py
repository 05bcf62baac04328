"""The driver as something that several threads use and one may close and open again.

A driver that was reloaded, or swapped for another, answers an open NVML with errors for good; only shutting it down and
initialising it again helps, and no call may be under way meanwhile. So whoever calls the driver says so, and who opens
it anew waits until nobody does, for a bounded time: a call that hangs in the driver never returns. Knows nothing of
NVML. Tests: tests/unit/agent/inventory/test_session.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = ["BusyError", "Session"]

_PATIENCE = 5.0  # seconds; waiting for events takes half a second


class BusyError(Exception):
    """Somebody's call has not come back; nothing was changed."""


class Session:
    """OPENED and CLOSED do what their names say, and may raise."""

    def __init__(
        self, opened: Callable[[], None], closed: Callable[[], None], patience: float = _PATIENCE
    ) -> None:
        self._opened = opened
        self._closed = closed
        self._patience = patience
        self._changed = threading.Condition()
        self._users = 0
        self._open = False
        self._alone = False

    @contextlib.contextmanager
    def use(self) -> Iterator[bool]:
        """Keeps the driver as it is meanwhile; False when it is not open, or is just being opened."""
        with self._changed:
            ready = self._open and not self._alone
            self._users += ready
        try:
            yield ready
        finally:
            with self._changed:
                self._users -= ready
                self._changed.notify_all()

    def open(self) -> None:
        """Opens it unless it is open. Raises BusyError, or what opening raises."""
        if not self._open:
            self.renew()

    def renew(self) -> None:
        """Closes it and opens it again. Raises BusyError, or what opening raises: then it is closed."""
        with self._exclusively():
            self._close()
            self._opened()
            self._open = True

    def close(self) -> None:
        """Closes it for good. Raises BusyError."""
        with self._exclusively():
            self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._closed()

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        with self._changed:
            if self._alone:
                raise BusyError
            self._alone = True
            free = self._changed.wait_for(lambda: self._users == 0, self._patience)
        try:
            if not free:
                raise BusyError
            yield
        finally:
            with self._changed:
                self._alone = False
