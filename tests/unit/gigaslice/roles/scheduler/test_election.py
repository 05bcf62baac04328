# SPDX-License-Identifier: Apache-2.0
"""For how long a service without calls keeps its lease, and what a takeover does, with a lease that a test steers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from gigaslice.kubeapi.client import ApiFailure, KubeAnswer
from gigaslice.kubeapi.lease import Inherited
from gigaslice.roles.scheduler.election import Election, ElectionTimes
from tests.fakes.clusters import container, pod


class SteeredLease:
    """Stands for the Leader: holds the lease as the test says."""

    def __init__(self) -> None:
        self.leading = True
        self.inherited = Inherited.NOTHING
        self.takeovers = 1
        self.holder = "me"
        self.until: list[int] = []
        """What `caught_up` was called with."""

    @property
    def seconds_left(self) -> float:
        return 10.0 if self.leading else 0.0

    def caught_up(self, takeovers: int) -> None:
        self.until.append(takeovers)
        self.inherited = Inherited.NOTHING


class Stage:
    """An election whose parts note what happens in `story`."""

    def __init__(self, client: object = None) -> None:
        self.now = 0.0
        self.busy = self.clean = False
        self.connected = True
        self.pods: list[Any] = []
        self.story: list[object] = []
        self.election = Election(
            client,  # type: ignore[arg-type]
            ("ns", "lease"),
            "me",
            busy=lambda: self.busy,
            clean=lambda: self.clean,
            refresh=self._refresh,
            unbound=lambda: list(self.pods),
            put=lambda document: self.story.append(("put", document)),
            overtaken=lambda: self.story.append("overtaken"),
            connected=lambda: self.connected,
            times=ElectionTimes(again=0.01),
            clock=lambda: self.now,
        )
        self.leader = self.election._leader

    async def _refresh(self) -> None:
        self.story.append("refresh")

    def steered(self) -> SteeredLease:
        """Puts a lease in place that the test steers."""
        found = SteeredLease()
        self.election._leader = found  # type: ignore[assignment]
        return found


def play(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))  # type: ignore[arg-type]


def test_a_lease_is_kept_between_two_attempts_of_a_pod_and_given_back_before_a_successor_comes():
    """kube-scheduler tries a failing pod every 10 s at least, and its own lease lasts 15 s.

    With 5 s, and an API server that takes seconds for each answer, the lease was given back before the takeover was
    complete, at every attempt: the last pod of a burst was never bound.
    """
    stage = Stage()
    assert not stage.election._wanted(), "nothing has called yet"
    stage.election.decides()
    for stage.now, wanted in ((0.0, True), (11.5, True), (13.0, False)):
        assert stage.election._wanted() is wanted, stage.now


def test_a_lease_is_given_back_soon_after_its_kube_scheduler_has_ended():
    """One that is restarted alone gives its own lease back: its successor is there at once."""
    stage = Stage()
    stage.election.decides()
    for stage.connected in (True, False):
        for stage.now in (1.5, 2.5):
            assert stage.election._wanted() is (stage.connected or stage.now < 2)
    stage.leader.inherited = Inherited.WRITES
    assert stage.election._wanted(), "it was answered 503, and closes its connection for that"


def test_a_lease_whose_doubt_has_not_been_dealt_with_is_not_given_back():
    """Else the next holder would inherit less than the doubt, and would not change the unbound pods."""
    stage = Stage()
    for stage.clean in (False, True):
        for inherited in Inherited:
            stage.leader.inherited = inherited
            assert stage.leader._clean() is (stage.clean and inherited is not Inherited.DOUBT)


class ScriptedClient:
    """Answers each write of a pod's status by what the test says of the pod."""

    def __init__(self, **answers: ApiFailure) -> None:
        self.answers = answers
        self.sent: list[str] = []

    async def request(self, method: str, path: str, **_: object) -> KubeAnswer:
        name = path.split("/")[-2]
        self.sent.append(name)
        if name in self.answers:
            raise self.answers[name]
        return KubeAnswer(200, b'{"name": "%s"}' % name.encode())


def takeover(*pods: str, **answers: ApiFailure) -> tuple[Stage, SteeredLease, ScriptedClient]:
    """One that has to change these pods."""
    client = ScriptedClient(**answers)
    stage = Stage(client)
    stage.pods = [pod(one, container(slices=1)) for one in pods]
    stage.pods = [replace(one, name=one.uid) for one in stage.pods]
    lease = stage.steered()
    lease.inherited = Inherited.DOUBT
    return stage, lease, client


def test_what_a_write_shows_is_taken_and_only_pods_that_are_still_unbound_are_written_again():
    stage, lease, client = takeover("a", "b", "c", b=ApiFailure("500", 500), c=ApiFailure("500", 500))

    def unbound() -> list[Any]:
        if client.sent == ["a", "b", "c"]:  # between the two rounds
            stage.pods = [one for one in stage.pods if one.uid != "c"]  # bound meanwhile, by the watch
            del client.answers["b"]
        return list(stage.pods)

    stage.election._unbound = unbound
    play(lambda: stage.election._catch_up_once(1, Inherited.DOUBT))
    assert client.sent == ["a", "b", "c", "b"]
    assert stage.story == ["refresh", ("put", {"name": "a"}), ("put", {"name": "b"}), "overtaken"]
    assert lease.until == [1]


@pytest.mark.parametrize("what", ["takeovers", "leading"])
def test_a_takeover_that_another_one_has_followed_is_not_completed(what: str):
    stage, lease, _ = takeover("a", a=ApiFailure("500", 500))

    async def story() -> None:
        work = asyncio.create_task(stage.election._catch_up_once(1, Inherited.DOUBT))
        await asyncio.sleep(0.005)
        setattr(lease, what, {"takeovers": 2, "leading": False}[what])
        await work

    play(story)
    assert lease.until == [] and stage.story == ["refresh"]


def test_a_pod_that_cannot_be_written_is_left_out_when_older_bindings_are_over():
    stage, lease, client = takeover("a", "b", b=ApiFailure("422", 422))

    async def story() -> None:
        for stage.now, leading in ((0.0, False), (80.0, False), (91.0, True)):
            lease.leading = leading  # the time counts on while the lease is not needed
            await stage.election._catch_up_once(1, Inherited.DOUBT)
            assert lease.until == ([1] if leading else [])

    play(story)
    assert stage.story[-2:] == ["refresh", "overtaken"], "what was written meanwhile counts"
    assert client.sent == ["a", "b"] * 3


def test_a_lease_is_kept_while_bindings_are_written():
    stage = Stage()
    stage.election.decides()
    stage.now = 20.0
    for stage.busy in (True, False):
        assert stage.election._wanted() is stage.busy


def test_a_request_has_the_lease_taken_at_once(monkeypatch: pytest.MonkeyPatch):
    """Not at the next attempt: the first pod after a pause would be refused."""
    stage = Stage()
    hurried: list[bool] = []

    def take() -> None:
        hurried.append(True)
        stage.leader._until = 10.0

    monkeypatch.setattr(stage.leader, "hurry", take)

    async def story() -> None:
        assert await stage.election.refusal() is None
        assert await stage.election.refusal() is None

    play(story)
    assert hurried == [True]


def test_a_takeover_ends_the_doubts_when_every_pod_has_been_changed():
    stage = Stage()
    lease = stage.steered()

    async def story() -> None:
        for inherited in (Inherited.WRITES, Inherited.DOUBT):
            lease.inherited = inherited
            await stage.election._catch_up_once(1, inherited)
            assert stage.story == ["refresh", "overtaken"] and lease.until == [1]
            stage.story.clear()
            lease.until.clear()

    play(story)
