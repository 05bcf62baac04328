# SPDX-License-Identifier: Apache-2.0
"""From one front to the next, on one node: the kubelet's connections themselves go over, and no stream ends.

The successor starts beside the one that serves, gets ready, and connects to a socket in the state directory. When
the older one is asked to end, its agent ends first; then connections, the state of HTTP/2 on them, unanswered calls
and lock files are sent over that socket. The successor says that it has taken them before it reads or writes any of
them, and the older one confirms that. Until then all is the older one's: where the successor ends, or fails, it closes
its copies without a word, and the older one serves on (`agent.front.supervise`). Only where the older one has ended
without a confirmation does the successor keep what it has been given.

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

from agent.front.announcement import COMING
from agent.front.claims_endpoint import ClaimsEndpoint
from agent.front.front import Front
from agent.front.handover_state import MOST_DESCRIPTORS, adopt, export

__all__ = ["AWAIT_SECONDS", "HANDOVER", "Predecessor", "SuccessorListener"]

HANDOVER = "handover.sock"
"""Where a front hands over to the next, in the state directory."""
AWAIT_SECONDS = 20.0
"""With the seconds in which the agent ends, less than a pod's usual 30 seconds of grace."""
_GREETING = b"gigaslice front 3\n"  # another number where the form of what is handed over has changed
_UNCONFIRMED_GREETING = b"gigaslice front 2\n"  # of versions that go on without a confirmation
_OLDER_GREETING = (
    b"gigaslice front 1\n"  # of versions that serve no claims: descriptors of those would never be closed
)
_GREETINGS = (_GREETING, _UNCONFIRMED_GREETING, _OLDER_GREETING)
"""The newest first: a front closes what greets it in a way that it does not know."""
_TAKEN = b"taken\n"
_YOURS = b"yours\n"  # the answer to it; an older version ends without one
_LEAVING = b"leaves\n"  # of a successor that waits and is asked to end itself
_LENGTH = struct.Struct("!I")
_MOST_BYTES = 256 << 20
_PATIENCE = 5.0
_AGAIN_SECONDS = 0.1
_MOST_SILENT = 16
_FAILED_SECONDS = 1.0  # until the front before is asked again for what could not be taken
_CREDENTIALS = struct.Struct("=iII")


class SuccessorListener:
    """Waits for the successor of FRONT, and hands over to it what FRONT has."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._successor: socket.socket | None = None
        self._takes_claims = False  # the successor
        self._confirms = False  # the successor waits until it is told that everything is its own
        self._left = False  # the last successor, when it was asked to end
        self._announced: socket.socket | None = None
        self._silent: list[socket.socket] = []  # connections that have not said yet what they are

    @property
    def ready(self) -> bool:
        """Whether a successor waits to go on."""
        return self._successor is not None

    @property
    def left(self) -> bool:
        """Whether the last successor that was ready was asked to end itself: then nobody is going on."""
        return self._left

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
        successor = self._successor
        if successor is None:
            return False
        if not self._confirms:  # it makes sockets of its own at once, where nothing may listen by then
            self._let_go()
        state, fds = export(self._front, takes_claims=self._takes_claims)
        raw = json.dumps(state).encode()
        try:
            successor.settimeout(_PATIENCE)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            successor.sendmsg([_LENGTH.pack(len(raw))], rights)
            successor.sendall(raw)
            if successor.recv(len(_TAKEN)) != _TAKEN:
                raise ConnectionError("the successor has ended, or cannot take it")
        except OSError as error:
            self._front.log.say("error", "front", "hand-over failed", detail=str(error))
            self._forget_successor()
            if self._confirms:
                for endpoint in self._front.endpoints.values():
                    endpoint.resume()
            else:
                self._left = True  # what it was to have is open no more
            return False
        if self._confirms:
            self._let_go()
            with contextlib.suppress(OSError):
                successor.sendall(_YOURS)
        self._front.log.say("info", "front", "handed over", streams=state["streams"])
        return True

    def _let_go(self) -> None:
        """Ends what the successor has not been given, and listens no more: files of sockets are the next one's."""
        for endpoint in list(self._front.endpoints.values()):
            if isinstance(endpoint, ClaimsEndpoint) and not self._takes_claims:
                self._front.log.say("warning", "front", "successor serves no claims", offer=endpoint.name)
                self._front.drop(endpoint)
            else:
                endpoint.handed_over()
        if self._listener is not None:
            self._front.stop_listening(self._listener)
            self._listener = None

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
        if greeting == COMING and self._announced is None:
            self._announced = connection
            self._front.selector.register(connection, selectors.EVENT_READ, self._gone)
            self._front.log.say("info", "front", "successor is starting", process=pid)
            return
        if greeting not in _GREETINGS or self._successor is not None:
            connection.close()
            return
        self._successor, self._left = connection, False
        self._takes_claims, self._confirms = greeting != _OLDER_GREETING, greeting == _GREETING
        self._front.selector.register(connection, selectors.EVENT_READ, self._lost)
        self._front.log.say("info", "front", "successor is ready", process=pid)

    def _gone(self, _events: int) -> None:
        """The announcement's connection has ended: its process has, or it is ready by now."""
        if self._announced is not None:
            self._front.selector.unregister(self._announced)
            self._announced.close()
            self._announced = None

    def _lost(self, _events: int) -> None:
        """A successor that waits sends nothing but a goodbye, so a readable socket means that it has ended."""
        if self._successor is not None:
            with contextlib.suppress(OSError):
                self._left = self._successor.recv(len(_LEAVING)) == _LEAVING
            self._forget_successor()

    def _forget_successor(self) -> None:
        if self._successor is not None:
            self._front.selector.unregister(self._successor)
            self._successor.close()
            self._successor = None


class Predecessor:
    """The front before FRONT. TAKEN is called with the path of its socket when everything has been handed over."""

    def __init__(self, front: Front, taken: Callable[[str], None]) -> None:
        self._front = front
        self._tell = taken
        self._path = ""
        self._sock: socket.socket | None = None
        self._greeting = _GREETING
        self._dialled_path = ""
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

    def leave(self) -> None:
        """Says that this front is asked to end, and waits no longer."""
        self._path = ""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.sendall(_LEAVING)
            self._front.selector.unregister(self._sock)
            self._sock.close()
            self._sock = None

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
            self._dialled_path = self._path
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
        before = set(self._front.endpoints)
        try:
            with sock:
                state = _received(sock, fds)
                if state is None:
                    older = _GREETINGS[_GREETINGS.index(self._greeting) + 1 :]
                    if older:  # the front before may be of a version that does not know this greeting
                        self._connect(older[0])
                    self._news = self._news or self._sock is None
                    return
                adopt(self._front, state, fds)
                if not self._may_keep(sock):
                    raise ConnectionError("the front before serves on")
                fds.clear()
            self._taken = True
            self._front.log.say("info", "front", "taken over", streams=state["streams"])
            self._news = True
            if self._path:  # else our agent has not waited, and has named the socket itself
                self._tell(self._path)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            # The front before has all of it still, if it is there: it is asked again.
            self._front.log.say("error", "front", "hand-over failed", detail=str(error))
            self._again = time.monotonic() + _FAILED_SECONDS
            for key in self._front.endpoints.keys() - before:
                self._front.abandon(self._front.endpoints[key])
        finally:
            for fd in fds:
                with contextlib.suppress(OSError):  # those in sockets are closed with these
                    os.close(fd)

    def _may_keep(self, sock: socket.socket) -> bool:
        """Says that everything is taken; whether it is this front's from now on.

        The front before confirms it, unless it has given up waiting. One that has ended has no use for it any more.
        """
        with contextlib.suppress(OSError):
            sock.sendall(_TAKEN)
            if sock.recv(len(_YOURS)) == _YOURS:
                return True
        return not _listens(self._dialled_path)


def _listens(path: str) -> bool:
    """Whether a process listens at PATH."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dialled:
        dialled.settimeout(_PATIENCE)
        return dialled.connect_ex(path) == 0


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
