# SPDX-License-Identifier: Apache-2.0
"""What a server that is away costs the admissions that read past the watch, and when it is asked again."""

import asyncio
import math

import pytest

from agent.apiserver.node_pods import node_pods
from agent.apiserver.pod_reader import SILENT_SECONDS, PodReader
from gigaslice.core.kube.decode import parse_pod
from gigaslice.kubeapi.failures import ApiFailure
from tests.fakes.eventually import until
from tests.fakes.kubeapi import pod_document

PODS = {("default", "p"): parse_pod(pod_document("p", {"gigaslice.io/vgpu-memory": 4}))}


class Watch:
    """Each list is answered by the test."""

    def __init__(self):
        self.heard_at = -math.inf
        self.lists = []

    async def read(self):
        self.lists.append(asyncio.get_running_loop().create_future())
        return await self.lists[-1]

    def answer(self, answer=PODS):
        if isinstance(answer, BaseException):
            self.lists[-1].set_exception(answer)
        else:
            self.lists[-1].set_result(answer)


class Place:
    """A reader whose clock the test moves; the waits of a read are real."""

    def __init__(self):
        self.watch, self.now = Watch(), 100.0
        self.reader = PodReader(self.watch, lambda: self.now)
        self.waited = []
        wait = asyncio.wait

        async def noted(tasks, timeout=None):
            self.waited.append(timeout)
            return await wait(tasks, timeout=min(timeout, 0.01))

        self.wait = noted

    async def failing(self, error=None):
        """One read that comes to nothing."""
        reading = asyncio.ensure_future(self.reader.read(1.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if error is not None and self.watch.lists:
            self.watch.answer(error)
        assert await reading is None


@pytest.fixture
def place(monkeypatch):
    made = Place()
    monkeypatch.setattr("agent.apiserver.pod_reader.asyncio.wait", made.wait)
    return made


def test_a_server_that_has_not_answered_is_asked_after_pauses_and_hardly_waited_for(place):
    async def story():
        assert place.reader.answering
        await place.failing()
        assert (place.waited, place.reader.answering) == ([1.0], False)
        for _ in range(20):
            assert await place.reader.read(1.0) is None
        assert len(place.watch.lists) == 1, "no request, no wait"
        pauses, before = [], place.now
        for _ in range(7):
            while len(place.watch.lists) == len(place.waited):
                place.now += 0.25
                await place.reader.read(1.0)
                if len(place.waited) > len(pauses) + 1:
                    break
            pauses.append(place.now - before)
            before = place.now
        assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
        assert set(place.waited[1:]) == {SILENT_SECONDS}

    asyncio.run(story())


@pytest.mark.parametrize(
    "error", [ApiFailure("429 too many", 429), ApiFailure("500", 500), ApiFailure("expired", 410)]
)
def test_an_answer_that_is_no_use_is_not_asked_for_again_at_once(place, error):
    async def story():
        await place.failing(error)
        assert not place.reader.answering
        assert await place.reader.read(1.0) is None
        assert len(place.watch.lists) == 1

    asyncio.run(story())


def test_what_the_server_asks_for_is_kept_to(place):
    async def story():
        await place.failing(ApiFailure("429", 429, retry_after=30.0))
        place.now += 29.0
        assert await place.reader.read(1.0) is None
        assert len(place.watch.lists) == 1
        place.now += 1.0
        await place.failing()
        assert len(place.watch.lists) == 2

    asyncio.run(story())


def test_an_answer_that_comes_too_late_shows_that_the_server_answers(place):
    async def story():
        await place.failing()
        place.watch.answer()
        await until(lambda: place.reader.answering)
        reading = asyncio.ensure_future(place.reader.read(3.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        place.watch.answer()
        assert await reading == PODS
        assert place.waited == [1.0, 3.0]

    asyncio.run(story())


def test_a_sign_of_life_on_the_watch_gives_it_its_time_again(place):
    async def story():
        await place.failing()
        place.watch.heard_at = place.now = place.now + 10.0
        assert place.reader.answering
        await place.failing()
        assert place.waited == [1.0, 1.0]
        assert not place.reader.answering

    asyncio.run(story())


def test_a_late_failure_counts_once(place):
    async def story():
        await place.failing()
        again = place.reader._again
        place.watch.lists[0].set_exception(ApiFailure("reset", 0))
        await asyncio.sleep(0.02)
        assert (place.reader._failures, place.reader._again) == (1, again)

    asyncio.run(story())


def test_a_mistake_of_this_program_fails_no_admission_and_is_reported(place):
    async def story():
        reported = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: reported.append(context["exception"])
        )
        mistake = KeyError("pods")
        await place.failing(mistake)
        assert reported == [mistake]

    asyncio.run(story())


def test_an_admission_costs_little_while_the_server_hangs(server, client_of):
    async def story():
        async with client_of(connect=5, answer=5) as client:
            reader = PodReader(node_pods(client, "node-a", lambda: None))
            server.hanging = True
            assert await reader.read(0.3) is None
            asked = server.asked("GET", "/pods")
            for _ in range(10):
                assert await reader.read(1.0) is None
            assert server.asked("GET", "/pods") == asked
            server.hanging = False

    asyncio.run(story())
