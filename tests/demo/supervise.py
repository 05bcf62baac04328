# SPDX-License-Identifier: Apache-2.0
"""Runs the telling as a child and takes everything down when it is interrupted.

The telling is full of threads and of C code that calls back (gRPC): an exception raised there by a signal handler can
get lost or leave a lock held. So the signals come here, to one thread that only waits; it kills whatever the child
started and removes its directories.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gigaslice.runtime.terminal import terminal

PARENT = Path("/tmp")  # short: the paths of unix sockets may have 107 bytes
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def prefix() -> str:
    """How the names of this telling's directories begin."""
    return f"gs-demo-{os.getpid()}-"


def children() -> list[int]:
    """PIDs whose parent is this process; orphans of its children come to it, it being their reaper."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def end_everything() -> None:
    """Kills children until there are none: each death may bring orphans."""
    while pids := children():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def supervise(command: Sequence[str]) -> int:
    """Runs COMMAND in a session of its own; returns its exit code, or 128 + the signal that interrupted this one.

    SIGHUP counts as an interruption too. Whatever COMMAND left running at its end is killed.
    """
    awaited = {*SIGNALS, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    try:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        child = subprocess.Popen(command, start_new_session=True, preexec_fn=prepare)  # noqa: PLW1509 - one thread
        number = signal.sigwait(awaited)
        while number == signal.SIGCHLD and child.poll() is None:  # an orphan's end, or one that stopped
            number = signal.sigwait(awaited)
        end_everything()
        for directory in PARENT.glob(f"{prefix()}*"):
            shutil.rmtree(directory, ignore_errors=True)
        if number == signal.SIGCHLD:
            return child.returncode if child.returncode >= 0 else 128 - child.returncode
        line_taken_away = (
            "\r\x1b[K" if terminal(sys.stderr).live else ""
        )  # that the child drew, where it is no more
        print(f"{line_taken_away}\ninterrupted; everything was taken down", file=sys.stderr)
        return 128 + number
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
