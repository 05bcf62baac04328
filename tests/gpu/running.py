# SPDX-License-Identifier: Apache-2.0
"""Programs of a case: each in a session of its own with its output in files, ended whole when its time is over.

Output goes to files since a grandchild that keeps a pipe open would hold up its reader. A program that hangs is
asked for its Python stacks (SIGABRT, faulthandler) before its group is killed. What even that does not end, because it
stands in the driver, is left behind and named.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SET_CHILD_SUBREAPER = 36
STACKS_S, DEATH_S = 1.0, 5.0


@dataclass(frozen=True)
class Done:
    """How a program ended. code: as subprocess has it, -9 for a signal; timed_out: it was ended here."""

    code: int
    out: str
    err: str
    timed_out: bool
    seconds: float

    def numbers(self) -> dict[str, object]:
        """All JSON objects among the printed lines, later ones over earlier ones."""
        merged: dict[str, object] = {}
        for line in self.out.splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    merged |= value
        return merged

    def last_words(self) -> str:
        """The last line that says something."""
        for text in (self.err, self.out):
            lines = [line for line in text.strip().splitlines() if not line.startswith("vcuda: limits of ")]
            if lines:
                return lines[-1][:300]
        return "no output"


class Program:
    """A program that runs; a context manager, so that nothing of it outlives its case."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], scratch: Path, talks: bool = False
    ) -> None:
        self.name = " ".join(Path(word).name for word in command[:3])
        stamp = f"{time.monotonic_ns()}"
        self._out, self._err = scratch / f"{stamp}.out", scratch / f"{stamp}.err"
        self._begun, self._heard = time.monotonic(), 0
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                list(command),
                env=dict(env) | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """PID of the program, and number of its process group."""
        return self.process.pid

    def printed(self) -> str:
        """What it has printed so far."""
        return self._out.read_text(errors="replace")

    def said(self) -> str:
        """What it has written to standard error so far."""
        return self._err.read_text(errors="replace")

    def wait_for(self, key: str, seconds: float) -> dict[str, object]:
        """Its numbers once KEY is among them, or when it ended or the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            got = Done(0, self.printed(), "", False, 0).numbers()
            if key in got or ended or time.monotonic() > deadline:
                return got
            time.sleep(0.01)

    def ask(self, line: str, seconds: float) -> str:
        """Writes LINE ("": nothing) and waits for the next line that is printed; "" when it ended or the time
        is over.
        """
        if line and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(line.encode() + b"\n")
                self.process.stdin.flush()
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            lines = self.printed().split("\n")[:-1]
            if len(lines) > self._heard:
                self._heard += 1
                return lines[self._heard - 1]
            if ended or time.monotonic() > deadline:
                return ""
            time.sleep(0.001)

    def kill(self) -> None:
        """SIGKILL to its whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Its group is gone, or named when it does not go."""
        self.kill()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            print(f"test-gpu: process {self.pid} ({self.name}) does not die; going on", flush=True)

    def finish(self, seconds: float) -> Done:
        """Waits that long, then ends it."""
        timed_out = False
        try:
            self.process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            timed_out = True
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STACKS_S)
        self.end()
        code = self.process.returncode if self.process.returncode is not None else -int(signal.SIGKILL)
        return Done(code, self.printed(), self.said(), timed_out, time.monotonic() - self._begun)


def adopt_orphans() -> None:
    """From now on what a program's children leave behind becomes a child of this process, and can be found."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """PIDs of this process's children, by /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


def end_orphans() -> int:
    """Kills what a case left behind; how many."""
    left = children()
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 1
    for pid in left:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                time.sleep(0.01)
    return len(left)
