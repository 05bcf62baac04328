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
