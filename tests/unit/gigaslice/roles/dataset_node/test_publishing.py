# SPDX-License-Identifier: Apache-2.0
"""What a node tells the cluster of its cache, and how often."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from gigaslice.core.dataset.objects import DatasetUse, parse_dataset_node
from gigaslice.kubeapi.client import ApiFailure
from gigaslice.roles.dataset_node.publishing import NodePublisher
from gigaslice.roles.dataset_node.store import VolumeSource
from gigaslice.roles.dataset_node.tasks.dataset_uses import DatasetUses
from gigaslice.roles.dataset_node.tasks.threads import Threads
from tests.unit.gigaslice.roles.controller.crd_schema import mistakes
from tests.unit.gigaslice.roles.dataset_node.store.conftest import KEYS, World


class Client:
    """Notes requests; `failure` is raised instead when it is set."""

    def __init__(self):
        self.sent, self.failure, self.check = [], None, lambda body: None

    async def request(self, method, path, query=None, body=None, content="", *, seconds=None):
        if self.failure is not None:
            raise self.failure
        self.check(body)
        self.sent.append((method, path, dict(query), body, content))


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def publisher(world):
    world.fetched, world.uses = {}, DatasetUses()
    threads = Threads()
    made = NodePublisher(
        Client(),
        "node-a",
        world.store,
        lambda: world.fetched,
        uses=world.uses,
        threads=threads,
        unix=lambda: 1_700_000_000.0,
    )
    made.sent = made._client.sent
    yield made
    threads.close()


def step(publisher, now):
    return asyncio.run(publisher.step(now))


def last(publisher):
    body = publisher.sent[-1][3]
    assert mistakes("datasetnodes", body) == []
    return parse_dataset_node(body)


def test_an_empty_cache_is_told_once(publisher):
    for now in range(0, 100, 5):
        step(publisher, float(now))
    ((method, path, query, body, content),) = publisher.sent
    assert (method, path) == ("PATCH", "/apis/gigaslice.io/v1alpha1/datasetnodes/node-a")
    assert query == {"fieldManager": "gigaslice-dataset", "force": "true"}
    assert content == "application/apply-patch+yaml"
    status = {"budgetBytes": 1000, "freeBytes": 1000, "datasets": []}
    assert body["status"] == {**status, "renewTime": "2023-11-14T22:13:20Z"}


def test_without_a_change_the_time_is_told_every_five_minutes_and_at_once_after_a_failure(publisher):
    for now in range(0, 3600, 5):
        publisher._unix = lambda now=now: 1_700_000_000 + now
        step(publisher, float(now))
    told = [parse_dataset_node(one[3]).renewed - 1_700_000_000 for one in publisher.sent]
    pauses = [after - before for before, after in itertools.pairwise(told)]
    assert min(pauses) >= 240 and max(pauses) <= 305 and 3600 - told[-1] <= 305
    publisher._client.failure = ApiFailure("no", 500)
    assert step(publisher, 4000.0) == 10.0
    publisher._client.failure = None
    step(publisher, 4010.0)
    assert len(publisher.sent) == len(told) + 1


def test_a_cluster_with_an_older_definition_gets_no_time_until_it_has_the_new_one(world, publisher):
    def older(body):
        if "renewTime" in body["status"]:
            text = "failed to create typed patch object (/a): .status.renewTime: field not declared in schema"
            raise ApiFailure(text, 500)

    publisher._client.check = older
    for now in range(0, 2000, 5):
        assert step(publisher, float(now)) == 5.0
    assert all("renewTime" not in one[3]["status"] for one in publisher.sent) and len(publisher.sent) < 12
    publisher._client.check = lambda body: None
    step(publisher, 2400.0)
    assert last(publisher).renewed


def test_what_is_there_and_who_has_it(world, publisher):
    world.fetch(1, 300)
    world.store.publish(world.volume("a", "team"), [VolumeSource(key=KEYS[1])])
    step(publisher, 0.0)
    (found,) = last(publisher).datasets
    assert (found.key, found.source, found.bytes, found.state) == (KEYS[1], "s3://bucket/1", 300, "Ready")
    assert found.in_use and found.pods == ("team/a",)
    world.store.remove("csi-a", world.volume("a").target)
    step(publisher, 5.0)
    (found,) = last(publisher).datasets
    assert not found.in_use and found.pods == ()


def test_by_which_datasets_a_copy_was_got_is_told_as_long_as_it_is_there(world, publisher):
    world.fetch(1, 300)
    world.uses.note(KEYS[1], "shared/coco", "s3://bucket/1")
    world.uses.note(KEYS[2], "team/other", "s3://bucket/2")
    named = (
        ("a", "team", "shared/coco"),
        ("b", "team", "own"),
        ("c", "evil", "s3://bucket/1"),
        ("d", "x", "/data"),
    )
    for pod, namespace, name in named:
        world.store.publish(world.volume(pod, namespace), [VolumeSource(key=KEYS[1], name=name)])
    step(publisher, 0.0)
    (found,) = last(publisher).datasets
    assert found.uses == (DatasetUse("shared/coco", ("team/a",)), DatasetUse("team/own", ("team/b",)))
    for pod, namespace, _ in named:
        volume = world.volume(pod, namespace)
        world.store.remove(volume.id, volume.target)
    step(publisher, 5.0)
    assert last(publisher).datasets[0].uses == (DatasetUse("shared/coco"),)
    assert not world.store.evict([KEYS[1]])
    step(publisher, 10.0)
    world.fetch(1, 300)
    step(publisher, 15.0)
    assert last(publisher).datasets[0].uses == (), "a later copy was got by others"


def test_a_copy_is_told_under_the_texts_that_pods_have_written_for_it(world, publisher):
    world.store.complete(world.store.begin_fetch(replace(world.metadata(1), requested="sftp://h/data")), "d")
    for text in ("s3://bucket/1", "sftp://h/data", *(f"sftp://h/{number}" for number in range(100))):
        world.uses.note(KEYS[1], "", text)
    step(publisher, 0.0)
    (found,) = last(publisher).datasets
    assert found.source == "s3://bucket/1"
    assert len(found.requested) == 8 and "s3://bucket/1" not in found.requested
    world.again()
    publisher._store, publisher._uses = world.store, DatasetUses()
    step(publisher, 5.0)
    assert last(publisher).datasets[0].requested == ("sftp://h/data",)


def test_a_fetch_is_told_when_it_begins_and_then_now_and_then(world, publisher):
    step(publisher, 0.0)
    world.store.begin_fetch(world.metadata(1, 300))
    step(publisher, 5.0)
    assert last(publisher).datasets == (), "a partial dataset that rests is nothing to count on"
    for now in range(10, 70, 5):
        world.fetched = {KEYS[1]: now}
        step(publisher, float(now))
    assert last(publisher).datasets[0].state == "Fetching"
    assert len(publisher.sent) <= 5, "one for the beginning, and one in thirty seconds"
    world.fetched = {}
    world.fetch(1, 300)
    step(publisher, 70.0)
    assert last(publisher).datasets[0].state == "Ready"


def test_a_server_that_fails_is_asked_again_with_what_is_true_then(world, publisher):
    publisher._client.failure = ApiFailure("no", 500)
    assert step(publisher, 0.0) == 10.0
    publisher._client.failure = ApiFailure("there is no such resource", 404)
    assert step(publisher, 10.0) == 300.0
    publisher._client.failure = None
    world.fetch(1, 300)
    step(publisher, 20.0)
    assert [one.key for one in last(publisher).datasets] == [KEYS[1]] and publisher.writes == 1
