# SPDX-License-Identifier: Apache-2.0
"""How a stand-in waits for its threads: one that does not end is told, with what it does."""

from __future__ import annotations

import sys
import threading
import traceback


def await_end(thread: threading.Thread, seconds: float = 60.0) -> None:
    """Returns when a thread has ended, or was never started. RuntimeError with what it does if it still runs then."""
    if thread.ident is None:
        return
    thread.join(seconds)
    frame = sys._current_frames().get(thread.ident) if thread.is_alive() else None
    if frame is not None:
        stack = "".join(traceback.format_stack(frame))
        raise RuntimeError(f"{thread.name} still runs after {seconds} s:\n{stack}")
