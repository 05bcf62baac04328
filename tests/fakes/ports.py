# SPDX-License-Identifier: Apache-2.0
"""Ports of loopback for servers that are told theirs before they listen."""

from __future__ import annotations

import socket

__all__ = ["free_port"]


def free_port() -> int:
    """A port that only a program which is told its number gets, until this process ends.

    A socket that is bound to it stays open and does not listen. The kernel then gives the port to nobody who asks for
    any port, nor to an outgoing connection, and a server that sets SO_REUSEADDR, as all do, can listen on it. A
    connection to it is refused until one does.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port: int = kept.getsockname()[1]
    kept.detach()  # closed when this process ends
    return port
