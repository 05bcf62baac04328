"""For how long a service without calls keeps its lease, and what a takeover does, with a lease that a test steers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gigaslice.kubeapi.lease import Inherited
from gigaslice.scheduler.election import Election


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


def test_a_lease_whose_doubt_has_not_been_dealt_with_is_not_given_back():
    """Else the next holder would inherit less than the doubt, and would not change the unbound pods."""
    stage = Stage()
    for stage.clean in (False, True):
        for inherited in Inherited:
            stage.leader.inherited = inherited
            assert stage.leader._clean() is (stage.clean and inherited is not Inherited.DOUBT)


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
