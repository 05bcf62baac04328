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
import binascii
import contextlib
import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.front.endpoint import Endpoint
from agent.front.front import Call, Front
from agent.front.http2 import Connection
from agent.front.offer import Offer
from agent.front.peer import Peer

__all__ = ["AWAIT_SECONDS", "HANDOVER", "Announcement", "Heir", "Predecessor"]

HANDOVER = "handover.sock"
"""Where a front hands over to the next, in the state directory."""
AWAIT_SECONDS = 20.0
"""With the seconds in which the agent ends, less than a pod's usual 30 seconds of grace."""
_GREETING = b"gigaslice front 1\n"  # another number where the form of what is handed over has changed
_COMING = b"gigaslice comes 1\n"  # as long; an older version refuses it, and ends without waiting
_TAKEN = b"taken\n"
_LENGTH = struct.Struct("!I")
_MOST_BYTES = 256 << 20
_MOST_DESCRIPTORS = 200  # of the 253 that the kernel passes at once
_PATIENCE = 5.0
_AGAIN_SECONDS = 0.1
_GREETING_SECONDS = 0.5
_ANNOUNCE_AGAIN_SECONDS = 1.0
_CREDENTIALS = struct.Struct("=iII")


class Heir:
    """The successor of FRONT, when there is one."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._heir: socket.socket | None = None
        self._coming: socket.socket | None = None

    @property
    def there(self) -> bool:
        """Whether a successor waits to go on."""
        return self._heir is not None

    @property
    def listening(self) -> bool:
        """Whether successors can come here."""
        return self._listener is not None

    def awaited(self, seconds: float) -> bool:
        """Whether to serve on, SECONDS after this front was asked to end: a successor is getting ready."""
        if self._coming is None or self._heir is not None:
            return False
        if seconds >= AWAIT_SECONDS:
            self._front.log.say("warning", "front", "successor not ready in time")
        return seconds < AWAIT_SECONDS

    def listen(self, path: str) -> None:
        """Has successors come to PATH, which the holder of the state directory may make anew."""
        if self._listener is not None:
            return
        self._path = Path(path)
        made: socket.socket | None = None
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            made.bind(path)
            self._path.chmod(0o600)
            made.listen(8)
        except OSError as error:
            if made is not None:
                made.close()
            self._front.log.say(
                "warning", "front", "no hand-over possible", detail=f"{path}: {error.strerror}"
            )
            return
        made.setblocking(False)
        self._listener = made
        self._front.selector.register(made, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Accepts no successor any more."""
        for successor in (self._heir, self._coming):
            if successor is not None:
                successor.close()
        if self._listener is not None and self._path is not None:
            self._listener.close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def give(self) -> bool:
        """Hands everything over; False when there is no successor, or it failed: then everything is still here."""
        if self._heir is None:
            return False
        for endpoint in self._front.endpoints.values():
            endpoint.stop_listening()
        if self._listener is not None:
            self._front.stop_listening(self._listener)  # its file is the next one's
            self._listener = None
        known, fds = _export(self._front)
        raw = json.dumps(known).encode()
        try:
            self._heir.settimeout(_PATIENCE)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            self._heir.sendmsg([_LENGTH.pack(len(raw))], rights)
            self._heir.sendall(raw)
            taken = self._heir.recv(len(_TAKEN)) == _TAKEN
        except OSError as error:
            self._front.log.say("error", "front", "hand-over failed", detail=str(error))
            return False
        if taken:
            self._front.log.say("info", "front", "handed over", streams=known["streams"])
        return taken

    def _accept(self, _events: int) -> None:
        listener = self._listener
        if listener is None:
            return
        try:
            came, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._front.rest(listener, self._accept)
            return
        came.settimeout(_GREETING_SECONDS)
        try:
            pid, uid, _ = _CREDENTIALS.unpack(
                came.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            greeting = came.recv(len(_GREETING)) if uid == os.geteuid() else b""
        except OSError:
            greeting, pid = b"", 0
        if greeting == _COMING and self._coming is None:
            self._coming = came
            came.setblocking(False)
            self._front.selector.register(came, selectors.EVENT_READ, self._gone)
            self._front.log.say("info", "front", "successor is starting", process=pid)
            return
        if greeting != _GREETING or self._heir is not None:
            came.close()
            return
        self._heir = came
        came.setblocking(False)
        self._front.selector.register(came, selectors.EVENT_READ, self._lost)
        self._front.log.say("info", "front", "successor is ready", process=pid)

    def _gone(self, _events: int) -> None:
        """It has ended, or is ready by now."""
        if self._coming is not None:
            self._front.selector.unregister(self._coming)
            self._coming.close()
            self._coming = None

    def _lost(self, _events: int) -> None:
        """It said all it has to say: whatever can be read is its end."""
        if self._heir is not None:
            self._front.selector.unregister(self._heir)
            self._heir.close()
            self._heir = None


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
        """It says nothing: it has ended, or knows of no announcements."""
        self._close()

    def _close(self) -> None:
        if self._sock is not None:
            self._front.selector.unregister(self._sock)
            self._sock.close()
            self._sock = None


class Predecessor:
    """The front that FRONT succeeds. TAKEN is called with the path of its socket once all it had is ours."""

    def __init__(self, front: Front, taken: Callable[[str], None]) -> None:
        self._front = front
        self._tell = taken
        self._path = ""
        self._sock: socket.socket | None = None
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
    def there(self) -> bool:
        """Whether a front is there that will hand over what it has."""
        return self._sock is not None

    def poll(self, now: float) -> bool:
        """Whether there seems to be none any more; true at every call until `done`. While there is one its agent may
        be away for a moment, and what it has locked must not be taken.
        """
        if self._path and self._sock is None and now >= self._again:
            self._again = now + _AGAIN_SECONDS
            if not self._taken:
                self._connect()
            self._news = self._news or self._sock is None
        news, self._news = self._news, False
        return news

    def _connect(self) -> None:
        dialled: socket.socket | None = None
        try:
            dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            dialled.settimeout(_PATIENCE)
            dialled.connect(self._path)
            dialled.sendall(_GREETING)
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
                known = _received(sock, fds)
                if known is None:
                    self._news = True
                    return
                _adopt(self._front, known, fds)
                fds.clear()
                sock.sendall(_TAKEN)
            self._taken = True
            self._front.log.say("info", "front", "taken over", streams=known["streams"])
            if self._path:  # else our agent has not waited, and has named the socket itself
                self._tell(self._path)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            self._front.log.say("error", "front", "hand-over failed", detail=str(error))
        finally:
            for fd in fds:
                os.close(fd)
        self._news = True


def _received(sock: socket.socket, fds: list[int]) -> dict[str, Any] | None:
    """What was handed over, its descriptors added to FDS; None when the predecessor ended without a word."""
    sock.settimeout(_PATIENCE)
    room = socket.CMSG_LEN(_MOST_DESCRIPTORS * array.array("i").itemsize)
    head, ancillary, _, _ = sock.recvmsg(_LENGTH.size, room)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found = array.array("i")
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
            fds.extend(found)
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
    known: dict[str, Any] = json.loads(raw)
    return known


def _export(front: Front) -> tuple[dict[str, Any], list[int]]:
    fds: list[int] = []
    endpoints = []
    for endpoint in front.endpoints.values():
        lock = endpoint.lock.descriptor
        each: dict[str, Any] = {
            "offer": endpoint.offer.dump(),
            "devices": _text(endpoint.devices) if endpoint.devices is not None else None,
            "lock": None,
            "peers": [],
        }
        if lock is not None:
            each["lock"] = len(fds)
            fds.append(lock)
        for peer in endpoint.peers:
            watching = [stream for one, stream in endpoint.watchers if one is peer]
            calls = [_call(call) for call in front.calls.values() if call.peer is peer]
            if (watching or calls) and len(fds) < _MOST_DESCRIPTORS:
                known = {"fd": len(fds), "connection": peer.connection.export()}
                behind = endpoint.behind(peer)
                each["peers"].append({**known, "watching": watching, "behind": behind, "calls": calls})
                fds.append(peer.sock.fileno())
            else:
                peer.close()
        endpoints.append(each)
    streams = sum(len(endpoint.watchers) for endpoint in front.endpoints.values())
    return {"streams": streams, "endpoints": endpoints}, fds


def _call(call: Call) -> dict[str, Any]:
    now = time.monotonic()
    left = None if call.until is None else call.until - now
    return {
        "stream": call.stream,
        "method": call.method,
        "message": _text(call.message),
        "age": now - call.since,
        "left": left,
        "again": call.again,
    }


def _call_of(endpoint: Endpoint, peer: Peer, known: dict[str, Any]) -> Call:
    now = time.monotonic()
    until = None if known["left"] is None else now + known["left"]
    message = binascii.a2b_base64(known["message"])
    since, again = now - known["age"], known["again"]
    return Call(endpoint, peer, known["stream"], known["method"], message, since, until, again)


def _adopt(front: Front, known: dict[str, Any], fds: list[int]) -> None:
    for each in known["endpoints"]:
        offer = Offer.load(each["offer"])
        endpoint = front.endpoints[offer.key] = Endpoint(front, offer)
        endpoint.devices = binascii.a2b_base64(each["devices"]) if each["devices"] is not None else None
        if each["lock"] is not None:
            endpoint.adopt_lock(fds[each["lock"]])
        for one in each["peers"]:
            sock = socket.socket(fileno=fds[one["fd"]])
            connection = Connection.restored(one["connection"])
            slow = [
                stream for stream in one["watching"] if connection.waiting(stream)
            ]  # an older one does not say
            peer = endpoint.adopt(sock, connection, one["watching"], one.get("behind", slow))
            for call in one["calls"]:
                front.put(_call_of(endpoint, peer, call))


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()
