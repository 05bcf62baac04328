# SPDX-License-Identifier: Apache-2.0
import asyncio

from gigaslice.core.kube.event import Regarding
from gigaslice.kubeapi.client import KubeClient
from gigaslice.kubeapi.events import EventRecorder
from tests.fakes.eventually import until
from tests.fakes.kubeapi.replay import Replay, transcript

POD = Regarding("Pod", "t-ev", "p1", "11111111-1111-4111-8111-111111111111")
PATH = "/api/v1/namespaces/t-ev/events"


def run(lines, story):
    async def main():
        clock = [0.0]
        async with Replay(lines) as server, KubeClient(server.access, "t") as client:
            recorder = EventRecorder(
                client, "controller", "c-0", now=lambda: 0.0, clock=lambda: clock[0], pause=0.01
            )
            work = asyncio.create_task(recorder.run())
            await asyncio.wait_for(story(recorder, clock, server), 30)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return server

    return asyncio.run(main())


def test_an_event_has_the_fields_that_a_real_server_has_taken():
    lines = transcript("api-events")

    async def story(recorder, clock, server):
        recorder.say(POD, "Warning", "WaitingForGPU", "no GPU\nhas 8 GiB")
        await until(lambda: server.requests)

    (_, target, body), *_ = run(lines[:1], story).requests
    assert target == PATH
    assert set(lines[0]["body"]) == set(body)
    assert set(lines[0]["body"]["involvedObject"]) == set(body["involvedObject"])
    assert body["message"] == "no GPU has 8 GiB"


def test_a_repetition_is_counted_and_another_text_is_another_event():
    lines = [{"method": "POST", "path": PATH, "status": 201, "reply": {}}] * 3

    async def story(recorder, clock, server):
        for text in ("a", "a", "b"):
            recorder.say(POD, "Normal", "R", text)
        await until(lambda: len(server.requests) == 2)
        name = server.requests[0][2]["metadata"]["name"]
        server._answers["PATCH", f"{PATH}/{name}", False] = [{"status": 200, "reply": {}}]
        clock[0] = 60.0
        recorder.say(POD, "Normal", "R", "a")
        await until(lambda: len(server.requests) == 3)

    methods = [
        (method, (body.get("count"), body.get("message"))) for method, _, body in run(lines, story).requests
    ]
    assert methods == [("POST", (1, "a")), ("POST", (1, "b")), ("PATCH", (2, None))]


def test_an_event_that_has_expired_is_posted_anew():
    lines = [{"method": "POST", "path": PATH, "status": 201, "reply": {}}] * 2

    async def story(recorder, clock, server):
        recorder.say(POD, "Normal", "R", "a")
        await until(lambda: len(server.requests) == 1)
        clock[0] = 60.0
        recorder.say(POD, "Normal", "R", "a")  # its PATCH gets 404
        await until(lambda: len(server.requests) == 3)

    assert [method for method, _, _ in run(lines, story).requests] == ["POST", "PATCH", "POST"]


def test_an_event_that_is_there_already_was_sent_by_us():
    """By a request whose connection was lost before its answer, and which was repeated."""
    lines = [{"method": "POST", "path": PATH, "status": 409, "reply": {"reason": "AlreadyExists"}}]

    async def story(recorder, clock, server):
        recorder.say(POD, "Normal", "R", "a")
        await until(lambda: len(server.requests) == 1)
        clock[0] = 60.0
        recorder.say(POD, "Normal", "R", "a")
        await until(lambda: len(server.requests) >= 2)

    assert [method for method, _, _ in run(lines, story).requests][:2] == ["POST", "PATCH"]


def test_an_object_without_a_namespace_has_its_events_in_default():
    node = Regarding("Node", "", "n-0", "n-0")
    recorded = next(one for one in transcript("api-events") if one.get("note") == "Node event in default")

    async def story(recorder, clock, server):
        recorder.say(node, "Normal", "R", "a")
        await until(lambda: server.requests)

    (_, target, body), *_ = run([recorded], story).requests
    assert target == recorded["path"]
    assert "namespace" not in body["involvedObject"]


def test_a_flood_over_many_objects_is_bounded():
    async def story(recorder, clock, server):
        for number in range(1000):
            recorder.say(Regarding("Pod", "t-ev", f"p{number}", str(number)), "Normal", "R", "a")
        await until(recorder._queue.empty)
        await asyncio.sleep(0.05)

    lines = [{"method": "POST", "path": PATH, "status": 201, "reply": {}}] * 1000
    assert len(run(lines, story).requests) == 200
