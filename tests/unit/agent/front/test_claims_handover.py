# SPDX-License-Identifier: Apache-2.0
"""The driver of claims goes from one front to the next: sockets, connections, calls; the kubelet sees nothing of it."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import grpc
import pytest

from agent.front import channel as way
from agent.front import handover, handover_state
from agent.front.channel import Kind
from agent.front.front import Front
from agent.front.handover import Predecessor, SuccessorListener
from agent.front.port import Port
from agent.front.resource_offer import ResourceOffer
from agent.front.sockets import identify
from tests.unit.agent.front.claims_place import (
    GET_INFO,
    GIVE_UP,
    NOTIFY,
    PREPARE,
    Place,
    ask,
    begin,
    dialled,
    until,
)

OLDER, UNCONFIRMED, NEWER = (b"gigaslice front %d\n" % number for number in (1, 2, 3))


class Successor(Place):
    """The front that is to go on after that of PLACE, without an agent."""

    def __init__(self, place, name="handover.sock"):
        super().__init__(place.root)
        self.before = place
        self.path = str(place.root / name)
        with place.halted() as front:
            self.listener = SuccessorListener(front)
            self.listener.listen(self.path)
        self.predecessor = Predecessor(self.front, lambda path: None)
        self.step = self.front.step
        self.front.step = self._step
        self.predecessor.follow(self.path)
        self._thread.start()

    def close(self):
        with self.before.halted():
            self.listener.close()
        super().close()

    def _step(self, longest):
        self.step(longest)
        self.predecessor.poll(time.monotonic())

    def take_over(self):
        """Whether everything has been handed over; then the process before has ended."""
        until(lambda: self.listener.ready)
        with self.before.halted() as front:
            taken = self.listener.hand_over()
            if taken:
                self.before.end(front)
                self.listener.close()
        if taken:
            until(lambda: self.front.endpoints)
        return taken


@pytest.fixture
def successors():
    made = []

    def make(place, **options):
        made.append(Successor(place, **options))
        return made[-1]

    yield make
    for successor in made:
        successor.close()


def identities(place):
    return identify(place.service), identify(place.registration)


@pytest.mark.parametrize(
    "service", ["k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"]
)
def test_a_hand_over_in_the_middle_of_a_call(place, agent, kubelet, successors, service):
    states = []
    kubelet.subscribe(states.append)
    future = begin(kubelet, service=service)
    method = agent.call()[1]
    ask(place.registration, NOTIFY, b"\x08\x01")
    before = identities(place)
    successor = successors(place)
    place.lose_agent()
    assert successor.take_over()
    following = successor.new_agent(number=3)
    assert following.next(Kind.NOTIFIED) == (3, b"\x08\x01")
    number, name, age, left, message = following.call()
    assert (name, message) == (method, b"claims") and age > 0 and 30 < left < 46  # gRPC rounds it up
    following.answer(number, b"prepared")
    assert future.result(GIVE_UP) == b"prepared"
    assert identities(place) == before, "nothing in the kubelet's registry has changed"
    assert ask(place.registration, GET_INFO) == b"info"
    assert set(states) <= {
        grpc.ChannelConnectivity.IDLE,
        grpc.ChannelConnectivity.CONNECTING,
        grpc.ChannelConnectivity.READY,
    }
    assert states[-1] is grpc.ChannelConnectivity.READY


def test_connections_stay_between_calls_and_through_two_hand_overs(place, agent, kubelet, successors):
    states = []
    agent_now, front_now = agent, place
    before = identities(place)
    for turn in range(3):
        future = begin(kubelet, b"%d" % turn)
        number, *_, message = agent_now.call()
        assert message == b"%d" % turn
        agent_now.answer(number, message)
        assert future.result(GIVE_UP) == message
        kubelet.subscribe(states.append)
        if turn < 2:
            front_now.lose_agent()
            following = successors(front_now, name=f"handover-{turn}.sock")
            assert following.take_over()
            front_now, agent_now = following, following.new_agent()
    assert identities(place) == before
    assert {state.name for state in states} == {"READY"}


def test_who_connects_in_between_is_answered_by_the_successor(place, agent, successors):
    successor = successors(place)
    place.lose_agent()
    until(lambda: successor.listener.ready)
    answers = []
    with place.halted():
        asking = threading.Thread(target=lambda: answers.append(ask(place.registration, GET_INFO)))
        asking.start()
        time.sleep(0.2)
        assert not answers
    assert successor.take_over()
    asking.join(GIVE_UP)
    assert answers == [b"info"]


def test_a_socket_that_is_wiped_in_between_is_made_anew(place, agent, kubelet, successors):
    successor = successors(place)
    place.lose_agent()
    until(lambda: successor.listener.ready)
    before = identities(place)
    with place.halted():
        place.registration.unlink()
        place.front.step = time.sleep
    assert successor.take_over()
    until(place.registration.is_socket)
    assert identify(place.service) == before[0]
    following = successor.new_agent()
    future = begin(kubelet)
    following.answer(following.call()[0], b"prepared")
    assert future.result(GIVE_UP) == b"prepared"


# --- a successor that does not take it -------------------------------------------------------------------------


def served_on(place, future, before):
    """The front before is given an agent again, which answers the call that was held."""
    with place.halted() as front:
        assert set(front.endpoints) and front.calls
    following = place.new_agent(number=7)
    number, name, *_, message = following.call()
    assert (name, message) == (f"v1.{PREPARE}", b"claims")
    following.answer(number, b"prepared")
    assert future.result(GIVE_UP) == b"prepared"
    assert identities(place) == before, "nothing in the kubelet's registry has changed"
    return following


def goes_to_the_next(place, kubelet, successor):
    """The next successor takes it all, in the middle of a call."""
    future = begin(kubelet, b"next")
    place.agents[-1].call()
    place.lose_agent()
    assert successor.take_over()
    following = successor.new_agent()
    number, *_, message = following.call()
    assert message == b"next"
    following.answer(number, b"done")
    assert future.result(GIVE_UP) == b"done"


@pytest.mark.parametrize("adopted", [False, True])
@pytest.mark.usefixtures("agent")
def test_a_successor_that_cannot_take_over_changes_nothing(place, kubelet, successors, monkeypatch, adopted):
    """Be it that it had the connections open already. It asks again, and here it can in the end."""
    adopt = handover.adopt

    def fails(front, state, fds):
        if adopted:
            adopt(front, state, fds)
        raise ValueError("not understood")

    future = begin(kubelet)
    place.agents[-1].call()
    before = identities(place)
    successor = successors(place)
    place.lose_agent()
    monkeypatch.setattr(handover, "adopt", fails)
    assert not successor.take_over()
    until(lambda: not successor.front.endpoints and not successor.front.calls)
    monkeypatch.undo()
    served_on(place, future, before)
    assert ask(place.registration, GET_INFO) == b"info"
    goes_to_the_next(place, kubelet, successor)
    assert identities(place) == before


_DYING = """
import os, signal, sys, time
from agent.front import handover
from agent.front.front import Front

def dies(when, real):
    def call(*arguments):
        answer = real(*arguments) if when == "after" else None
        os.kill(os.getpid(), signal.SIGKILL)
    return call

path, owner, name, when = sys.argv[1:]
where = getattr(handover, owner) if owner else handover
setattr(where, name, dies(when, getattr(where, name)))
front = Front()
predecessor = handover.Predecessor(front, lambda path: None)
predecessor.follow(path)
while True:
    front.step(0.02)
    predecessor.poll(time.monotonic())
"""


@pytest.mark.parametrize("point", [
    ("Predecessor", "_receive", "before"), ("", "_received", "after"), ("", "adopt", "before"), ("", "adopt", "after"),
    ("Predecessor", "_may_keep", "before"),
])  # fmt: skip
def test_a_successor_that_is_killed_while_it_takes_over_changes_nothing(
    place, agent, kubelet, successors, point
):
    future = begin(kubelet)
    agent.call()
    before = identities(place)
    path = str(place.root / "first.sock")
    with place.halted() as front:
        listener = SuccessorListener(front)
        listener.listen(path)
    dying = subprocess.Popen([sys.executable, "-c", _DYING, path, *point])
    until(lambda: listener.ready)
    place.lose_agent()
    with place.halted():
        assert not listener.hand_over()
        assert listener.listening and not listener.ready and not listener.left
    assert dying.wait(GIVE_UP) == -signal.SIGKILL
    served_on(place, future, before)
    with place.halted():
        listener.close()
    goes_to_the_next(place, kubelet, successors(place))
    assert identities(place) == before


class Unheard(bytes):
    """What is said, and taken for something else."""

    __hash__ = bytes.__hash__

    def __eq__(self, other):
        return False


def test_a_front_that_is_killed_right_after_it_was_understood_leaves_all_to_its_successor(
    place, agent, kubelet, successors, monkeypatch
):
    """It does not come to confirm that, and nothing listens at its place."""

    future = begin(kubelet)
    agent.call()
    before = identities(place)
    successor = successors(place)
    place.lose_agent()
    monkeypatch.setattr(handover, "_YOURS", Unheard(b"yours\n"))
    monkeypatch.setattr(handover, "_listens", lambda path: False)
    assert successor.take_over()
    following = successor.new_agent()
    following.answer(following.call()[0], b"prepared")
    assert future.result(GIVE_UP) == b"prepared"
    assert identities(place) == before


def test_a_successor_that_took_too_long_leaves_all_to_who_has_given_it_up(
    place, agent, kubelet, successors, monkeypatch
):
    """Else both would read from one connection."""
    may_keep, late = Predecessor._may_keep, threading.Event()

    def waits(self, sock):
        assert late.wait(GIVE_UP)
        return may_keep(self, sock)

    monkeypatch.setattr(Predecessor, "_may_keep", waits)
    monkeypatch.setattr(handover, "_PATIENCE", 0.2)
    future = begin(kubelet)
    agent.call()
    before = identities(place)
    successor = successors(place)
    place.lose_agent()
    assert not successor.take_over()
    late.set()
    until(lambda: not successor.front.endpoints)
    monkeypatch.undo()
    served_on(place, future, before)


def test_a_successor_that_is_asked_to_end_says_so(place, agent, successors):
    """Then nobody is coming, as where all pods of a node are ended."""
    successor = successors(place)
    until(lambda: successor.listener.ready)
    with successor.halted():
        successor.predecessor.leave()
    until(lambda: not successor.listener.ready)
    assert successor.listener.left


# --- beside versions that serve no claims -------------------------------------------------------------------


def with_resource(place, agent):
    (place.root / "device-plugins").mkdir()
    offer = ResourceOffer(str(place.root / "device-plugins"), "p.sock", "example.com/x", b"\x08\x01", b"")
    agent.sock.sendall(way.frame(Kind.OFFER, 2, offer.to_bytes()) + way.frame(Kind.LIST, 2, b"devices"))
    path = place.root / "device-plugins/p.sock"
    until(path.is_socket)
    return path


def test_an_older_successor_gets_what_it_knows_and_the_driver_is_gone(
    place, agent, kubelet, successors, monkeypatch
):
    connect = Predecessor._connect
    monkeypatch.setattr(Predecessor, "_connect", lambda self, _: connect(self, OLDER))
    given, adopt = [], handover.adopt

    def adopted(front, state, fds):
        given.append((state, list(fds)))
        adopt(front, state, fds)

    monkeypatch.setattr(handover, "adopt", adopted)
    with dialled(with_resource(place, agent)) as channel:
        stream = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"", timeout=60)
        assert next(stream) == b"devices"
        future = begin(kubelet)
        agent.call()
        successor = successors(place)
        place.lose_agent()
        assert successor.take_over()
        with pytest.raises(grpc.RpcError) as caught:
            future.result(GIVE_UP)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not place.service.exists() and not place.registration.exists()
        ((state, fds),) = given
        assert state.keys() == {"streams", "endpoints"}
        (endpoint,) = state["endpoints"]
        assert endpoint.keys() == {"offer", "devices", "lock", "peers"}
        assert [peer.keys() for peer in endpoint["peers"]] == [
            {"fd", "connection", "watching", "behind", "calls"}
        ]
        assert len(fds) == 2, "nothing that it would keep open without an end"
        stream.cancel()


def refused(path):
    """Whether nothing listens there."""
    with socket.socket(socket.AF_UNIX) as dialled:
        return dialled.connect_ex(str(path)) != 0


@pytest.mark.parametrize(("greeting", "answer"), [(NEWER, b"yours\n"), (UNCONFIRMED, b"")])
def test_nothing_listens_for_the_kubelet_any_more_when_a_successor_goes_on(place, agent, greeting, answer):
    """It makes a socket of its own at once, and would take the one that is there for another agent's."""
    path, heard = with_resource(place, agent), []
    with place.halted() as front:
        listener = SuccessorListener(front)
        listener.listen(str(place.root / "handover.sock"))
    place.lose_agent()

    def succeed():
        head, fds, _, _ = socket.recv_fds(sock, 4, 200)
        for fd in fds:
            os.close(fd)
        assert sock.recv(struct.unpack("!I", head)[0], socket.MSG_WAITALL)
        if greeting != NEWER:  # it goes on without an answer
            heard.append(refused(path))
        sock.sendall(b"taken\n")
        heard.extend((sock.recv(6), refused(path)))

    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(place.root / "handover.sock"))
        sock.sendall(greeting)
        until(lambda: listener.ready)
        thread = threading.Thread(target=succeed)
        thread.start()
        with place.halted() as front:
            assert listener.hand_over()
            place.end(front)
            listener.close()
        thread.join(GIVE_UP)
    assert heard[-2:] == [answer, True] and all(heard[:-2])


def test_an_older_predecessor_is_greeted_as_it_expects(place):
    """It closes what greets it in another way, and hands over what it has always handed over."""
    place.root.joinpath("plugins").mkdir()
    path = str(place.root / "handover.sock")
    front, told = Front(), []
    predecessor = Predecessor(front, told.append)
    with socket.socket(socket.AF_UNIX) as older:
        older.bind(path)
        older.listen()
        predecessor.follow(path)
        assert not predecessor.poll(time.monotonic() + 1)
        for unknown in (NEWER, UNCONFIRMED):
            first, _ = older.accept()
            assert first.recv(18) == unknown
            first.close()
            front.step(GIVE_UP)
            assert not predecessor.poll(time.monotonic()), "it has not ended"
        second, _ = older.accept()
        assert second.recv(18) == OLDER
        assert predecessor.connected
        older.close()
        raw = json.dumps({"streams": 0, "endpoints": []}).encode()
        second.sendall(struct.pack("!I", len(raw)) + raw)
        said = []
        ends = threading.Thread(target=lambda: (said.append(second.recv(6)), second.close()))
        ends.start()
        front.step(GIVE_UP)
        ends.join(GIVE_UP)
        assert said == [b"taken\n"]
    assert told == [path]
    assert predecessor.poll(time.monotonic() + 1), "now it has"
    front.close()


def test_a_predecessor_that_ends_without_a_word_has_ended(place):
    path = str(place.root / "handover.sock")
    front = Front()
    predecessor = Predecessor(front, lambda path: None)
    with socket.socket(socket.AF_UNIX) as before:
        before.bind(path)
        before.listen()
        predecessor.follow(path)
        assert not predecessor.poll(time.monotonic() + 1)
        accepted, _ = before.accept()
        assert accepted.recv(18) == NEWER
    accepted.close()
    front.step(GIVE_UP)
    assert predecessor.poll(time.monotonic())
    front.close()


# --- sockets of another process -----------------------------------------------------------------------------

_LISTEN = """
import socket, sys
way, listener = socket.socket(fileno=int(sys.argv[1])), socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen()
socket.send_fds(way, [b"x"], [listener.fileno()])
"""


def test_a_socket_from_another_process_counts_as_the_own_one_when_it_is_relabelled(place):
    """The kernel names the process that began to listen, until another one does so on the same socket."""
    path = place.root / "own.sock"
    ours, theirs = socket.socketpair()
    subprocess.run(
        [sys.executable, "-c", _LISTEN, str(theirs.fileno()), str(path)],
        pass_fds=[theirs.fileno()],
        check=True,
        timeout=GIVE_UP,
    )
    _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    for end in (ours, theirs):
        end.close()
    before = path.stat().st_ino
    port = Port(place.front, None, path, "")
    port.adopt_listener(socket.socket(fileno=fd))
    assert not port.serving
    assert port.serve() and port.serving
    path.chmod(0o700)
    assert not port.serving
    assert port.serve() and path.stat().st_ino == before
    port.stop_listening()


def test_no_number_of_connections_leaves_locks_and_listeners_behind(place, agent, kubelet, monkeypatch):
    kubelet.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=GIVE_UP)
    monkeypatch.setattr(handover_state, "MOST_DESCRIPTORS", 3)
    with place.halted() as front:
        state, fds = handover_state.export(front)
        (driver,) = state["claims"]
        places = [driver["lock"], driver["service"]["listener"], driver["registration"]["listener"]]
        assert sorted(places) == [0, 1, 2] and len(fds) == 3
        assert driver["service"]["peers"] == []
