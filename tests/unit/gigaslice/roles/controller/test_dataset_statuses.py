# SPDX-License-Identifier: Apache-2.0
"""What the status of a Dataset says."""

import asyncio

import pytest

from gigaslice.core.dataset.objects import CachedDataset, DatasetNode, DatasetUse
from gigaslice.kubeapi.client import ApiFailure
from gigaslice.roles.controller.dataset_statuses import DatasetStatuses, _parse, dataset_status
from gigaslice.roles.controller.work_queue import RateLimit
from tests.unit.gigaslice.roles.controller.crd_schema import mistakes


def watched(present=None, **spec):
    metadata = {"name": "coco", "namespace": "team", "uid": "u", "resourceVersion": "7", "generation": 3}
    return _parse(
        {"metadata": metadata, "spec": {"source": "s3://b/coco", **spec}, "status": dict(present or {})}
    )


def cached(digest="d1", source="s3://b/coco", by="team/coco", pods=(), **more):
    """A copy that PODS have by the name of the Dataset BY."""
    return CachedDataset(
        f"{source}{digest}",
        source,
        digest,
        100,
        pods=pods,
        uses=(DatasetUse(by, pods),) if by else (),
        **more,
    )


def status(one, **nodes):
    found = dataset_status(one, [DatasetNode(name, 1, 1, tuple(some)) for name, some in nodes.items()])
    assert mistakes("datasets", {"spec": {"source": "s3://b/coco"}, "status": found}) == []
    assert found.pop("observedGeneration") == 3
    return found


def test_nothing_has_it():
    assert status(watched(), a=[cached(source="s3://b/other")]) == {
        "phase": "Absent", "nodes": 0, "pods": 0, "holders": [],
    }  # fmt: skip


def test_it_is_on_its_way():
    found = status(
        watched(), a=[cached(state="Fetching", fetched=10)], b=[cached(state="Fetching", fetched=60)]
    )
    assert (found["phase"], found["fetchedBytes"], found["bytes"], found["nodes"]) == ("Fetching", 60, 100, 0)


def test_the_nodes_of_the_newest_version_and_everyone_who_has_any():
    found = status(
        watched(),
        a=[cached("d1", last_used=5.0, pods=("team/old",))],
        b=[cached("d2", last_used=9.0, pods=("team/new",))],
        c=[cached("d2", by="", last_used=1.0)],
    )
    assert (found["phase"], found["digest"], found["nodeNames"]) == ("Ready", "d2", ["b", "c"])
    assert (found["pods"], found["holders"]) == (2, ["team/new", "team/old"])


def test_a_pinned_version_is_the_only_one_that_counts():
    one = watched(check="pinned", digest="ab" * 32)
    assert status(one, a=[cached("cd" * 32, last_used=9.0)])["phase"] == "Absent"
    assert status(one, a=[cached("ab" * 32)])["nodeNames"] == ["a"]


@pytest.mark.parametrize("check", [{}, {"check": "never"}, {"check": "pinned", "digest": "ab" * 32}])
@pytest.mark.parametrize("state", ["Ready", "Fetching"])
@pytest.mark.parametrize("by", ["", "victim/coco", "team/coco2"])
def test_what_others_have_of_its_source_is_as_if_it_were_not_there(check, state, by):
    """A user who may write a Dataset would learn by it who caches what, where, and in which version."""
    one = watched(allowedNamespaces=["*"], **check)
    theirs = cached("ab" * 32, by=by, pods=("victim/train",), state=state, last_used=9.0)
    assert status(one, a=[theirs]) == status(one, a=[])
    ours = cached("cd" * 32, state=state)
    assert status(one, a=[theirs], b=[ours]) == status(one, b=[ours])


def test_a_version_that_was_got_by_its_name_counts_on_every_node_and_without_its_pods_names():
    found = status(watched(), a=[cached(pods=("team/p",))], b=[cached(by="other/x", pods=("other/q",))])
    assert (found["nodeNames"], found["holders"]) == (["a", "b"], ["team/p"])


def test_what_was_shown_stays_shown_until_the_dataset_is_changed():
    there = cached(by="other/x")
    shown = {"observedGeneration": 3, "digest": "d1"}
    assert status(watched(shown), a=[there])["nodeNames"] == ["a"]
    assert status(watched(shown), a=[])["phase"] == "Absent"
    assert status(watched({**shown, "observedGeneration": 2}), a=[there])["phase"] == "Absent"
    assert status(watched({"observedGeneration": 3}), a=[cached("", by="")])["phase"] == "Absent"


def test_an_invalid_one_says_why():
    found = status(watched(source="bucket/x"), a=[])
    assert found["phase"] == "Invalid" and "team/coco: source" in found["reason"]


def test_what_is_no_object_is_left_out():
    with pytest.raises(ValueError, match="without"):
        _parse({"metadata": {"name": "x"}})


class Api:
    """nodes: those that there are, or the status with which a request for one fails."""

    def __init__(self, nodes):
        self.nodes, self.deleted = nodes, []

    async def get(self, path, query=None):
        if isinstance(self.nodes, int):
            raise ApiFailure("no", self.nodes)
        if path not in {f"/api/v1/nodes/{one}" for one in self.nodes}:
            raise ApiFailure("not found", 404)
        return {}

    async def delete(self, path, body=None):
        self.deleted.append(path)
        return {}


@pytest.mark.parametrize(
    ("there", "known", "leads", "deleted"),
    [
        (["a"], ["a"], True, ["b"]),
        (["a", "b"], ["a"], True, []),  # the watch is behind
        (500, ["a"], True, []),
        (["a"], None, True, []),
        (["a"], ["a"], False, []),
    ],
)
def test_what_a_node_that_is_gone_has_left_is_deleted(there, known, leads, deleted):
    api = Api(there)
    made = DatasetStatuses(api, lambda: leads, RateLimit(100, 100), nodes=lambda: known)
    for name in "ab":
        made._put_node(DatasetNode(name))
    asyncio.run(made.delete_left())
    assert api.deleted == [f"/apis/gigaslice.io/v1alpha1/datasetnodes/{one}" for one in deleted]


UNIX = 1_700_000_000.0
PATH = "/apis/gigaslice.io/v1alpha1/datasetnodes/a"


class World:
    """A controller with one DatasetNode, and clocks that the test moves. stored: the object at the API server."""

    def __init__(self):
        self.now, self.leads, self.stored, self.deleted, self.patched = 0.0, True, None, [], []
        self.made = DatasetStatuses(
            self,
            lambda: self.leads,
            RateLimit(1e6, 100),
            nodes=lambda: ["a"],
            clock=lambda: self.now,
            unix=lambda: UNIX + self.now,
        )
        self.made._put(watched())
        self.tell()

    def tell(self, renewed=None, watch=True):
        """Its service writes."""
        node = DatasetNode("a", 1, 1, (cached(),), renewed=UNIX + self.now if renewed is None else renewed)
        metadata = {"name": "a", "uid": "u1", "resourceVersion": "9"}
        self.stored = {**node.document(), "metadata": metadata}
        if watch:
            self.made._put_node(node)

    def after(self, seconds):
        self.now += seconds
        self.made.note_stale()
        asyncio.run(self.made.delete_left())
        if self.made._changed:
            self.made._changed = False
            asyncio.run(self.made._write_all())
        return self.patched[-1]["status"]["phase"] if self.patched else None

    async def get(self, path, query=None):
        assert path == PATH
        if self.stored is None:
            raise ApiFailure("not found", 404)
        return self.stored

    async def patch(self, path, body, content):
        self.patched.append(body)
        return {}

    async def delete(self, path, body=None):
        self.deleted.append((path, body))
        return {}


def test_what_a_service_that_was_switched_off_has_left_counts_no_more_and_is_deleted_after_a_day():
    world = World()
    assert [world.after(300), world.after(590)] == ["Ready", "Ready"]
    assert world.after(30) == "Absent"
    world.after(85000)
    assert world.deleted == []
    world.leads = False
    world.after(1000)
    assert world.deleted == [], "another replica leads"
    world.leads = True
    world.after(60)
    assert world.deleted == [(PATH, {"preconditions": {"uid": "u1", "resourceVersion": "9"}})]


def test_a_service_that_comes_back_counts_at_once_and_nothing_of_it_is_deleted():
    world = World()
    assert [world.after(1000), world.after(100_000)][0] == "Absent"
    world.deleted.clear()
    world.tell(watch=False)  # the watch is behind
    world.after(60)
    assert world.deleted == []
    world.tell()
    assert world.after(1) == "Ready"
    world.after(800)
    assert world.deleted == []


def test_a_service_of_an_older_version_tells_no_time_and_its_object_stays():
    world = World()
    world.tell(renewed=0.0)
    assert world.after(10 * 86400) == "Ready" and world.deleted == []
