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
    files: int
    """Units that are there; a large file has several."""
    total_files: int
    fetched: int
    """Bytes that this attempt has read from the source."""
    rate: float
    """Bytes per second, over the last ten seconds."""
    retries: int = 0

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
        total_files: Units.
        have_bytes: What is there already.
        have_files: Likewise.
    """

    def __init__(
        self,
        total_bytes: int,
        total_files: int,
        have_bytes: int = 0,
        have_files: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._total = total_bytes, total_files
        self._had = have_bytes, have_files
        self._bytes = self._files = self._read = self._retries = 0
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)])

    def arrived(self, size: int, files: int) -> None:
        """Adds what is complete in the image."""
        with self._lock:
            self._bytes += size
            self._files += files
            now = self._clock()
            if now - self._samples[-1][0] >= _SAMPLE_SECONDS:
                self._samples.append((now, self._bytes))
                while now - self._samples[0][0] > _WINDOW_SECONDS and len(self._samples) > 2:
                    self._samples.popleft()

    def read(self, size: int) -> None:
        """Adds bytes that came from the source, whether or not their unit gets complete."""
        with self._lock:
            self._read += size

    def retried(self) -> None:
        """Counts a read that failed and is tried again."""
        with self._lock:
            self._retries += 1

    def now(self) -> Progress:
        """The present state."""
        with self._lock:
            now = self._clock()
            began, before = self._samples[0]
            span = now - began
            rate = (self._bytes - before) / span if span > 0 else 0.0
            return Progress(
                self._had[0] + self._bytes,
                self._total[0],
                self._had[1] + self._files,
                self._total[1],
                self._read,
                rate,
                self._retries,
            )
