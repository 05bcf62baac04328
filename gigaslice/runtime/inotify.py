# SPDX-License-Identifier: Apache-2.0
"""inotify(7), by which the kernel tells what changes in files and directories. Python has nothing for it.

Tests: tests/unit/gigaslice/runtime/test_inotify.py.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass

__all__ = [
    "ATTRIBUTES",
    "CREATED",
    "DELETED",
    "DIRECTORY",
    "MODIFIED",
    "ONLY_DIRECTORY",
    "OVERFLOW",
    "Event",
    "Inotify",
]

MODIFIED, ATTRIBUTES, CREATED, DELETED = 0x2, 0x4, 0x100, 0x200  # <sys/inotify.h>
ONLY_DIRECTORY = 0x1000000
"""Beside the others in a request: a path that is no directory is refused."""
OVERFLOW, DIRECTORY = 0x4000, 0x40000000
"""In an event only: events were lost, and it was of a directory."""
_EVENT = struct.Struct("iIII")
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Event:
    """One event. watch: -1 where events were lost. name: of the entry, in a directory that is watched."""

    watch: int
    mask: int
    name: bytes = b""


class Inotify:
    """One queue of events. Raises OSError where the kernel has no more of them for this user."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        """The descriptor, which is readable when events have come; -1 when closed."""
        return self._fd

    def add(self, path: str, mask: int) -> int:
        """Watches PATH for MASK; the watch's number, for the same file the same one. Raises OSError."""
        return self._checked(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask), path)

    def remove(self, watch: int) -> None:
        """Ends a watch, unless the kernel has done so already."""
        self._libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> list[Event]:
        """The events that have come and were not read yet."""
        try:
            data = os.read(self._fd, _MOST_BYTES)
        except BlockingIOError:
            return []
        events, at = [], 0
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            events.append(Event(watch, mask, data[at : at + length].rstrip(b"\0")))
            at += length
        return events

    def close(self) -> None:
        """Ends all watches."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _checked(self, answer: int, path: str | None = None) -> int:
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return answer
