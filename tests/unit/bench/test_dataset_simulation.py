# SPDX-License-Identifier: Apache-2.0
"""The simulation's own rules: GPUs, caches and bytes add up after every event, and equal seeds give equal figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest

from tests.bench.dataset_cluster import Cluster, Copy, Node, Policy
from tests.bench.dataset_simulation import POLICIES, cells, compare, plot, policies_table, simulate
from tests.bench.dataset_workload import GB, Job, Shape, Workload, workload

SMALL = Shape(nodes=5, gpus=4, datasets=20, jobs=200, cache=0.2, sizes=((1, 0.6), (2, 0.2), (4, 0.2)))


def check(cluster: Cluster) -> None:
    """What must hold at any time."""
    running = [one for _, _, one in cluster.running]
    for node in cluster.nodes:
        here = [one for one in running if one.node is node]
        taken = [gpu for one in here for gpu in one.gpus]
        assert sorted([*taken, *node.idle]) == list(range(cluster.workload.shape.gpus))
        assert sum(copy.size for copy in node.copies.values()) <= node.cache
        read = [number for one in here for number in one.job.datasets if number not in one.past_cache]
        assert {number: copy.users for number, copy in node.copies.items() if copy.users} == {
            number: len(list(same)) for number, same in groupby(sorted(read))
        }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cache", [0.05, 0.2])
def test_gpus_caches_and_bytes_add_up(policy: str, cache: float) -> None:
    jobs = workload(1, replace(SMALL, cache=cache))
    cluster = Cluster(jobs, POLICIES[policy], check)
    done = cluster.run()
    assert sorted(one.job.number for one in done) == list(range(200))
    assert not cluster.waiting
    assert all(len(one.gpus) == one.job.gpus and one.job.arrival <= one.start <= one.data for one in done)
    starts = {one.job.number: one.start for one in done}
    assert sorted(starts, key=lambda number: (starts[number], number)) == list(range(200)), (
        "first come, first served"
    )
    figures = simulate(jobs, POLICIES[policy])
    assert figures.fetched == sum(one.fetched for one in done)
    assert figures.bytes_hit == 1 - figures.fetched / jobs.asked
    if cache == 0.05:
        assert figures.past_cache, "some datasets are larger than the cache"


def test_a_node_fetches_at_its_rate() -> None:
    """All bytes that came took their time, one after another, on every node."""
    jobs = workload(2, SMALL)
    done = Cluster(jobs, POLICIES["spread"]).run()
    for node in {one.node.name for one in done}:
        here = [one for one in done if one.node.name == node and one.fetched]
        assert here
        begun = min(one.start for one in here)
        assert (
            max(one.data for one in here) >= begun + sum(one.fetched for one in here) / jobs.shape.rate - 1e-6
        )


def two_nodes(*jobs: Job, cache: int = 100 * GB) -> Workload:
    shape = Shape(nodes=2, gpus=2, datasets=3, jobs=len(jobs), rate=GB)
    return Workload(shape, (40 * GB, 40 * GB, 60 * GB), cache, jobs)


def test_a_joined_fetch_is_a_hit_that_waits() -> None:
    first, second = Cluster(two_nodes(Job(0, 0, 1000, 1, (0,)), Job(1, 10, 1000, 1, (0,))), Policy()).run()
    assert (first.start, first.data, first.fetched) == (0, 40, 40 * GB)
    assert (second.node, second.start, second.data, second.fetched) == (first.node, 10, 40, 0)


@pytest.mark.parametrize(
    ("policy", "node", "fetched"),
    [
        (Policy(), "n001", 40 * GB),
        (Policy(pack=False), "n000", 0),
        (Policy(rule="paper", weight=1), "n000", 0),
        (Policy(rule="bytes", weight=1), "n000", 0),
        (Policy(rule="bytes", weight=0.25), "n001", 40 * GB),
    ],
)
def test_the_score_decides_between_the_fuller_node_and_the_one_with_the_data(
    policy: Policy, node: str, fetched: int
) -> None:
    """The first node is empty and has the dataset, a half of the second one's GPUs is in use."""
    jobs = two_nodes(Job(0, 0, 100, 2, (0,)), Job(1, 1, 9000, 1, (1,)), Job(2, 200, 10, 1, (0,)))
    last = next(one for one in Cluster(jobs, policy).run() if one.job.number == 2)
    assert (last.node.name, last.fetched) == (node, fetched)


def test_what_is_in_use_stays_and_the_rest_goes_the_oldest_first() -> None:
    def node() -> Node:
        copies = (
            Copy(0, 40, 0, users=1, last_used=1),
            Copy(1, 30, 0, last_used=3),
            Copy(2, 20, 0, last_used=2),
        )
        return Node("n", [], 100, {copy.number: copy for copy in copies})

    some, none = node(), node()
    assert some.make_room(20, 5)
    assert set(some.copies) == {0, 1}
    assert not none.make_room(51, 5)
    assert set(none.copies) == {0, 1, 2}


def test_equal_seeds_give_equal_figures() -> None:
    assert workload(1, SMALL) == workload(1, SMALL) != workload(2, SMALL)
    some = {name: POLICIES[name] for name in ("pack", "pack + bytes 0.5")}
    found = compare(some, SMALL, 2)
    assert found == compare(some, SMALL, 2)
    assert policies_table(found).count("\n") == 4
    assert cells(found["pack"], found["pack"])[3] == "1.00"
    assert plot(found) == plot(found)


def test_the_load_is_what_was_asked_for() -> None:
    jobs = workload(3, Shape(jobs=5000))
    asked = sum(job.seconds * job.gpus for job in jobs.jobs) / (400 * jobs.jobs[-1].arrival)
    assert abs(asked - 0.85) < 0.04


def test_affinity_fetches_less() -> None:
    """Small, but the direction that the page reports."""
    found = compare(
        {name: POLICIES[name] for name in ("pack", "pack + bytes 0.5")}, Shape(jobs=1500, nodes=20), 1
    )
    pack, affine = found["pack"][0], found["pack + bytes 0.5"][0]
    assert affine.fetched < 0.85 * pack.fetched
    assert affine.hit > pack.hit + 0.1
