# SPDX-License-Identifier: Apache-2.0
"""What runs with a claim may be lowered and raised again, and never beyond what the cluster has counted for it."""

from __future__ import annotations

import asyncio

import pytest

import vcuda
from agent.limits.manager import LimitChange, LimitsManager, ResizeOutcome
from gigaslice.core.limits.live_limits import ResizeRefusal
from tests.fakes.claims_of_node import claim, claiming, result
from tests.fakes.gpus import GIB, uuid
from vcuda import contract


@pytest.fixture
def manager(node):
    one = node.reserve(claim("c", result(0, 8, cores=30)), claiming("train"))
    asyncio.run(node.prepare(one))
    return LimitsManager(node.store, node.allocation_service, node.cluster, slice_bytes=GIB, interval=1.0)


def resize(manager, **change):
    return manager.resize(LimitChange(namespace="default", pod="train", **change))


def page(node):
    (allocation,) = node.store.table.allocations
    (gpu,) = vcuda.read_limits(node.store.dirs.path(allocation.id) / contract.LIMITS_FILE).gpus
    return gpu.memory_bytes // GIB, gpu.cores_percent


def test_it_shrinks_and_comes_back(node, manager):
    assert isinstance(resize(manager, memory=4 * GIB, cores=10), ResizeOutcome)
    assert page(node) == (4, 10)
    assert isinstance(resize(manager, memory=8 * GIB, cores=30), ResizeOutcome)
    assert page(node) == (8, 30)


@pytest.mark.parametrize("change", [{"memory": 9 * GIB}, {"cores": 31}, {"memory": 4 * GIB, "cores": 31}])
def test_it_does_not_grow(node, manager, change):
    refusal = resize(manager, **change)
    assert isinstance(refusal, ResizeRefusal)
    assert f"of {uuid(0)}" in refusal.detail and "make a larger claim" in refusal.detail
    assert page(node) == (8, 30)


def look(manager):
    """One round of its work."""
    manager.refresh()
    manager._follow_annotations()


def following(node, *annotations, cores=30):
    """A manager for a claim that follows its pods, which have these annotations."""
    pods = [claiming(f"train-{number}", annotations=each) for number, each in enumerate(annotations)]
    one = node.reserve(claim("c", result(0, 8, cores=cores), follows_pod=True), pods[0])
    assert not asyncio.run(node.prepare(one))[0].error
    for pod in pods:
        node.cluster.put(pod)
    node.following.follow()
    return LimitsManager(node.store, node.allocation_service, node.cluster, slice_bytes=GIB, interval=1.0)


@pytest.mark.parametrize("given", [30, 0])
def test_an_annotation_does_not_make_it_grow(node, given):
    manager = following(node, {"gigaslice.io/cores": str(given)}, cores=given)
    node.cluster.put(claiming("train-0", annotations={"gigaslice.io/cores": "80"}))
    look(manager)
    assert page(node) == (8, given)
    assert node.cluster.said("GPUResizeDeferred")
    node.cluster.put(claiming("train-0", annotations={"gigaslice.io/memory": "9"}))
    look(manager)
    assert page(node)[0] == 8


def test_an_annotation_lowers_a_share_and_raises_it_again(node):
    manager = following(node, {"gigaslice.io/cores": "30"})
    for cores, memory in ((10, 4), (20, 8), (30, 8)):
        annotations = {"gigaslice.io/cores": str(cores), "gigaslice.io/memory": str(memory)}
        node.cluster.put(claiming("train-0", annotations=annotations))
        look(manager)
        assert page(node) == (memory, cores)
    assert isinstance(manager.resize(LimitChange(namespace="default", pod="train-0", cores=5)), ResizeOutcome)
    look(manager)
    assert page(node) == (8, 5), "until the annotation changes"


def test_annotations_that_differ_are_not_followed_in_turn(node):
    """Nothing says which of the pods is meant, and each change would be written to the disk."""
    manager = following(
        node, {"gigaslice.io/priority": "best-effort"}, {"gigaslice.io/priority": "burstable"}
    )
    for _ in range(3):
        look(manager)
    (allocation,) = node.store.table.allocations
    assert (allocation.policy.priority, allocation.resizes) == ("best-effort", 0)
