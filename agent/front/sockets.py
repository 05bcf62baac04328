# SPDX-License-Identifier: Apache-2.0
"""Unix sockets in the kubelet's directory: which process listens there, and how to put one's own in place.

gRPC takes a path and unlinks it when a server ends, whatever listens there by then. So each server listens under a
hidden name of its own and is renamed to the public one, which also makes it appear only when it answers. The kubelet's
socket is watched by polling: two stat calls ten times a second cost nothing that can be measured, and they see what
notification misses on some bind mounts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.errors import SocketError

__all__ = [
    "Identity",
    "check_free",
    "has_listener",
    "hidden_name",
    "identify",
    "is_mine",
    "remove_dead",
    "remove_if_same",
    "sweep",
]

_HIDDEN = ".gs-"
_CREDENTIALS = struct.Struct("=iII")  # PID, UID and GID of the listener


@dataclass(frozen=True, slots=True)
class Identity:
    """One particular socket file: a new one under the same name differs, even with the same inode number."""

    device: int
    inode: int
    changed_ns: int


def identify(path: Path) -> Identity | None:
    """The socket that is at PATH now; None when nothing or something else is there."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return (
        Identity(status.st_dev, status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None
    )


def check_free(path: Path, remedy: str = "stop that one or choose another --resource") -> None:
    """Raises SocketError when PATH holds something that is not a socket, or a socket on which a process answers, where
    REMEDY is what to do.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise SocketError(
            f"{path}: {error.strerror}; the agent must be able to make a socket there"
        ) from error
    if not stat.S_ISSOCK(mode):
        raise SocketError(f"{path} exists and is not a socket; move it away or choose another --kubelet-dir")
    if has_listener(path):
        raise SocketError(f"{path} is served by another program; {remedy}")


def hidden_name(directory: Path) -> Path:
    """An unused name in DIRECTORY, for a server to listen on before it is renamed."""
    return directory / f"{_HIDDEN}{os.urandom(3).hex()}"


def sweep(directory: Path) -> None:
    """Removes hidden sockets that a killed agent left: those on which no process answers."""
    for path in directory.glob(_HIDDEN + "*"):
        if identify(path) and not has_listener(path):
            path.unlink(missing_ok=True)


def is_mine(path: Path) -> bool:
    """Whether this very process listens on PATH, whatever has become of the file: a relabelled one has changed, too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
            peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return False
    return int(_CREDENTIALS.unpack(peer)[0]) == os.getpid()


def remove_dead(path: Path) -> None:
    """Removes the socket at PATH when no process answers there, as a killed agent leaves it."""
    if identify(path) and not has_listener(path):
        with contextlib.suppress(OSError):
            path.unlink()


def remove_if_same(path: Path, mine: Identity | None) -> None:
    """Removes the socket at PATH if it is still MINE."""
    if mine is not None and identify(path) == mine:
        path.unlink(missing_ok=True)


def has_listener(path: Path, besides: int = 0) -> bool:
    """Whether a process listens, other than BESIDES; what a killed agent left behind refuses.

    The kernel gives the PID of the process that called listen(), in this process's namespace, or 0 where it is outside.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
            pid, _, _ = _CREDENTIALS.unpack(
                probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
        except OSError:
            return False
    return besides == 0 or bool(pid != besides)
