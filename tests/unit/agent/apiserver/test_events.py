# SPDX-License-Identifier: Apache-2.0
import asyncio
import re
from dataclasses import replace

import pytest

from agent.apiserver import KubeCluster, NoCluster
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.kube.event import Throttle
from gigaslice.kubeapi.events import NODE_RATES, EventRecorder
from tests.fakes.eventually import run_beside, until
from tests.fakes.kubeapi import NODE, Fault, pod_document

POD = parse_pod(pod_document("p", namespace="team", uid="u-1"))


@pytest.fixture
def sending(server, client_of):
    def run(story):
        clock = [0.0]

        async def main():
            async with client_of() as client:
                recorder = EventRecorder(
                    client, "node", NODE, NODE_RATES, now=lambda: 1.0, clock=lambda: clock[0], pause=0.01
                )
                await run_beside(recorder.run(), story(KubeCluster(client, NODE, events=recorder), clock))

        asyncio.run(main())

    return run


def test_an_event_says_who_and_what(server, sending):
    async def story(cluster, clock):
        cluster.event(POD, "Warning", "WaitingForGPU", "waiting for\n 2 GiB", "main")
        await until(server.events)

    sending(story)
    (event,) = server.events()
    assert event["involvedObject"]["uid"] == "u-1"
    assert event["involvedObject"]["fieldPath"] == "spec.containers{main}"
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning",
        "WaitingForGPU",
        "waiting for 2 GiB",
    )
    assert event["metadata"]["namespace"] == "team"


def test_the_same_again_is_counted_and_not_posted(server, sending):
    async def story(cluster, clock):
        for clock[0] in (0.0, 5.0, 11.0, 30.0, 72.0):
            cluster.event(POD, "Warning", "R", "same")
            await asyncio.sleep(0.05)
        await until(lambda: server.events() and server.events()[0]["count"] == 3)

    sending(story)
    assert len(server.events()) == 1


def test_a_text_that_changes_in_its_details_is_the_same_report(server, sending):
    async def story(cluster, clock):
        cluster.event(POD, "Warning", "R", "2 GiB missing", "a")
        cluster.event(POD, "Warning", "R", "1 GiB missing", "a")
        cluster.event(POD, "Warning", "R", "1 GiB missing", "b")
        await until(lambda: len(server.events()) == 2)

    sending(story)
    assert {event["message"] for event in server.events()} == {"2 GiB missing", "1 GiB missing"}


def test_an_event_that_the_server_has_dropped_is_posted_anew(server, sending):
    async def story(cluster, clock):
        cluster.event(POD, "Warning", "R", "same")
        await until(server.events)
        server.clear("events")
        clock[0] = 100.0
        cluster.event(POD, "Warning", "R", "same")
        await until(server.events)

    sending(story)


def test_a_long_text_is_cut_to_what_the_server_takes(server, sending):
    async def story(cluster, clock):
        cluster.event(POD, "Normal", "R", "ü" * 3000)
        await until(server.events)

    sending(story)
    assert len(server.events()[0]["message"].encode()) <= 1024


@pytest.mark.parametrize("letter", ["-", ".", "-."])
def test_the_name_of_an_event_is_one_wherever_the_pods_is_cut(server, sending, letter):
    """RFC 1123: parts begin and end with a letter or digit, else the server answers 422."""

    async def story(cluster, clock):
        name = "p" * (200 - len(letter)) + letter + "z" * 40
        cluster.event(replace(POD, name=name), "Normal", "R", "text")
        await until(server.events)

    sending(story)
    name = server.events()[0]["metadata"]["name"]
    assert len(name) <= 253
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", part) for part in name.split("."))


def test_a_server_that_refuses_events_costs_nothing_else(server, sending):
    server.faults.append(Fault("POST", "/events", 403))

    async def story(cluster, clock):
        cluster.event(POD, "Normal", "First", "x")
        await until(lambda: server.asked("POST", "/events") == 1)
        server.faults.clear()
        cluster.event(POD, "Normal", "Second", "x")
        await until(lambda: server.events("Second"))

    sending(story)
    assert not server.events("First")


def test_a_server_in_trouble_is_asked_again(server, sending):
    server.faults.append(Fault("POST", "/events", 503))

    async def story(cluster, clock):
        cluster.event(POD, "Normal", "R", "x")
        await until(lambda: server.asked("POST", "/events") == 1)
        server.faults.clear()
        await until(server.events)

    sending(story)


def test_one_pod_cannot_flood_and_the_node_cannot_either():
    throttle = Throttle()
    assert sum(throttle.due("one", (f"reason {n}",), 100.0) for n in range(1000)) == 20
    assert sum(throttle.due(f"pod {n}", ("r",), 100.0) for n in range(1000)) == 30, "50 on the node"
    assert throttle.due("one", ("later",), 161.0)


def test_the_memory_of_what_was_said_is_bounded():
    throttle = Throttle()
    for number in range(10_000):
        throttle.due(f"pod {number}", ("r",), float(number * 10))
    assert len(throttle._reports) <= 2048 and len(throttle._objects) <= 2048


# --- eviction ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status, gone, text", [
    (201, False, ""), (404, True, ""), (409, True, ""), (429, False, "PodDisruptionBudget"),
    (500, False, "denied by the test"), (403, False, "no right to evict pods"),
])  # fmt: skip
def test_eviction_is_of_exactly_this_pod(server, client_of, status, gone, text):
    server.faults.append(Fault("POST", "/eviction", status))

    async def evict():
        async with client_of() as client:
            return await KubeCluster(client, "node-a").evict(POD)

    answer = asyncio.run(evict())
    assert (answer.gone, answer.done) == (gone, status == 201)
    assert text in answer.problem and bool(text) == bool(answer.problem)
    (body,) = server.sent("POST", "/eviction")
    assert body["deleteOptions"] == {"preconditions": {"uid": "u-1"}}


def test_without_access_nothing_is_known_and_nothing_fails():
    cluster = NoCluster()
    cluster.event(POD, "Normal", "R", "x")
    assert not cluster.pods and cluster.pod("a", "b") is None and not cluster.expected
    assert "without access" in asyncio.run(cluster.evict(POD)).problem
    assert not asyncio.run(cluster.news(0.01))
