# SPDX-License-Identifier: Apache-2.0
"""A successor says that it is getting ready, long before it can take over (`agent.front.handover`).

It holds a connection open and sends nothing more: whatever becomes of it, the other side sees the end.
"""

from __future__ import annotations

import selectors
import socket

from agent.front.front import Front

__all__ = ["COMING", "Announcement"]

COMING = b"gigaslice comes 1\n"
"""As long as a greeting; a version without announcements refuses it, and ends without waiting."""
_PATIENCE = 5.0
_AGAIN_SECONDS = 1.0


class Announcement:
    """Tells the front that FRONT is to succeed, if there is one, that a successor is getting ready."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._path = ""
        self._sock: socket.socket | None = None
        self._again = 0.0

    def make(self, path: str) -> None:
        """Holds a connection to the front that listens at PATH from now on."""
        self._path = path
        self._again = 0.0
        self._front.wake()

    def withdraw(self) -> None:
        """There is no successor any more, or it is ready and has said so."""
        self._path = ""
        self._close()

    def poll(self, now: float) -> None:
        """Connects if need be."""
        if not self._path or self._sock is not None or now < self._again:
            return
        self._again = now + _AGAIN_SECONDS
        dialled: socket.socket | None = None
        try:
            dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            dialled.settimeout(_PATIENCE)
            dialled.connect(self._path)
            dialled.sendall(COMING)
        except OSError:
            if dialled is not None:
                dialled.close()
            return
        self._sock = dialled
        self._front.selector.register(dialled, selectors.EVENT_READ, self._refused)

    def _refused(self, _events: int) -> None:
        """The other side sends nothing, so it has ended, or is of a version without announcements."""
        self._close()

    def _close(self) -> None:
        if self._sock is not None:
            self._front.selector.unregister(self._sock)
            self._sock.close()
            self._sock = None
