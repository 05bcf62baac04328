# SPDX-License-Identifier: Apache-2.0
"""The process that starts the agent, outlives it, and starts it again; at its own end it hands over to a successor.

A successor that dies before it has taken everything changes nothing: the agent is started again, has the calls that
were held, and serves until the next successor is ready, or the time that a pod has to end is almost over.

The agent is a forked child: nothing is loaded twice, and it dies with this process. An agent that ends by itself before
it has served anything was started wrongly, and its code is ours. One that has served is started again; the kubelet
does not notice. Asked to end, the agent ends first: what it was doing is done or can be done again.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

from agent.front import channel
from agent.front.announcement import Announcement
from agent.front.channel import Kind
from agent.front.front import Front
from agent.front.handover import AWAIT_SECONDS, Predecessor, SuccessorListener
from agent.persistence import lock

__all__ = ["RESTART", "announce", "inherited", "run"]

RESTART = 4
"""Exit code of an agent that is to be started again: it found what only a new start can take in."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 1.0  # between two starts; the first is at once, for the kubelet waits
_WELL_SECONDS = 30.0  # an agent that lived so long begins with no pause again
_MOST_FAILURES = 4  # ends by itself in a row, each before it has served
_END_SECONDS, _HURRY_SECONDS = 20.0, 5.0  # for the agent to end; the latter when a successor waits
_PING_SECONDS, _DEAF_SECONDS = 5.0, 60.0
_NEW_CONTAINER = 3  # the machine has what this container lacks: only another one can be made with it
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

_inherited: list[socket.socket] = []


def inherited() -> socket.socket | None:
    """The socket to the front that has forked this process, once; None where no front has."""
    return _inherited.pop() if _inherited else None


def announce(path: str) -> None:
    """Tells the front that has forked this process, if one has, that a front at PATH is to be succeeded, before
    everything is loaded that `agent.link` needs.
    """
    for sock in _inherited:
        with contextlib.suppress(OSError):
            sock.sendall(channel.frame(Kind.COMING, 0, os.fsencode(path)))


def run(agent: Callable[[], int]) -> int:
    """Runs AGENT in a process of its own until this one is asked to end; its exit code."""
    return _Supervisor(agent).run()


class _Supervisor:
    def __init__(self, agent: Callable[[], int]) -> None:
        self._agent = agent
        self._kept = _descriptors()
        self._front = Front(hook=self._told)
        self._successor = SuccessorListener(self._front)
        # At once: a successor that finds no front takes the state from under an agent that is not ready yet.
        self._predecessor = Predecessor(self._front, self._successor.listen)
        self._announcement = Announcement(self._front)
        self._pid = 0
        self._begun = 0.0
        self._failures = 0
        self._quick = 0  # ends in a row, each soon after its start
        self._again: float | None = None  # when the agent is started again
        self._asked: float | None = None  # when, to end
        self._stopping: float | None = None  # since when
        self._for_successor = False  # the agent was asked to end because one waits
        self._taken_back = False  # from a successor that did not live to take it, or could not
        self._code: int | None = None
        self._pinged = 0.0
        self._wake, self._bell = socket.socketpair()

    def run(self) -> int:
        for end in (self._wake, self._bell):
            end.setblocking(False)
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked_to_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._start()
        self._front.selector.register(self._wake, selectors.EVENT_READ, self._rung)
        while True:
            while self._code is None:
                self._front.step()
                self._poll()
            if self._successor.hand_over():
                return self._code  # what is open belongs to the successor now: no goodbye to the peers
            if not self._may_serve_on():
                break
            self._serve_on()
        self._front.close()
        self._successor.close()
        return self._code

    def _may_serve_on(self) -> bool:
        """Whether an agent is worth another start: somebody was to take over, and may yet."""
        if self._asked is None or not self._for_successor or self._successor.left:
            return False
        return time.monotonic() - self._asked < AWAIT_SECONDS

    def _serve_on(self) -> None:
        self._front.log.say("warning", "front", "successor lost; serving on")
        self._code, self._stopping, self._for_successor, self._taken_back = None, None, False, True
        self._front.holding = False
        self._start()

    # --- the agent -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._begun, self._again = time.monotonic(), None
        pair: tuple[socket.socket, ...] = ()
        parent = os.getpid()
        try:
            ours, theirs = pair = channel.pair()
            self._pid = os.fork()
        except OSError as error:  # no descriptors, processes or memory for the moment
            for end in pair:
                end.close()
            self._again = self._begun + _LONGEST_PAUSE
            self._front.log.say("error", "front", "agent not started", detail=error.strerror)
            return
        if self._pid == 0:
            self._become_agent(theirs, parent)
        theirs.close()
        self._front.connect(ours)

    def _become_agent(self, way: socket.socket, parent: int) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for fd in _descriptors() - self._kept - {way.fileno()}:
                with contextlib.suppress(OSError):
                    os.close(fd)
            _die_with(parent)
            _inherited.append(way)
            lock.process = parent
            code = self._agent()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # noqa: BLE001  (nothing of the front's own stack may run in this process)
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)

    def _told(self, kind: int, payload: bytes) -> None:
        if kind == Kind.COMING and not self._successor.listening:
            self._announcement.make(os.fsdecode(payload))
        elif kind == Kind.ACTIVE:
            self._announcement.withdraw()
            self._predecessor.done()
            self._successor.listen(os.fsdecode(payload))
        elif kind == Kind.STANDBY:
            self._predecessor.follow(os.fsdecode(payload))

    def _poll(self) -> None:
        now = time.monotonic()
        if self._asked is not None or self._predecessor.connected:
            self._announcement.withdraw()
        self._announcement.poll(now)
        if self._asked is not None:
            self._predecessor.leave()
            if self._stopping is None and self._may_stop(now - self._asked):
                self._stop(now)
        if self._pid:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid = 0
                self._ended(os.waitstatus_to_exitcode(status), now)
            elif self._stopping is not None:
                hurry = self._successor.ready or self._taken_back
                patience = _HURRY_SECONDS if hurry else _END_SECONDS
                if now - self._stopping > patience:
                    os.kill(self._pid, signal.SIGKILL)
            elif self._front.served:
                self._listen_for_life(now)
        elif self._again is not None and now >= self._again:
            self._start()
        if self._predecessor.poll(now):
            self._front.say(Kind.GO)

    def _listen_for_life(self, now: float) -> None:
        if now - self._pinged > _PING_SECONDS:
            self._pinged = now
            self._front.say(Kind.PING)
        if now - max(self._front.heard_at, self._begun) > _DEAF_SECONDS:
            self._front.log.say("error", "front", "agent not responding; killed", process=self._pid)
            os.kill(self._pid, signal.SIGKILL)

    def _ended(self, code: int, now: float) -> None:
        self._front.drain()
        self._front.disconnect()
        if self._stopping is not None or code in (0, _NEW_CONTAINER):
            self._code = max(code, 0)
            return
        if self._front.served or code < 0:
            self._failures = 0
        self._failures += 1
        alone = not self._front.endpoints and not (code < 0 and self._predecessor.connected)
        if alone or (code > 0 and self._failures >= _MOST_FAILURES):
            self._code = code if code > 0 else 128 - code
            return
        self._quick = 0 if now - self._begun > _WELL_SECONDS else self._quick + 1
        pause = min(_FIRST_PAUSE * 2 ** min(self._quick - 2, 10), _LONGEST_PAUSE) if self._quick > 1 else 0.0
        self._again = now + pause
        level = "info" if code == RESTART else "error"
        self._front.log.say(level, "front", "agent ended; restarted", code=code, pause_seconds=pause)

    # --- signals ---------------------------------------------------------------------------------------------

    def _asked_to_end(self, _number: int, _frame: object) -> None:
        if self._asked is None:
            self._asked = time.monotonic()

    def _may_stop(self, seconds: float) -> bool:
        """Whether the agent is to end, SECONDS after this process was asked to."""
        if self._taken_back and seconds < AWAIT_SECONDS:
            return self._successor.ready and self._front.served
        return not self._successor.expected(seconds)

    def _stop(self, now: float) -> None:
        self._stopping = now
        self._for_successor = self._successor.ready
        self._front.holding = self._successor.ready  # else the agent sees to what the kubelet has begun
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
        else:
            self._code = 0

    def _rung(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)


def _descriptors() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208  (numbers, no paths)
    except OSError:
        return set(range(3, 1024))


def _die_with(parent: int) -> None:
    """Has the kernel end this process when PARENT ends, however that happens."""
    import ctypes  # noqa: PLC0415  (the front has no use for it)

    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
