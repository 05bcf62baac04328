# SPDX-License-Identifier: Apache-2.0
"""The publisher of slices, over an API server that loses what real ones lose."""

from __future__ import annotations

import asyncio
import copy
import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agent.apiserver import find_access
from agent.apiserver.node_client import node_client
from agent.claims import slices
from agent.claims.slice_source import SliceContent
from agent.claims.slices import SlicePublisher, SliceTimes
from gigaslice.core.claims.slices import PublishedGpu
from gigaslice.core.model import Topology
from tests.fakes.eventually import run_beside, until
from tests.fakes.gpus import make_gpu, uuid
from tests.fakes.kubeapi import NODE, ApiServer, Fault

NAME = f"{NODE}-gigaslice"
QUICK = SliceTimes(together=0.01, settled=0.3, jitter=0.0, look=0.05, pause=0.01, refused=0.2)


@dataclass
class Content:
    """What a test wants published."""

    content: SliceContent
    watchers: list[Any] = field(default_factory=list)

    def now(self) -> SliceContent:
        return self.content

    def watch(self, changed: Any) -> Any:
        self.watchers.append(changed)
        return lambda: self.watchers.remove(changed)

    def set(self, **changes: Any) -> None:
        self.content = replace(self.content, **changes)
        for changed in self.watchers:
            changed()

    def strike(self, index: int, word: str = "xid-79") -> None:
        """Makes a GPU unhealthy; without a word it recovers."""
        gpus = tuple(
            replace(gpu, unhealthy=word) if gpu.gpu.index == index else gpu for gpu in self.content.gpus
        )
        self.set(gpus=gpus)


def content_of(count: int = 3, free: tuple[int, ...] = (24, 24, 24)) -> SliceContent:
    gpus = tuple(PublishedGpu(make_gpu(index)) for index in range(count))
    uuids = tuple(uuid(index) for index in range(count))
    return SliceContent(gpus, Topology.flat(count), uuids, dict(zip(uuids, free, strict=False)))


@pytest.fixture
def server():
    with ApiServer(NODE) as api_server:
        yield api_server


@pytest.fixture
def content():
    return Content(content_of())


@pytest.fixture
def publishing(server, tmp_path, content):
    """Runs a story beside a publisher, which it is given."""

    def run(story: Any, times: SliceTimes = QUICK, **options: Any) -> None:
        async def main() -> None:
            access, _ = find_access(server.kubeconfig(tmp_path), "")
            assert access is not None
            async with node_client(access) as client:
                publisher = SlicePublisher(client, NODE, content, times=times, pause=0.01, **options)
                await run_beside(publisher.run(), story(publisher))
            assert not content.watchers

        asyncio.run(main())

    return run


def stored(server: ApiServer) -> dict[str, Any] | None:
    return copy.deepcopy(server.named("resourceslices").get(NAME))


def indices(server: ApiServer) -> list[int]:
    document = stored(server)
    assert document is not None
    return [device["attributes"]["index"]["int"] for device in document["spec"].get("devices", [])]


def generation(server: ApiServer) -> int:
    document = stored(server)
    return 0 if document is None else document["spec"]["pool"]["generation"]


def real_writes(server: ApiServer) -> int:
    """Requests that change slices."""
    return sum(
        method in ("POST", "PUT", "DELETE") and "resourceslices" in target and "dryRun" not in target
        for method, target in server.requests
    )


def test_the_node_is_published_and_belongs_to_its_node(server, publishing):
    async def story(publisher):
        await until(lambda: publisher.current)

    publishing(story)
    document = stored(server)
    assert document["spec"]["driver"] == "gigaslice.io"
    assert document["spec"]["nodeName"] == NODE
    assert document["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert indices(server) == [0, 1, 2]
    node = server.get("nodes", NODE)["metadata"]
    assert document["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["uid"], "controller": True}
    ]
    assert real_writes(server) == 1


def test_what_is_there_is_not_written_again_and_stays_at_the_end(server, publishing):
    """As after a hand-over: the next agent finds it as it should be, whatever times a server adds to taints."""

    async def story(publisher):
        await until(lambda: publisher.current)
        await asyncio.sleep(0.2)

    publishing(story)
    publishing(story)
    assert real_writes(server) == 1 and generation(server) == 1


def test_times_that_a_server_adds_to_taints_are_no_difference(server, publishing, content):
    content.strike(1)

    async def story(publisher):
        await until(lambda: publisher.current)

    publishing(story)
    document = stored(server)
    document["spec"]["devices"][1]["taints"][0]["timeAdded"] = "2026-11-22T10:00:00Z"
    server.put("resourceslices", document)
    publishing(story)
    assert real_writes(server) == 1


def test_health_is_written_at_once(server, publishing, content):
    async def story(publisher):
        await until(lambda: publisher.current)
        content.strike(1)
        await until(lambda: "taints" in stored(server)["spec"]["devices"][1])
        content.strike(1, "")
        await until(lambda: "taints" not in stored(server)["spec"]["devices"][1])
        await until(lambda: publisher.writes == 3)

    publishing(story, replace(QUICK, settled=600.0, look=600.0))
    assert generation(server) == 3


def test_changes_in_quick_succession_are_few_writes(server, publishing, content):
    async def story(publisher):
        await until(lambda: publisher.current)
        begun = time.monotonic()
        for number in range(100):
            content.strike(number % 3, f"xid-{number}")
            await asyncio.sleep(0.01)
        await until(lambda: publisher.current and generation(server) > 1)
        assert publisher.writes <= 5 + (time.monotonic() - begun)

    publishing(story)
    words = [device["taints"][0]["value"] for device in stored(server)["spec"]["devices"]]
    assert words == ["xid-99", "xid-97", "xid-98"]


def test_an_order_that_chooses_alike_is_not_written(server, publishing, content):
    async def story(publisher):
        await until(lambda: publisher.current)
        content.set(free={uuid(0): 24, uuid(1): 0, uuid(2): 0}, order=(uuid(0), uuid(2), uuid(1)))
        await asyncio.sleep(0.8)
        assert publisher.current

    publishing(story)
    assert generation(server) == 1 and indices(server) == [0, 1, 2]


def test_an_order_that_chooses_otherwise_is_written_when_the_last_write_is_long_ago(
    server, publishing, content
):
    now, looks = [100.0], 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return now[0]

    async def story(publisher):
        await until(lambda: publisher.current)
        content.set(order=(uuid(2), uuid(1), uuid(0)))
        now[0] += 0.9 * QUICK.settled
        enough = looks + 10  # several of its rounds
        await until(lambda: looks >= enough)
        assert indices(server) == [0, 1, 2] and not publisher.current
        now[0] += 0.2 * QUICK.settled
        await until(lambda: indices(server) == [2, 1, 0])

    publishing(story, clock=clock)
    assert generation(server) == 2


@pytest.mark.parametrize("drawn", [0.0, 1.0])
def test_a_new_order_waits_for_ten_seconds_and_up_to_three_more_also_after_a_start(
    server, publishing, content, monkeypatch, drawn
):
    """Every write wakes all pods of the cluster that claims were refused to."""
    monkeypatch.setattr(slices.random, "uniform", lambda least, most: least + drawn * (most - least))
    now, pause = [1000.0], 10.0 + 3.0 * drawn
    times = replace(SliceTimes(), together=0.01, look=0.05)

    async def story(publisher):
        for number, order in enumerate(((2, 1, 0), (1, 0, 2)), start=1):
            content.set(order=tuple(uuid(index) for index in order))
            now[0] += pause - 0.25
            await asyncio.sleep(0.3)
            assert indices(server) != list(order)
            now[0] += 0.5
            await until(lambda number=number: publisher.writes == number)  # which knows then when that was
            assert indices(server) == list(order)

    publishing(lambda publisher: until(lambda: publisher.current))
    publishing(story, times, clock=lambda: now[0])
    assert generation(server) == 3


def test_a_change_of_health_takes_the_new_order_with_it(server, publishing, content):
    async def story(publisher):
        await until(lambda: publisher.current)
        content.set(order=(uuid(2), uuid(1), uuid(0)))
        content.strike(0)
        await until(lambda: indices(server) == [2, 1, 0])

    publishing(story, replace(QUICK, settled=600.0))
    assert generation(server) == 2


def test_a_slice_that_the_kubelet_has_deleted_is_published_again(server, publishing):
    async def story(publisher):
        await until(lambda: publisher.current)
        for number in (2, 3):
            server.delete("resourceslices", NAME)
            await until(lambda number=number: generation(server) == number)
        await until(lambda: publisher.current)

    publishing(story)
    assert indices(server) == [0, 1, 2]


def test_a_registration_has_it_looked_where_no_watch_tells(server, publishing):
    """A kubelet that starts deletes the slices of its node; the watch may hang at that moment."""

    async def story(publisher):
        await until(lambda: publisher.current)
        lists = server.asked("GET", "limit=")
        await asyncio.sleep(0.2)
        assert server.asked("GET", "limit=") == lists
        publisher.registered()
        await until(lambda: server.asked("GET", "limit=") == lists + 1)

    publishing(story)


def test_what_another_has_written_is_put_right(server, publishing):
    async def story(publisher):
        await until(lambda: publisher.current)
        document = stored(server)
        document["spec"]["devices"] = document["spec"]["devices"][:1]
        document["spec"]["pool"]["generation"] = 40
        document["metadata"]["labels"] = {"kept": "yes"}
        server.put("resourceslices", document)
        await until(lambda: indices(server) == [0, 1, 2])

    publishing(story)
    assert generation(server) == 41
    assert stored(server)["metadata"]["labels"] == {"kept": "yes"}


def test_slices_of_other_nodes_and_drivers_are_left_alone(server, publishing):
    async def story(publisher):
        await until(lambda: publisher.current)
        mine = stored(server)
        for name, changes in (("other", {"nodeName": "other"}), ("nic", {"driver": "nic.example.com"})):
            server.put(
                "resourceslices", {**mine, "metadata": {"name": name}, "spec": {**mine["spec"], **changes}}
            )
        publisher.withdraw()
        await until(lambda: stored(server) is None)

    publishing(story)
    assert sorted(server.named("resourceslices")) == ["nic", "other"]


def test_withdrawn_and_offered_again(server, publishing):
    async def story(publisher):
        await until(lambda: publisher.current)
        publisher.withdraw()
        await until(lambda: stored(server) is None)
        await until(lambda: publisher.current)
        publisher.offer()
        await until(lambda: stored(server) is not None)

    publishing(story)
    assert generation(server) == 2


def test_what_was_left_by_an_earlier_agent_is_deleted_where_claims_are_not_offered(server, publishing):
    async def offering(publisher):
        await until(lambda: publisher.current)

    publishing(offering)

    async def story(publisher):
        publisher.withdraw()
        await until(lambda: stored(server) is None)

    publishing(story)


def test_a_server_that_drops_what_is_shared_gets_nothing(server, publishing):
    """With the fields gone every device would be given to one claim as a whole, without a word of how much of it."""
    server.device_rules.drops_sharing = True

    async def story(publisher):
        await until(lambda: publisher.problem)
        assert "DRAConsumableCapacity" in publisher.problem
        await asyncio.sleep(0.5)
        assert publisher.problem and not publisher.current
        server.device_rules.drops_sharing = False
        await until(lambda: publisher.current)
        assert publisher.problem == ""

    publishing(story)
    assert real_writes(server) == 1


def test_a_server_that_begins_to_drop_what_is_shared_loses_the_slice(server, publishing, content):
    async def story(publisher):
        await until(lambda: publisher.current)
        server.device_rules.drops_sharing = True
        content.strike(0)
        await until(lambda: publisher.problem)
        await until(lambda: stored(server) is None)

    publishing(story)


def test_where_taints_are_dropped_an_unhealthy_gpu_is_left_out(server, publishing, content):
    server.device_rules.drops_taints = True
    content.strike(1)

    async def story(publisher):
        await until(lambda: publisher.current)
        assert indices(server) == [0, 2]
        content.strike(1, "")
        await until(lambda: indices(server) == [0, 1, 2])
        content.strike(2)
        await until(lambda: indices(server) == [0, 1])
        assert publisher.problem == ""

    publishing(story)
    sent = [body for method in ("POST", "PUT") for body in server.sent(method, "resourceslices")]
    bare = [body for body in sent if any("taints" in device for device in body["spec"]["devices"])]
    assert len(bare) == 1, "tried once, and without effect"


def test_a_node_without_anything_to_give_has_an_empty_pool(server, publishing, content):
    content.content = replace(
        content.content, gpus=tuple(replace(gpu, other_bytes=24 << 30) for gpu in content.content.gpus)
    )

    async def story(publisher):
        await until(lambda: publisher.current)
        assert indices(server) == []
        content.set(gpus=content_of().gpus)
        await until(lambda: indices(server) == [0, 1, 2])

    publishing(story)


def test_many_gpus_are_written_as_one_pool(server, publishing, content):
    content.content = content_of(130, (24,) * 130)

    async def story(publisher):
        await until(lambda: publisher.current)
        assert len(server.named("resourceslices")) == 3
        content.set(gpus=content_of(2).gpus, topology=Topology.flat(2))
        await until(lambda: len(server.named("resourceslices")) == 1)

    publishing(story)
    assert stored(server)["spec"]["pool"] == {"name": NODE, "generation": 2, "resourceSliceCount": 1}


@pytest.mark.parametrize(("status", "remedy"), [(403, "the chart gives it that right"), (422, "tried again")])
def test_a_refusal_is_a_problem_until_it_is_over(server, publishing, status, remedy):
    server.faults.append(Fault("POST", "/resourceslices", status, count=2))

    async def story(publisher):
        await until(lambda: publisher.problem)
        assert remedy in publisher.problem
        await until(lambda: publisher.current)
        assert publisher.problem == "" and publisher.failures == 2

    publishing(story)


def test_a_server_without_slices_is_a_problem(server, publishing):
    server.faults.append(Fault("GET", "/resourceslices", 404, count=1000))
    server.faults.append(Fault("POST", "/resourceslices", 404, count=1000))

    async def story(publisher):
        await until(lambda: "Kubernetes 1.34" in publisher.problem)

    publishing(story)


def test_a_server_that_restarts_is_no_problem(server, publishing):
    server.faults.append(Fault("POST", "/resourceslices", 503, count=2))
    problems = []

    async def story(publisher):
        while not publisher.current:
            problems.append(publisher.problem)
            await asyncio.sleep(0.001)

    publishing(story)
    assert set(problems) == {""}


@pytest.mark.parametrize("gone", [True, False])
def test_a_slice_that_has_changed_unseen_is_read_and_written(server, publishing, content, gone):
    """The watch may be behind what others have done, such as the agent before this one."""

    async def story(publisher):
        await until(lambda: publisher.current)
        server.faults.append(Fault("GET", "fieldSelector", 503, count=1000))
        server.drop_watches()
        if gone:
            server.delete("resourceslices", NAME)
        else:
            server.change("resourceslices", NAME, {"metadata": {"labels": {"kept": "yes"}}})
        content.strike(0)
        await until(lambda: stored(server) and "taints" in stored(server)["spec"]["devices"][0])

    publishing(story)
    assert stored(server)["metadata"].get("labels") == (None if gone else {"kept": "yes"})
