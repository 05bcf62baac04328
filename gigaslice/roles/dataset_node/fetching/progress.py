# SPDX-License-Identifier: Apache-2.0
"""How far a fetch is: what the events of a pod, the waiting call and `gigaslice dataset ps` show."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Progress", "ProgressMeter"]

_WINDOW_SECONDS = 10.0
_SAMPLE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """One moment of a fetch."""

    bytes: int
    """That are there, with those of earlier attempts."""
    total_bytes: int
    fetched: int
    """Bytes that this attempt has read from the source."""
    rate: float
    """Bytes per second, over the last ten seconds."""

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return self.bytes / self.total_bytes if self.total_bytes else 1.0

    @property
    def eta(self) -> float | None:
        """Seconds that are left at this rate; none where nothing moves."""
        if self.bytes >= self.total_bytes:
            return 0.0
        return (self.total_bytes - self.bytes) / self.rate if self.rate > 0 else None


class ProgressMeter:
    """Counts; called from threads, read from anywhere.

    Args:
        total_bytes: Of all files.
        have_bytes: What is there already.
    """

    def __init__(
        self, total_bytes: int, have_bytes: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._total = total_bytes
        self._had = have_bytes
        self._bytes = self._read = 0
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)])

    def arrived(self, size: int) -> None:
        """Adds what is complete in the image."""
        with self._lock:
            self._bytes += size
            now = self._clock()
            if now - self._samples[-1][0] >= _SAMPLE_SECONDS:
                self._samples.append((now, self._bytes))
                while now - self._samples[0][0] > _WINDOW_SECONDS and len(self._samples) > 2:
                    self._samples.popleft()

    def read(self, size: int) -> None:
        """Adds bytes that came from the source, whether or not their unit gets complete."""
        with self._lock:
            self._read += size

    def now(self) -> Progress:
        """The present state."""
        with self._lock:
            now = self._clock()
            began, before = self._samples[0]
            span = now - began
            rate = (self._bytes - before) / span if span > 0 else 0.0
            return Progress(self._had + self._bytes, self._total, self._read, rate)
