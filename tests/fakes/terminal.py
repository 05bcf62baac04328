# SPDX-License-Identifier: Apache-2.0
"""A program in a terminal of its own, what it has shown there, and the keys that are typed."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

__all__ = ["Terminal"]


class Terminal:
    """Starts WORDS; what is still running at the end of the block is killed.

    setsid (util-linux) makes the terminal the program's own. pty.fork() would do it, too, but Python warns of a
    fork beside threads, which the runner of the tests has.

    Attributes:
        process: The program.
        text: All that it has shown.
    """

    def __init__(
        self, words: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self._screen, theirs = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=cwd
        )
        os.close(theirs)
        self._shown = b""
        self._seen = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._screen)

    @property
    def text(self) -> str:
        return self._shown.decode(errors="replace")

    def read_until(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        """Waits until PATTERN matches what was shown after its last match; the test fails after SECONDS."""
        end = time.monotonic() + seconds
        while (match := re.compile(pattern).search(self.text, self._seen)) is None:
            if not self._read(end):
                pytest.fail(f"the program has ended without {pattern}: {self.text}")
        self._seen = match.end()
        return match

    def type(self, keys: str) -> None:
        """Types KEYS; "\\x03" is Ctrl-C."""
        os.write(self._screen, keys.encode())

    def wait(self, seconds: float = 60.0) -> int:
        """Reads until the program ends; its exit code, negative for a signal. The test fails after SECONDS."""
        end = time.monotonic() + seconds
        while self._read(end):
            pass
        return self.process.wait(max(0.1, end - time.monotonic()))

    def _read(self, end: float) -> bool:
        """Reads once; whether anybody still has the terminal open."""
        if not select.select([self._screen], [], [], max(0.0, end - time.monotonic()))[0]:
            pytest.fail(f"the program shows nothing more: {self.text}")
        try:
            more = os.read(self._screen, 65536)
        except OSError:  # EIO, as Linux says it
            return False
        self._shown += more
        return bool(more)
