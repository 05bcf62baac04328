# SPDX-License-Identifier: Apache-2.0
"""A front without a process of its own, for programs that are device plugins by themselves: it dies with them."""

from __future__ import annotations

import socket
import threading

from agent.front import channel
from agent.front.front import Front

__all__ = ["start"]


def start() -> tuple[socket.socket, threading.Thread]:
    """A front in a thread, which ends when the socket that leads to it is closed."""
    ours, theirs = channel.pair()
    front = Front()
    front.connect(ours)

    def work() -> None:
        try:
            while front.connected:
                front.step()
        finally:
            front.close()

    thread = threading.Thread(target=work, name="front", daemon=True)
    thread.start()
    return theirs, thread
