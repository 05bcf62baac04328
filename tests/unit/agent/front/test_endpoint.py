"""What an endpoint remembers from one attempt to the next; its life beside a kubelet is in tests/integration/agent."""

import socket
import tempfile
import time
from pathlib import Path

import pytest

from agent.front import endpoint as module
from agent.front.front import Front
from agent.front.offer import Offer
from agent.front.sockets import hidden_name, identify


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        directory = Path(name)
        front = Front()
        endpoint = module.Endpoint(front, Offer(name, "own.sock", "example.com/x", b"", b""))
        front.endpoints[endpoint.offer.key] = endpoint
        endpoint.number = 1
        yield front, endpoint, directory
        front.close()


def until(front, condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        front.step(0.01)


def test_a_new_kubelet_does_not_pay_for_the_failures_of_the_one_before(place):
    """A socket is there a moment before a process listens; the attempt that falls into it is repeated soon."""
    _, endpoint, directory = place
    for failures in (1, 2, 3):
        with socket.socket(socket.AF_UNIX) as dead:
            if failures == 1:
                dead.bind(str(directory / "kubelet.sock"))  # and no process listens, as after a kill
            endpoint._register()
        assert endpoint._failures == failures
    (directory / "kubelet.sock").unlink()
    with socket.socket(socket.AF_UNIX) as fresh:
        fresh.bind(str(directory / "kubelet.sock"))
        endpoint._register()
    assert endpoint._failures == 1


def test_a_kubelet_that_wipes_the_directory_while_a_socket_is_made(place, monkeypatch):
    """It removes every socket there when it starts: also the one that is about to get its public name."""
    front, _, directory = place
    names = []

    def hidden(where):
        names.append(hidden_name(where))
        return names[-1]

    class Wiped(socket.socket):
        def listen(self, backlog):
            super().listen(backlog)
            if len(names) < 3:
                names[-1].unlink()

    monkeypatch.setattr(module.sockets, "hidden_name", hidden)
    monkeypatch.setattr(module.socket, "socket", Wiped)
    until(front, (directory / "own.sock").is_socket)
    assert len(names) == 3


def test_a_socket_that_is_relabelled_is_still_the_own_one(place):
    """restorecon and chown change a file and no server: the front must not take itself for another program."""
    front, endpoint, directory = place
    path = directory / "own.sock"
    until(front, path.is_socket)
    listener = endpoint._listener
    for mode in (0o700, 0o755):
        path.chmod(mode)
        until(front, lambda: identify(path) == endpoint._mine)
    assert endpoint._listener is listener


def test_a_silent_kubelet_is_given_up_and_a_gone_one_too(place, monkeypatch):
    front, endpoint, directory = place
    monkeypatch.setattr(module, "_REGISTER_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(directory / "kubelet.sock"))
        silent.listen()
        until(front, lambda: endpoint._failures == 1)
        first, _ = silent.accept()
        monkeypatch.setattr(module, "_REGISTER_SECONDS", 60.0)
        until(front, lambda: endpoint._attempt is not None)
        second, _ = silent.accept()
        second.close()
        until(front, lambda: endpoint._failures == 2)
        first.close()
