# SPDX-License-Identifier: Apache-2.0
"""A successor that is getting ready: how the one before learns of it, and for how long it waits."""

import contextlib
import socket
import tempfile
import time
from pathlib import Path

import pytest

from agent.front.announcement import Announcement
from agent.front.front import Front
from agent.front.handover import AWAIT_SECONDS, Predecessor, SuccessorListener

GIVE_UP = 30.0
GREETING = b"gigaslice front 3\n"


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        yield str(Path(name) / "handover.sock")


class Pair:
    """The front that serves, and the one that is to succeed it."""

    def __init__(self, path):
        self.path, self.older, self.newer = path, Front(), Front()
        self.successor = SuccessorListener(self.older)
        self.successor.listen(path)
        self.announcement = Announcement(self.newer)
        self.predecessor = Predecessor(self.newer, lambda path: None)

    def until(self, condition):
        deadline = time.monotonic() + GIVE_UP
        while not condition():
            assert time.monotonic() < deadline
            self.step()

    def step(self):
        self.older.step(0.01)
        self.newer.step(0.01)
        self.announcement.poll(time.monotonic())
        self.predecessor.poll(time.monotonic())

    def close(self):
        self.announcement.withdraw()
        self.successor.close()
        while self.predecessor.connected:
            self.newer.step(0.01)
        self.older.close()
        self.newer.close()


@pytest.fixture
def pair(path):
    made = Pair(path)
    yield made
    made.close()


def test_who_has_announced_itself_is_waited_for_and_not_for_ever(pair):
    assert not pair.successor.expected(0.0)
    pair.announcement.make(pair.path)
    pair.until(lambda: pair.successor.expected(0.0))
    assert pair.successor.expected(AWAIT_SECONDS - 0.1)
    assert not pair.successor.expected(AWAIT_SECONDS)
    assert not pair.successor.ready, "it cannot take over yet"


def test_it_is_waited_for_until_it_has_ended(pair):
    pair.announcement.make(pair.path)
    pair.until(lambda: pair.successor.expected(0.0))
    pair.announcement.withdraw()
    pair.until(lambda: not pair.successor.expected(0.0))


def test_it_is_waited_for_until_it_is_ready(pair):
    pair.announcement.make(pair.path)
    pair.until(lambda: pair.successor.expected(0.0))
    pair.predecessor.follow(pair.path)
    pair.until(lambda: pair.successor.ready)
    assert not pair.successor.expected(0.0)
    pair.announcement.withdraw()
    for _ in range(5):
        pair.step()
    assert pair.successor.ready, "the end of its announcement is not its own"


@pytest.fixture
def dialled(pair):
    """A connection to the front that serves, which has accepted it and has not been told what it is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(GIVE_UP)
        sock.connect(pair.path)
        for _ in range(5):
            pair.step()
        yield sock


def test_a_successor_that_comes_to_its_greeting_late_is_one_all_the_same(pair, dialled):
    """On a busy machine a process may rest between any two of its steps."""
    assert not pair.successor.ready
    dialled.sendall(GREETING)
    pair.until(lambda: pair.successor.ready)
    dialled.setblocking(False)
    with pytest.raises(BlockingIOError):
        dialled.recv(1)


def test_connections_that_say_nothing_are_closed_the_oldest_first(pair, dialled):
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(16)]
        for other in others:
            other.connect(pair.path)
            for _ in range(3):
                pair.step()
        assert dialled.recv(1) == b""
        others[0].sendall(GREETING)
        pair.until(lambda: pair.successor.ready)
    for _ in range(5):
        pair.step()
    assert not pair.successor.ready, "it has gone"


def test_the_next_ones_socket_is_not_removed(pair, dialled, monkeypatch):
    """The end of its connection is when a successor makes the socket anew."""
    dialled.sendall(GREETING)
    pair.until(lambda: pair.successor.ready)
    dialled.setblocking(False)
    unlink, ended = Path.unlink, []

    def noted(path, **more):
        try:
            ended.append(dialled.recv(1))
        except BlockingIOError:
            unlink(path, **more)

    monkeypatch.setattr(Path, "unlink", noted)
    pair.successor.close()
    assert ended == [] and not Path(pair.path).exists()
    assert dialled.recv(1) == b""


def test_a_second_one_is_heard_when_the_first_has_ended(pair):
    other = Announcement(pair.newer)
    pair.announcement.make(pair.path)
    pair.until(lambda: pair.successor.expected(0.0))
    other.make(pair.path)
    other.poll(time.monotonic())
    for _ in range(5):
        pair.step()
    pair.announcement.withdraw()
    pair.until(lambda: not pair.successor.expected(0.0))
    other.poll(time.monotonic() + 60)
    pair.until(lambda: pair.successor.expected(0.0))
    other.withdraw()


def test_a_front_that_knows_no_announcements_is_asked_again_and_succeeded_all_the_same(path):
    """It takes what it hears for a mistake, and closes the connection."""
    front, announcement = Front(), None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as older:
        older.bind(path)
        older.listen(8)
        announcement = Announcement(front)
        announcement.make(path)
        for round_number in range(3):
            announcement.poll(time.monotonic() + 60 * round_number)
            came, _ = older.accept()
            assert came.recv(100).endswith(b"\n")
            came.close()
            front.step(GIVE_UP)
        Path(path).unlink()
    announcement.poll(time.monotonic() + 600)  # and where there is none
    announcement.withdraw()
    front.close()
