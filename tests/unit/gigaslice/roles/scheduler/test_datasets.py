# SPDX-License-Identifier: Apache-2.0
"""Which nodes have what a pod asks for, and what that does to the choice of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.dataset.objects import CachedDataset, DatasetNode, DatasetObject
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.core.model import DATASET_DRIVER, CsiVolume, Pod
from gigaslice.roles.scheduler.datasets import DatasetIndex
from gigaslice.roles.scheduler.placer import Placer
from tests.fakes.clusters import bound, container, facts, pod

COCO, WIKI = "s3://b/coco", "s3://b/wiki"


def cached(source: str, digest: str = "d1", size: int = 100, **more: object) -> CachedDataset:
    return CachedDataset(f"{source}{digest}", source, digest, size, **more)  # type: ignore[arg-type]


def node(name: str, *datasets: CachedDataset, free: int = 1000) -> DatasetNode:
    return DatasetNode(name, 10_000, free, datasets)


def wanting(uid: str, slices: int = 4, **attributes: str) -> Pod:
    """A pod of a quarter of a GPU with a volume of these attributes; two underscores stand for a dot."""
    said = {key.replace("__", "."): value for key, value in attributes.items()}
    return replace(pod(uid, container(slices=slices)), volumes=(CsiVolume("data", DATASET_DRIVER, said),))


def index(*nodes: DatasetNode, affinity: str = "bytes") -> DatasetIndex:
    made = DatasetIndex(affinity)
    for one in nodes:
        made.put_node(one)
    return made


def shares(found: DatasetIndex, one: Pod, now: float = 0.0) -> dict[str, float]:
    requested = found.requested(one)
    assert requested is not None
    return dict(found.shares(requested, now))


def test_the_newest_version_of_a_source_is_the_one_that_counts():
    found = index(
        node("old", cached(COCO, "d1", last_used=10.0)),
        node("new", cached(COCO, "d2", last_used=20.0)),
        node("other", cached(WIKI)),
    )
    assert shares(found, wanting("p", source=COCO)) == {"new": 1.0}
    found.drop_node(node("new"))
    assert shares(found, wanting("p", source=COCO)) == {"old": 1.0}
    found.put_node(node("old"))
    assert shares(found, wanting("p", source=COCO)) == {}


def test_a_node_whose_service_was_switched_off_draws_no_pod_and_does_again_when_it_is_back():
    unix, found = 1_700_000_000.0, DatasetIndex()
    for now in range(0, 3000, 300):
        found.put_node(replace(node("a", cached(COCO)), renewed=unix + now), float(now), unix + now)
        if now < 900:
            found.put_node(
                replace(node("b", cached(COCO, "d2", last_used=9.0)), renewed=unix + now), now, unix
            )
    asks = wanting("p", source=COCO)
    assert found.requested(asks, 1490.0)[0].digest == "d2", "its version is the newest"
    assert found.shares(found.requested(asks, 1490.0), 1490.0) == {"b": 1.0}
    assert found.requested(asks, 1511.0)[0].digest == "d1"
    assert found.shares(found.requested(asks, 1511.0), 1511.0) == {"a": 1.0}
    old = replace(node("b", cached(COCO, "d2", last_used=9.0)), renewed=unix + 600)
    found.put_node(old, 1600.0, unix)  # the watch lists everything again
    assert found.shares(found.requested(asks, 1600.0), 1600.0) == {"a": 1.0}
    found.put_node(replace(old, renewed=unix + 1700), 1700.0, unix)
    assert found.shares(found.requested(asks, 1700.0), 1700.0) == {"b": 1.0}
    found.drop_node(old)
    assert found.shares(found.requested(asks, 1700.0), 1700.0) == {"a": 1.0}


def test_a_scheduler_that_starts_does_not_count_what_was_left_long_ago():
    found = DatasetIndex()
    found.put_node(replace(node("a", cached(COCO)), renewed=1_700_000_000.0 - 86400), 5.0, 1_700_000_000.0)
    assert shares(found, wanting("p", source=COCO)) == {}


def test_a_dataset_object_names_a_source_and_can_pin_a_version():
    found = index(node("a", cached(COCO, "d1")), node("b", cached(COCO, "d2", last_used=5.0)))
    made = DatasetObject("team", "coco", "u", SourceSpec.parse(COCO))
    found.put_object(made)
    assert shares(found, wanting("p", dataset="coco")) == {"b": 1.0}
    found.put_object(replace(made, check="pinned", digest="d1"))
    assert shares(found, wanting("p", dataset="coco")) == {"a": 1.0}
    assert shares(found, wanting("p", dataset="unknown")) == {}
    found.drop_object(made)
    assert shares(found, wanting("p", dataset="coco")) == {}


def test_a_dataset_of_another_namespace_counts_only_where_it_may_be_named():
    found = index(node("a", cached(COCO)))
    made = DatasetObject("shared", "coco", "u", SourceSpec.parse(COCO))
    found.put_object(made)
    assert shares(found, wanting("p", dataset="shared/coco")) == {}
    found.put_object(replace(made, allowed=frozenset({"team"})))
    assert shares(found, wanting("p", dataset="shared/coco")) == {"a": 1.0}


def test_half_of_it_is_half_and_what_is_on_its_way_counts():
    found = index(
        node("half", cached(COCO)),
        node("all", cached(COCO), cached(WIKI)),
        node("way", cached(WIKI, state="Fetching")),
    )
    both = wanting("p", source__coco=COCO, source__wiki=WIKI)
    assert shares(found, both) == {"half": 0.5, "all": 1.0, "way": 0.5}
    found.affinity = "paper"
    assert shares(found, both) == {"all": 1.0}
    found.affinity = "off"
    assert shares(found, both) == {}


@pytest.mark.parametrize("attributes", [{"sauce": COCO}, {}, {"source": "nowhere"}])
def test_a_volume_that_cannot_be_understood_has_no_preference(attributes):
    assert index(node("a", cached(COCO))).requested(wanting("p", **attributes)) is None


def test_local_mode_wants_nothing_of_the_cache():
    found = index(node("a", cached("nfs://s/x")))
    assert shares(found, wanting("p", source="nfs://s/x", mode="local")) == {}


def test_a_placement_counts_until_its_node_has_spoken_or_too_long_has_passed():
    found = index(node("a"))
    requested = found.requested(wanting("p", source=COCO))
    assert requested
    found.assume("p", "a", requested, 0.0)
    assert shares(found, wanting("q", source=COCO), 1.0) == {"a": 1.0}
    assert shares(found, wanting("q", source=COCO), 121.0) == {}
    found.assume("p", "a", requested, 0.0)
    found.forget("p")
    assert shares(found, wanting("q", source=COCO), 1.0) == {}


def placer(weight: float, affinity: str = "bytes", **used: int) -> Placer:
    """Nodes a to d with one GPU of 16 slices, some of which are in use."""
    made = Placer(ClusterState(), 2.0, DatasetIndex(affinity), weight)
    for name in "abcd":
        made.put_node(facts(name, 1), 0.0)
        if used.get(name):
            made.put_pod(bound(f"on-{name}", name, (0, used[name])), 0.0)
    return made


def first(made: Placer, one: Pod) -> str:
    made.filter(one, list("abcd"), 0.0)
    return made.prioritize(one, list("abcd"), 0.0)[0][0]


def test_among_equal_nodes_the_one_with_the_data_is_taken():
    assert first(placer(0.5), wanting("p", source=COCO)) == "a"
    made = placer(0.5)
    made.datasets.put_node(node("c", cached(COCO)))
    assert first(made, pod("plain", container(slices=4))) == "a"
    made = placer(0.5)
    made.datasets.put_node(node("c", cached(COCO)))
    assert first(made, wanting("q", source=COCO)) == "c"


def test_the_weight_decides_between_the_data_and_a_better_fit():
    fit = {"a": 12, "b": 8, "c": 4}  # a is left full by the pod; d would have to be opened
    for weight, taken in ((0.0, "a"), (0.2, "a"), (2.0, "d")):
        made = placer(weight, **fit)
        made.datasets.put_node(node("d", cached(COCO)))
        assert first(made, wanting("p", source=COCO)) == taken, weight


@pytest.mark.parametrize(
    ("affinity", "weight", "where", "taken"),
    [
        ("bytes", 1.0, "d", "a"),
        ("bytes", 2.0, "d", "d"),
        ("bytes", 0.6, "c", "c"),
        ("paper", 1.0, "d", "d"),
        ("paper", 0.6, "c", "c"),
    ],
)
def test_a_node_that_nothing_uses_draws_half_as_much(affinity, weight, where, taken):
    made = placer(weight, affinity, a=12, b=8, c=4)  # standings: a 1, b 3/4, c 1/2, d 1/4
    made.datasets.put_node(node(where, cached(COCO, state="Ready")))
    assert first(made, wanting("p", source=COCO)) == taken


def test_a_node_whose_pod_is_gone_is_unused_again():
    made = placer(1.0, a=12, b=8, c=4, d=4)
    made.datasets.put_node(node("d", cached(COCO)))
    assert first(made, wanting("p", source=COCO)) == "d"
    made = placer(1.0, a=12, b=8, c=4, d=4)
    made.datasets.put_node(node("d", cached(COCO)))
    made.drop_pod(bound("on-d", "d", (0, 4)), 0.0)
    assert first(made, wanting("p", source=COCO)) == "a"


def test_the_pods_of_one_job_stay_together_while_the_first_fetch_runs():
    made = placer(1.0)
    chosen = []
    for number in range(4):
        one = wanting(f"p{number}", slices=4, source=COCO)
        chosen.append(first(made, one))
    assert len(set(chosen)) == 1


def test_a_pod_that_is_gone_draws_no_other():
    made = placer(1.0, a=12)
    one = wanting("p", slices=8, source=COCO)
    assert first(made, one) == "b"
    made.drop_pod(one, 1.0)
    assert first(made, wanting("q", slices=4, source=COCO)) == "a"
