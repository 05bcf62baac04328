# SPDX-License-Identifier: Apache-2.0
"""The driver session: several threads use it, and one of them may close and reopen it.

A driver that was reloaded, or swapped for another, answers an open NVML with errors for good; only shutting it down and
initialising it again helps, and no call may be under way meanwhile. So each
call to the driver is counted, and a thread that reopens it waits until no call is under way, for a bounded time: a call
that hangs in the driver never returns. Contains no NVML. Tests: tests/unit/gigaslice/runtime/test_session.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from gigaslice.core.errors import MissingError

__all__ = ["ReplacedDriver", "Session", "SessionBusyError"]

_PATIENCE = 5.0  # seconds; waiting for events takes half a second
_MISMATCHES = 3  # attempts in a row


class SessionBusyError(Exception):
    """A call of another thread has not returned; nothing was changed."""


class ReplacedDriver:
    """Tells when a process has to end because its library is that of a driver which was replaced.

    A library is loaded once. That it does not fit the driver may also be a moment of an upgrade, so it is believed at
    the third attempt in a row to open the driver.
    """

    def __init__(self) -> None:
        self._mismatches = 0

    def failed(self, error: Exception, *, mismatch: bool) -> None:
        """Opening has failed with ERROR. MISMATCH: library and driver are of two versions. Raises MissingError."""
        self._mismatches = self._mismatches + 1 if mismatch else 0
        if self._mismatches >= _MISMATCHES:
            raise MissingError(
                f"the NVIDIA driver was replaced, and this process has the library of the old one (NVML: {error}); "
                "ending, so that the container is made anew and gets the new one"
            ) from error

    def opened(self) -> None:
        """Opening has succeeded."""
        self._mismatches = 0


class Session:
    """OPENED opens the driver and CLOSED closes it; both may raise."""

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
        """Opens it unless it is open. Raises SessionBusyError, or what opening raises."""
        if not self._open:
            self.renew()

    def renew(self) -> None:
        """Closes it and opens it again. Raises SessionBusyError, or what opening raises: then it is closed."""
        with self._exclusively():
            self._close()
            self._opened()
            self._open = True

    def close(self) -> None:
        """Closes it for good. Raises SessionBusyError."""
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
                raise SessionBusyError
            self._alone = True
            free = self._changed.wait_for(lambda: self._users == 0, self._patience)
        try:
            if not free:
                raise SessionBusyError
            yield
        finally:
            with self._changed:
                self._alone = False
