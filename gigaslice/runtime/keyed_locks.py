# SPDX-License-Identifier: Apache-2.0
"""Locks by name, for threads: work on one thing waits for other work on the same thing, and for nothing else.

A lock is there while a thread holds it or waits for it, so names that are never used again cost nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator

__all__ = ["KeyedLocks"]


class KeyedLocks:
    """A lock for each name that is in use. They are not reentrant."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.contextmanager
    def held(self, name: Hashable) -> Iterator[None]:
        """Holds the lock of NAME for the length of the block."""
        with self._mutex:
            lock, users = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._mutex:
                lock, users = self._locks.pop(name)
                if users > 1:
                    self._locks[name] = (lock, users - 1)
