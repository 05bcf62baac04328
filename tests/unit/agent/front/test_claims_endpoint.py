# SPDX-License-Identifier: Apache-2.0
"""The driver of claims at the kubelet, served by a front, with grpc's own client in the kubelet's place."""

import socket
import threading
import time

import grpc
import pytest

from agent.front import channel as way
from agent.front.channel import Kind
from agent.front.claims_endpoint import SERVICES, ClaimsEndpoint
from agent.front.front import Front
from agent.front.port import Port
from agent.front.sockets import identify
from tests.unit.agent.front.claims_place import (
    GET_INFO,
    GIVE_UP,
    NOTIFY,
    PREPARE,
    UNPREPARE,
    V1,
    Agent,
    ask,
    begin,
    code_of,
    until,
)

# --- what is asked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("method", [PREPARE, UNPREPARE])
def test_a_call_comes_to_the_agent_with_its_version_and_its_bytes(agent, kubelet, service, method):
    future = begin(kubelet, method=method, service=service)
    number, name, age, left, message = agent.call()
    assert (name, age, message) == (f"{SERVICES[service]}.{method}", -1.0, b"claims")
    assert 0 < left < 46  # gRPC rounds it up
    agent.answer(number, b"prepared")
    assert future.result(GIVE_UP) == b"prepared"


def test_an_error_of_the_agent_is_the_caller_s(agent, kubelet):
    future = begin(kubelet)
    agent.answer(agent.call()[0], b"a fault, 100 %", code=grpc.StatusCode.UNKNOWN.value[0])
    with pytest.raises(grpc.RpcError) as caught:
        future.result(GIVE_UP)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNKNOWN, "a fault, 100 %")


def test_messages_up_to_the_kubelet_s_limit(agent, kubelet):
    request, answer = b"q" * 3_900_000, b"a" * 3_900_000
    future = begin(kubelet, request)
    number, *_, message = agent.call()
    assert message == request
    agent.answer(number, answer)
    assert future.result(GIVE_UP) == answer
    assert (
        code_of(lambda: begin(kubelet, b"q" * 4_300_000).result(GIVE_UP))
        is grpc.StatusCode.RESOURCE_EXHAUSTED
    )


@pytest.mark.parametrize(
    "path",
    [
        f"/{V1}/NodeWatchResources",
        f"/{V1}/",
        "/k8s.io.kubelet.pkg.apis.dra.v2.DRAPlugin/NodePrepareResources",
        "/v1beta1.DevicePlugin/Allocate",
        f"/v1beta1.DevicePlugin/{PREPARE}",
        GET_INFO,
        "/grpc.health.v1.Health/Watch",
        "/None/Allocate",
        "/NodePrepareResources",
    ],
)
def test_nothing_else_is_served_at_the_socket_for_calls(kubelet, path):
    call = kubelet.unary_unary(path)
    assert code_of(lambda: call(b"", timeout=GIVE_UP)) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("path", [f"/{V1}/{PREPARE}", "/pluginregistration.Registration/Register"])
def test_nothing_else_is_served_in_the_registry(place, agent, path):
    assert code_of(lambda: ask(place.registration, path)) is grpc.StatusCode.UNIMPLEMENTED


def test_a_call_that_the_kubelet_gives_up_is_taken_back(agent, kubelet):
    future = begin(kubelet)
    number = agent.call()[0]
    future.cancel()
    assert agent.next(Kind.CANCEL)[0] == number


# --- registration -------------------------------------------------------------------------------------------


def test_the_driver_is_described_by_the_front_alone(place, agent):
    place.lose_agent()
    assert ask(place.registration, GET_INFO) == b"info"


def test_the_agent_and_each_after_it_is_told_what_the_kubelet_says(place, agent):
    assert ask(place.registration, NOTIFY, b"\x08\x01") == b""
    assert agent.next(Kind.NOTIFIED) == (1, b"\x08\x01")
    place.lose_agent()
    assert ask(place.registration, NOTIFY, b"\x12\x02no") == b"", "and a kubelet is answered meanwhile"
    assert place.new_agent(number=7).next(Kind.NOTIFIED) == (7, b"\x12\x02no")


def test_the_socket_in_the_registry_appears_last_and_only_when_both_answer(place):
    appeared = []

    def serve(self):
        appeared.append((self.path.name, place.service.is_socket()))
        return original(self)

    original = Port.serve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Port, "serve", serve)
        place.start()
    assert appeared == [("dra.sock", False), ("d-reg.sock", True)]
    assert {path.name for path in place.registration.parent.iterdir()} == {"d-reg.sock"}


def test_nothing_is_made_before_the_kubelet_has_made_its_directories(place):
    agent = place.start()
    place.registration.unlink()
    place.registration.parent.rmdir()
    until(lambda: not place.front.endpoints or identify(place.registration) is None)
    time.sleep(0.3)
    assert not place.registration.parent.exists()
    place.registration.parent.mkdir()
    until(place.registration.is_socket)
    assert agent is not None


@pytest.mark.parametrize("which", ["service", "registration"])
def test_a_wiped_socket_is_made_anew_and_an_open_connection_stays(place, agent, kubelet, which):
    future = begin(kubelet, b"first")
    number = agent.call()[0]
    path = getattr(place, which)
    before = identify(path)
    path.unlink()
    until(lambda: identify(path) not in {None, before})
    agent.answer(number, b"prepared")
    assert future.result(GIVE_UP) == b"prepared"
    method = f"/{V1}/{PREPARE}" if which == "service" else GET_INFO
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(path, method, b"second")))
    asking.start()
    if which == "service":
        agent.answer(agent.call()[0], b"info")
    asking.join(GIVE_UP)
    assert answers == [b"info"]


def test_another_description_is_another_socket_in_the_registry(place, agent):
    service, registration = identify(place.service), identify(place.registration)
    place.lose_agent()
    place.new_agent()
    time.sleep(0.3)
    assert (identify(place.service), identify(place.registration)) == (service, registration)
    place.lose_agent()
    place.new_agent(info=b"new")
    until(lambda: identify(place.registration) not in {None, registration})
    assert identify(place.service) == service
    assert ask(place.registration, GET_INFO) == b"new"


def test_what_a_killed_front_left_is_replaced(place):
    for path in (place.service, place.registration):
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    before = identify(place.registration)
    place._thread.start()
    place.new_agent()
    until(lambda: identify(place.registration) != before)
    assert ask(place.registration, GET_INFO) == b"info"


def test_a_driver_that_another_front_serves_is_refused(place, agent):
    other = Front()
    second = Agent(other)
    second.offer(place.root)
    until(lambda: not other.step(0.01) and not other.endpoints and other.served)
    number, payload = second.next(Kind.REFUSED)
    assert number == 1 and b"LockedError" in payload
    assert ask(place.registration, GET_INFO) == b"info"
    other.close()
    second.sock.close()


def test_what_is_not_offered_any_more_is_gone(place, agent, kubelet):
    future = begin(kubelet)
    agent.call()
    agent.sock.sendall(way.frame(Kind.WITHDRAW, 1))
    assert code_of(lambda: future.result(GIVE_UP)) is grpc.StatusCode.UNAVAILABLE
    until(lambda: not place.service.exists() and not place.registration.exists())


# --- health -------------------------------------------------------------------------------------------------


def test_health_says_whether_there_is_an_agent(place, agent, kubelet):
    check = kubelet.unary_unary("/grpc.health.v1.Health/Check")
    services = [b"", *(bytes((0x0A, len(name))) + name.encode() for name in SERVICES)]
    assert {check(service, timeout=GIVE_UP) for service in services} == {b"\x08\x01"}
    place.lose_agent()
    assert {check(service, timeout=GIVE_UP) for service in services} == {b"\x08\x02"}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\x0a\x01x", grpc.StatusCode.NOT_FOUND),
        (b"\x0a\xc8\x01" + b"x" * 200, grpc.StatusCode.NOT_FOUND),
        (b"\x0a\x02x", grpc.StatusCode.INTERNAL),
        (b"\x0a\x01xx", grpc.StatusCode.INTERNAL),
        (b"\x0a", grpc.StatusCode.INTERNAL),
        (b"\x0a\xff\xff\xff\xff\x01", grpc.StatusCode.INTERNAL),
        (b"\x12\x00", grpc.StatusCode.INTERNAL),
        (b"\x0a\x80\x80\x02" + b"x" * 32768, grpc.StatusCode.INTERNAL),
    ],
)
def test_health_of_what_is_no_service_or_no_request(kubelet, message, code):
    check = kubelet.unary_unary("/grpc.health.v1.Health/Check")
    assert code_of(lambda: check(message, timeout=GIVE_UP)) is code


# --- the agent away -----------------------------------------------------------------------------------------


def test_calls_wait_for_an_agent_and_an_unanswered_one_comes_with_its_age(place, agent, kubelet):
    begun = begin(kubelet, b"begun")
    assert agent.call()[2] == -1.0
    place.lose_agent()
    waiting = begin(kubelet, b"waiting", UNPREPARE)
    time.sleep(0.3)
    assert not begun.done() and not waiting.done()
    following = place.new_agent()
    calls = {call[4]: call for call in (following.call(), following.call())}
    assert calls[b"begun"][2] >= 0.3, "it may have been carried out"
    assert calls[b"waiting"][2] == -1.0
    for message, call in calls.items():
        following.answer(call[0], message)
    assert (begun.result(GIVE_UP), waiting.result(GIVE_UP)) == (b"begun", b"waiting")


def test_a_call_that_no_agent_has_is_given_up_shortly_before_its_caller_gives_up(
    place, agent, kubelet, monkeypatch
):
    assert 1.0 <= ClaimsEndpoint.margin <= 5.0
    monkeypatch.setattr(ClaimsEndpoint, "margin", GIVE_UP)  # a slow machine is later than two seconds
    with_agent = begin(kubelet, b"with the agent", timeout=GIVE_UP + 1.0)
    number = agent.call()[0]
    time.sleep(1.5)
    agent.answer(number, b"in time")
    assert with_agent.result(GIVE_UP) == b"in time", "an agent has it until the end"
    place.lose_agent()
    begun = time.monotonic()
    waiting, lasting = begin(kubelet, timeout=GIVE_UP + 0.6), begin(kubelet, timeout=2 * GIVE_UP + 30)
    with pytest.raises(grpc.RpcError) as caught:
        waiting.result(GIVE_UP)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "and not the caller's DEADLINE_EXCEEDED"
    assert "being started" in caught.value.details()
    assert time.monotonic() - begun >= 0.5
    assert not lasting.done()


def test_the_driver_outlives_an_agent_s_absence_that_a_device_plugin_does_not(place, agent, monkeypatch):
    assert ClaimsEndpoint.patience > 45, "the longest that a kubelet waits for a call"
    monkeypatch.setattr(ClaimsEndpoint, "patience", 0.3)
    place.lose_agent()
    until(lambda: not place.registration.exists() and not place.service.exists())
    place.new_agent()
    assert ask(place.registration, GET_INFO) == b"info"
