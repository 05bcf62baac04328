# SPDX-License-Identifier: Apache-2.0
"""From one front to the next, on one node: the kubelet's connections themselves go over, and no stream ends.

The successor starts beside the one that serves, gets ready, and connects to a socket in the state directory. When
the older one is asked to end, its agent ends first; then connections, the state of HTTP/2 on them, unanswered calls
and lock files are sent over that socket. Where any of it fails the older one closes what it has, and the
successor begins from nothing, as after a crash.

Getting ready takes seconds on a busy machine. A successor announces itself when it begins with that, on a connection of
its own that it only holds open: an older one that is asked to end serves on meanwhile, for AWAIT_SECONDS at most. Where
nobody has announced itself, or who did is asked to end too, there is nothing to wait for.
"""

from __future__ import annotations

import array
import contextlib
import functools
import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.front.claims_endpoint import ClaimsEndpoint
from agent.front.front import Front
from agent.front.handover_state import MOST_DESCRIPTORS, adopt, export

__all__ = ["AWAIT_SECONDS", "HANDOVER", "Announcement", "Predecessor", "SuccessorListener"]

HANDOVER = "handover.sock"
"""Where a front hands over to the next, in the state directory."""
AWAIT_SECONDS = 20.0
"""With the seconds in which the agent ends, less than a pod's usual 30 seconds of grace."""
_GREETING = b"gigaslice front 2\n"  # another number where the form of what is handed over has changed
_OLDER_GREETING = (
    b"gigaslice front 1\n"  # of versions that serve no claims: descriptors of those would never be closed
)
_COMING = b"gigaslice comes 1\n"  # as long; an older version refuses it, and ends without waiting
_TAKEN = b"taken\n"
_LENGTH = struct.Struct("!I")
_MOST_BYTES = 256 << 20
_PATIENCE = 5.0
_AGAIN_SECONDS = 0.1
_MOST_SILENT = 16
_ANNOUNCE_AGAIN_SECONDS = 1.0
_CREDENTIALS = struct.Struct("=iII")


class SuccessorListener:
    """Waits for the successor of FRONT, and hands over to it what FRONT has."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._successor: socket.socket | None = None
        self._takes_claims = False  # the successor
        self._announced: socket.socket | None = None
        self._silent: list[socket.socket] = []  # connections that have not said yet what they are

    @property
    def ready(self) -> bool:
        """Whether a successor waits to go on."""
        return self._successor is not None

    @property
    def listening(self) -> bool:
        """Whether successors can come here."""
        return self._listener is not None

    def expected(self, seconds: float) -> bool:
        """Whether a successor is starting that this front still waits for, SECONDS after it was asked to end."""
        if self._announced is None or self._successor is not None:
            return False
        if seconds >= AWAIT_SECONDS:
            self._front.log.say("warning", "front", "successor not ready in time")
        return seconds < AWAIT_SECONDS

    def listen(self, path: str) -> None:
        """Listens for successors at PATH. The holder of the state directory may create it anew."""
        if self._listener is not None:
            return
        self._path = Path(path)
        listener: socket.socket | None = None
        try:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            listener.bind(path)
            self._path.chmod(0o600)
            listener.listen(8)
        except OSError as error:
            if listener is not None:
                listener.close()
            self._front.log.say(
                "warning", "front", "no hand-over possible", detail=f"{path}: {error.strerror}"
            )
            return
        listener.setblocking(False)
        self._listener = listener
        self._front.selector.register(listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Accepts no successor any more."""
        # First, for the end of a connection tells the next front that it may make a socket of its own at this path.
        if self._listener is not None and self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._listener.close()
        for connection in (self._successor, self._announced, *self._silent):
            if connection is not None:
                connection.close()

    def hand_over(self) -> bool:
        """Hands everything over. Returns False where that failed or there is no successor; then all is still here."""
        if self._successor is None:
            return False
        for endpoint in list(self._front.endpoints.values()):
            if isinstance(endpoint, ClaimsEndpoint) and not self._takes_claims:
                self._front.log.say("warning", "front", "successor serves no claims", offer=endpoint.name)
                self._front.drop(endpoint)
            else:
                endpoint.prepare_handover()
        if self._listener is not None:
            self._front.stop_listening(self._listener)  # its file is the next one's
            self._listener = None
        state, fds = export(self._front)
        raw = json.dumps(state).encode()
        try:
            self._successor.settimeout(_PATIENCE)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            self._successor.sendmsg([_LENGTH.pack(len(raw))], rights)
            self._successor.sendall(raw)
            taken = self._successor.recv(len(_TAKEN)) == _TAKEN
        except OSError as error:
            self._front.log.say("error", "front", "hand-over failed", detail=str(error))
            return False
        if taken:
            self._front.log.say("info", "front", "handed over", streams=state["streams"])
        return taken

    def _accept(self, _events: int) -> None:
        listener = self._listener
        if listener is None:
            return
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._front.rest(listener, self._accept)
            return
        connection.setblocking(False)
        self._silent.append(connection)
        self._front.selector.register(
            connection, selectors.EVENT_READ, functools.partial(self._greeted, connection)
        )
        if len(self._silent) > _MOST_SILENT:
            self._front.stop_listening(self._silent.pop(0))

    def _greeted(self, connection: socket.socket, _events: int) -> None:
        """A connection has said what it is, or has ended. On a busy machine that may be long after it was made."""
        self._silent.remove(connection)
        self._front.selector.unregister(connection)
        try:
            pid, uid, _ = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            greeting = connection.recv(len(_GREETING)) if uid == os.geteuid() else b""
        except OSError:
            greeting, pid = b"", 0
        if greeting == _COMING and self._announced is None:
            self._announced = connection
            self._front.selector.register(connection, selectors.EVENT_READ, self._gone)
            self._front.log.say("info", "front", "successor is starting", process=pid)
            return
        if greeting not in (_GREETING, _OLDER_GREETING) or self._successor is not None:
            connection.close()
            return
        self._successor, self._takes_claims = connection, greeting == _GREETING
        self._front.selector.register(connection, selectors.EVENT_READ, self._lost)
        self._front.log.say("info", "front", "successor is ready", process=pid)

    def _gone(self, _events: int) -> None:
        """The announcement's connection has ended: its process has, or it is ready by now."""
        if self._announced is not None:
            self._front.selector.unregister(self._announced)
            self._announced.close()
            self._announced = None

    def _lost(self, _events: int) -> None:
        """A successor sends nothing after its greeting, so a readable socket means that it has ended."""
        if self._successor is not None:
            self._front.selector.unregister(self._successor)
            self._successor.close()
            self._successor = None


class Announcement:
    """Tells the front that FRONT is to succeed, if there is one, that a successor is getting ready."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._path = ""
        self._sock: socket.socket | None = None
        self._again = 0.0

    def make(self, path: str) -> None:
        """Holds a connection to the front that listens at PATH from now on."""
        self._path = path
        self._again = 0.0
        self._front.wake()

    def withdraw(self) -> None:
        """There is no successor any more, or it is ready and has said so."""
        self._path = ""
        self._close()

    def poll(self, now: float) -> None:
        """Connects if need be."""
        if not self._path or self._sock is not None or now < self._again:
            return
        self._again = now + _ANNOUNCE_AGAIN_SECONDS
        dialled: socket.socket | None = None
        try:
            dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            dialled.settimeout(_PATIENCE)
            dialled.connect(self._path)
            dialled.sendall(_COMING)
        except OSError:
            if dialled is not None:
                dialled.close()
            return
        self._sock = dialled
        self._front.selector.register(dialled, selectors.EVENT_READ, self._refused)

    def _refused(self, _events: int) -> None:
        """The other side sends nothing, so it has ended, or is of a version without announcements."""
        self._close()

    def _close(self) -> None:
        if self._sock is not None:
            self._front.selector.unregister(self._sock)
            self._sock.close()
            self._sock = None


class Predecessor:
    """The front before FRONT. TAKEN is called with the path of its socket when everything has been handed over."""

    def __init__(self, front: Front, taken: Callable[[str], None]) -> None:
        self._front = front
        self._tell = taken
        self._path = ""
        self._sock: socket.socket | None = None
        self._greeting = _GREETING
        self._again = 0.0
        self._news = False
        self._taken = False

    def follow(self, path: str) -> None:
        """Waits for what the front that listens at PATH has to give, from now on."""
        self._path = path
        self._again = 0.0
        self._front.wake()

    def done(self) -> None:
        """The agent has what it waited for."""
        self._path = ""

    @property
    def connected(self) -> bool:
        """Whether a front is there that will hand over what it has."""
        return self._sock is not None

    def poll(self, now: float) -> bool:
        """Returns whether the predecessor seems to have ended; then it does so at every call until `done`.

        While the predecessor lives its agent may be away for a moment, and its locks must not be taken.
        """
        if self._path and self._sock is None and now >= self._again:
            self._again = now + _AGAIN_SECONDS
            if not self._taken:
                self._connect(_GREETING)
            self._news = self._news or self._sock is None
        news, self._news = self._news, False
        return news

    def _connect(self, greeting: bytes) -> None:
        self._greeting = greeting
        dialled: socket.socket | None = None
        try:
            dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            dialled.settimeout(_PATIENCE)
            dialled.connect(self._path)
            dialled.sendall(greeting)
        except OSError:
            if dialled is not None:
                dialled.close()  # an older version, or no front: the agent tries the lock by itself
            return
        self._sock = dialled
        self._front.selector.register(dialled, selectors.EVENT_READ, self._receive)

    def _receive(self, _events: int) -> None:
        assert self._sock is not None
        sock, self._sock = self._sock, None
        self._front.selector.unregister(sock)
        self._again = time.monotonic() + _AGAIN_SECONDS
        fds: list[int] = []
        try:
            with sock:
                state = _received(sock, fds)
                if state is None:
                    if self._greeting == _GREETING:  # an older version closes what greets it in another way
                        self._connect(_OLDER_GREETING)
                    self._news = self._news or self._sock is None
                    return
                adopt(self._front, state, fds)
                fds.clear()
                sock.sendall(_TAKEN)
            self._taken = True
            self._front.log.say("info", "front", "taken over", streams=state["streams"])
            if self._path:  # else our agent has not waited, and has named the socket itself
                self._tell(self._path)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            self._front.log.say("error", "front", "hand-over failed", detail=str(error))
        finally:
            for fd in fds:
                os.close(fd)
        self._news = True


def _received(sock: socket.socket, fds: list[int]) -> dict[str, Any] | None:
    """Returns what was handed over, and adds its descriptors to FDS. None: the predecessor ended before that."""
    sock.settimeout(_PATIENCE)
    room = socket.CMSG_LEN(MOST_DESCRIPTORS * array.array("i").itemsize)
    head, ancillary, _, _ = sock.recvmsg(_LENGTH.size, room)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            # Whole numbers: Linux passes none on in part where there is no room for all.
            fds.extend(array.array("i", data))
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MOST_BYTES:
        raise ValueError(f"{length} bytes handed over")
    raw = bytearray()
    while len(raw) < length:
        part = sock.recv(min(1 << 20, length - len(raw)))
        if not part:
            return None
        raw += part
    state: dict[str, Any] = json.loads(raw)
    return state
