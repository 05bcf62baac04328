# SPDX-License-Identifier: Apache-2.0
"""What the answer to a binding means for the pod and its GPUs, with a client that answers by a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import ApiFailure, KubeAnswer
from gigaslice.roles.scheduler.binding import Binder
from gigaslice.roles.scheduler.placer import Placer
from gigaslice.roles.scheduler.protocol import BindRequest
from tests.fakes.clusters import bound, container, facts, pod
from tests.fakes.eventually import until

PATH = "/api/v1/namespaces/team/pods/pod-p"
Answer = ApiFailure | dict[str, Any]


class ScriptedClient:
    """Answers requests with POST and GET from two lists, the last one again and again; keeps what was sent."""

    def __init__(self, posts: list[Answer], gets: list[Answer]) -> None:
        self._answers = {"POST": posts, "GET": gets}
        self.sent: list[tuple[str, str, Any]] = []
        self.seconds: list[float | None] = []
        self.hold: asyncio.Event | None = None

    async def request(
        self, method: str, path: str, *, body: Any = None, seconds: float | None = None, once: bool = False
    ) -> KubeAnswer:
        assert once == (method == "POST"), "the scheduler has to know which bindings are on their way"
        self.sent.append((method, path, body))
        self.seconds.append(seconds)
        if self.hold is not None and method == "POST":
            await self.hold.wait()
        answers = self._answers[method]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ApiFailure):
            raise answer
        return KubeAnswer(200, json.dumps(answer).encode())

    @property
    def posts(self) -> list[Any]:
        return [body for method, _, body in self.sent if method == "POST"]


class Stage:
    """A binder with two nodes of one GPU, and the pod "p" that kube-scheduler has sent."""

    def __init__(self, *posts: Answer, gets: tuple[Answer, ...] = ()) -> None:
        self.placer = Placer(ClusterState(), 2.0)
        for name in ("a", "b"):
            self.placer.put_node(facts(name, 1), 0.0)
        self.pod = pod("p", container(slices=16))
        self.placer.filter(self.pod, ["a", "b"], 0.0)
        self.client = ScriptedClient(list(posts), list(gets))
        self.now = 1.0
        self.binder = Binder(self.client, self.placer, 10.0, lambda: self.now)  # type: ignore[arg-type]

    async def bind(self, node: str = "a", uid: str = "p") -> str:
        return await self.binder.bind(BindRequest("team", "pod-p", uid, node))

    @property
    def kept(self) -> dict[str, int]:
        return {state: count for state, count in self.placer.attempts.counts().items() if count}

    def shown(self, node: str = "", uid: str = "p", text: str = "", version: str = "") -> dict[str, Any]:
        """The pod as the API server shows it."""
        annotations = {ASSIGNMENT: text} if text else {}
        metadata = {"namespace": "team", "name": "pod-p", "uid": uid, "annotations": annotations}
        metadata |= {"resourceVersion": version} if version else {}
        limits = {"gigaslice.io/vgpu-memory": "16"}
        spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
        return {"metadata": metadata, "spec": {**spec, "nodeName": node} if node else spec}


def play(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))  # type: ignore[arg-type]


CREATED: dict[str, Any] = {"kind": "Status", "status": "Success"}


def test_one_write_carries_node_gpus_and_uid():
    stage = Stage(CREATED)

    async def story() -> None:
        assert await stage.bind() == ""
        ((method, path, body),) = stage.client.sent
        assert (method, path) == ("POST", f"{PATH}/binding")
        assert (body["target"]["name"], body["metadata"]["uid"]) == ("a", "p")
        shares = Assignment.decode(body["metadata"]["annotations"][ASSIGNMENT]).containers["main"]
        assert [(one.gpu, one.slices) for one in shares] == [("GPU-a-0", 16)]
        assert stage.kept == {"bound": 1}
        assert await stage.bind() == "", "a second one is answered without a write"
        assert await stage.bind("b") == "the pod is bound to node a"
        assert len(stage.client.posts) == 1

    play(story)
    assert stage.binder.outcomes == {"bound": 1}


def test_a_pod_without_gpus_is_bound_without_an_assignment():
    stage = Stage(CREATED)
    stage.placer.put_pod(Pod("team", "pod-p", "p", {}, (container(),)), 0.0)
    stage.placer._tried.clear()

    async def story() -> None:
        assert await stage.bind() == ""
        assert "annotations" not in stage.client.posts[0]["metadata"]

    play(story)


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_an_answer_that_nothing_was_written_releases_the_gpus(status: int):
    stage = Stage(ApiFailure(f"POST: {status} no", status))

    async def story() -> None:
        assert await stage.bind() == f"POST: {status} no"
        assert stage.kept == {} and len(stage.client.sent) == 1

    play(story)
    assert stage.binder.outcomes == {"failed": 1}


def test_a_request_that_was_not_sent_is_not_asked_about():
    stage = Stage(ApiFailure("no connection", 0, sent=False))

    async def story() -> None:
        assert await stage.bind() == "no connection"
        assert stage.kept == {} and len(stage.client.sent) == 1

    play(story)


@pytest.mark.parametrize("status", [409, 429, 500, 503, 0])
def test_what_became_of_it_is_read_from_the_pod(status: int):
    failure = ApiFailure("no clear answer", status)
    text = _assignment().encode()
    stage = Stage(failure, gets=(Stage(CREATED).shown("a", text=text),))

    async def story() -> None:
        assert await stage.bind() == "", "it was written after all"
        assert stage.kept == {}
        assert not stage.placer.filter(pod("q", container(slices=16)), ["a"], 2.0).names

    play(story)
    assert stage.binder.outcomes == {"bound": 1}


def _assignment() -> Assignment:
    stage = Stage(CREATED)
    chosen = stage.placer.begin_binding(stage.pod, "a", 1.0)
    assert isinstance(chosen, Assignment)
    return chosen


@pytest.mark.parametrize("status", [409, 500, 0])
def test_a_pod_that_is_gone_or_another_one_by_now_was_not_bound(status: int):
    failure = ApiFailure("no clear answer", status)
    for answer in (
        ApiFailure("not found", 404),
        Stage(CREATED).shown(uid="another"),
        Stage(CREATED).shown("b", "another"),
    ):
        stage = Stage(failure, gets=(answer,))

        async def story(stage: Stage = stage) -> None:
            assert await stage.bind() == "no clear answer"
            assert stage.kept == {}, "its GPUs are free"

        play(story)


@pytest.mark.parametrize("status", [409, 429])
def test_a_refusal_of_a_pod_that_is_unbound_is_an_answer(status: int):
    stage = Stage(ApiFailure("it is gated", status), gets=(Stage(CREATED).shown(),))

    async def story() -> None:
        assert await stage.bind() == "it is gated"
        assert stage.kept == {}

    play(story)


@pytest.mark.parametrize(
    "shown", [{}, {"metadata": {"name": "p"}}, ApiFailure("unread", 500), ApiFailure("unread", 0, sent=False)]
)
@pytest.mark.parametrize("status", [429, 500, 0])
def test_where_the_pod_cannot_be_read_its_gpus_are_kept_and_the_same_is_written(status: int, shown: Answer):
    stage = Stage(ApiFailure("no answer", status), CREATED, gets=(shown,))

    async def story() -> None:
        assert await stage.bind() == "no answer"
        assert stage.kept == {"doubtful": 1}
        assert await stage.bind("b") == "the pod is being bound to another node"
        assert len(stage.client.posts) == 1
        assert await stage.bind("a") == ""
        first, second = stage.client.posts
        assert first == second and stage.kept == {"bound": 1}

    play(story)
    assert stage.binder.outcomes == {"doubtful": 1, "refused": 1, "bound": 1}


def test_what_is_written_for_a_newer_version_of_the_pod_is_decided_anew():
    stage = Stage(ApiFailure("it has changed", 409), CREATED, gets=(Stage(CREATED).shown(version="2"),))
    stage.placer.put_node(facts("a", 2), 0.5)
    stage.placer.filter(replace(stage.pod, version="1"), ["a"], 0.6)
    stage.binder.lead_seconds = lambda: 10.0

    async def story() -> None:
        stage.client.hold = asyncio.Event()
        call = asyncio.create_task(stage.bind())
        await until(lambda: stage.client.posts)
        (body,) = stage.client.posts
        assert (body["metadata"]["resourceVersion"], gpu(body)) == ("1", 0)
        stage.placer.put_pod(bound("other", "a", (0, 16)), 1.5)  # by another replica
        stage.client.hold.set()
        assert await call == ""
        body = stage.client.posts[-1]
        assert (body["metadata"]["resourceVersion"], gpu(body)) == ("2", 1)
        assert stage.kept == {"bound": 1}

    def gpu(body: Any) -> int:
        ((share,),) = Assignment.decode(body["metadata"]["annotations"][ASSIGNMENT]).containers.values()
        return int(share.gpu[-1])

    play(story)


@pytest.mark.parametrize(("left", "seconds"), [(None, 10.0), (30.0, 10.0), (4.0, 4.0), (0.0, None)])
def test_no_binding_is_begun_that_could_end_after_the_lease(left: float | None, seconds: float | None):
    stage = Stage(CREATED)
    stage.binder.lead_seconds = None if left is None else lambda: left

    async def story() -> None:
        error = await stage.bind()
        if seconds is None:
            assert error == "this replica does not decide any more; the pod is tried again"
            assert stage.client.sent == [] and stage.kept == {}
        else:
            assert error == "" and stage.client.seconds == [seconds]

    play(story)


def test_an_unbound_pod_leaves_a_lost_answer_in_doubt():
    stage = Stage(ApiFailure("no answer", 0), gets=(Stage(CREATED).shown(),))

    async def story() -> None:
        await stage.bind()
        assert stage.kept == {"doubtful": 1}

    play(story)


def test_a_pod_that_is_elsewhere_already():
    other = bound("p", "b", (0, 16)).annotations[ASSIGNMENT]
    for node, text in (("b", other), ("a", other), ("a", "")):
        stage = Stage(ApiFailure("conflict", 409), gets=(Stage(CREATED).shown(node, text=text),))

        async def story(stage: Stage = stage, node: str = node) -> None:
            assert await stage.bind() == f"the pod is bound to node {node} already"
            assert stage.kept == {}

        play(story)


def test_a_pod_that_the_service_has_not_heard_of():
    stage = Stage(CREATED)

    async def story() -> None:
        assert await stage.bind(uid="another") == "the pod is not known yet; it is tried again"
        assert stage.client.sent == []

    play(story)


def test_a_node_that_is_gone_is_refused_with_the_sentence():
    stage = Stage(CREATED)
    stage.placer.drop_node(facts("a"), 0.5)

    async def story() -> None:
        assert await stage.bind() == "no gigaslice agent has published GPUs of this node"
        assert stage.client.sent == [] and stage.kept == {}

    play(story)


def test_a_pod_that_the_watch_shows_bound_is_not_written():
    stage = Stage(CREATED)
    stage.placer.put_pod(bound("p", "a", (0, 16)), 0.5)

    async def story() -> None:
        assert await stage.bind("a") == ""
        assert await stage.bind("b") == "the pod is bound to node a"
        assert stage.client.sent == []

    play(story)


@pytest.mark.parametrize("other", ["a", "b"])
def test_a_second_call_waits_for_the_first(other: str):
    stage = Stage(CREATED)

    async def story() -> None:
        stage.client.hold = asyncio.Event()
        first, second = (asyncio.create_task(stage.bind(node)) for node in ("a", other))
        await until(lambda: stage.client.posts)
        await asyncio.sleep(0.01)
        assert len(stage.client.posts) == 1
        stage.client.hold.set()
        assert await first == ""
        assert await second == ("" if other == "a" else "the pod is bound to node a")
        assert len(stage.client.posts) == 1

    play(story)


def test_a_second_call_for_another_node_is_tried_where_the_first_failed():
    stage = Stage(ApiFailure("422", 422), CREATED)

    async def story() -> None:
        stage.client.hold = asyncio.Event()
        first, second = (asyncio.create_task(stage.bind(node)) for node in ("a", "b"))
        await until(lambda: stage.client.posts)
        stage.client.hold.set()
        assert (await first, await second) == ("422", "")
        assert [body["target"]["name"] for body in stage.client.posts] == ["a", "b"]

    play(story)


def test_the_write_goes_on_when_its_caller_has_given_up():
    stage = Stage(CREATED)

    async def story() -> None:
        stage.client.hold = asyncio.Event()
        call = asyncio.create_task(stage.bind())
        await until(lambda: stage.client.posts)
        call.cancel()
        await asyncio.wait({call})
        assert stage.kept == {"binding": 1}
        stage.client.hold.set()
        await stage.binder.settle(5)
        assert stage.kept == {"bound": 1}

    play(story)


def test_a_mistake_of_the_program_leaves_the_binding_in_doubt():
    stage = Stage(CREATED)

    async def broken(*_: object, **__: object) -> KubeAnswer:
        raise RuntimeError("a mistake")

    async def story() -> None:
        stage.client.request = broken  # type: ignore[method-assign,assignment]
        with pytest.raises(RuntimeError):
            await stage.bind()
        assert stage.kept == {"doubtful": 1}

    play(story)
