# SPDX-License-Identifier: Apache-2.0
"""What of the node's GPUs is published: what device plugins have given out is no capacity, and what claims have is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.claims.slice_source import SliceSource
from agent.inventory.holder import InventoryHolder
from gigaslice.core.allocation.consumer import Consumer, ContainerRef
from gigaslice.core.allocation.table import Allocation, AllocationOptions, AllocationTable, Hold
from gigaslice.core.claims.origin import ClaimDevice, ClaimOrigin
from gigaslice.core.placement import Policy
from tests.fakes.gpus import GIB, uuid
from tests.fakes.nodes import LIBRARY, allocation, inventory, table, whole_allocation


class TableHolder:
    """The allocation table alone."""

    def __init__(self) -> None:
        self.table = AllocationTable()
        self.watchers: list[object] = []


def of_claim(number: int, gpu: int, slices: int) -> Allocation:
    device = ClaimDevice("gpu", "node-a", f"gpu-{gpu}", "share", uuid(gpu))
    consumer = Consumer(ContainerRef("team-a", "train", "main"), "pod-uid")
    return Allocation(
        id=f"{number:032x}",
        number=number,
        created=1700000000.0,
        holds=(Hold(uuid(gpu), slices * GIB, GIB),),
        library=LIBRARY,
        origin=ClaimOrigin("team-a", "vgpu", f"uid-{number}", ("gpu",), (device,), (consumer,), "boot"),
    )


@pytest.fixture
def holder():
    return InventoryHolder(inventory(gpus=3, unhealthy=(2,)))


@pytest.fixture
def store():
    return TableHolder()


@pytest.fixture
def source(store, holder):
    return SliceSource(
        store,
        holder,
        Policy.GAIA,
        fault=lambda gpu: "xid-79" if gpu == uuid(2) else "",
        labels={"": {"rack": "r7"}, uuid(1): {"tier": "gold"}},
        watch=holder.watch,
        driver_limits=lambda: "cgroup",
    )


def test_an_idle_node(source):
    content = source.now()
    assert [(gpu.gpu.uuid, gpu.unhealthy, gpu.other_bytes, gpu.other_cores) for gpu in content.gpus] == [
        (uuid(0), "", 0, 0),
        (uuid(1), "", 0, 0),
        (uuid(2), "xid-79", 0, 0),
    ]
    assert content.gpus[0].labels == {"rack": "r7", "driverLimits": "cgroup"}
    assert content.gpus[1].labels == {"rack": "r7", "driverLimits": "cgroup", "tier": "gold"}
    assert content.order == (uuid(0), uuid(1), uuid(2))
    assert content.free == {uuid(0): 24, uuid(1): 24, uuid(2): 0}


def test_an_unhealthy_gpu_without_a_word_has_one(source, holder):
    holder.replace(inventory(gpus=2, unhealthy=(0,)))
    assert source.now().gpus[0].unhealthy == "unhealthy"


def test_only_what_device_plugins_have_given_out_is_missing(source, store):
    store.table = table(allocation(1, (0, range(8))), of_claim(2, 0, 4), of_claim(3, 1, 20))
    content = source.now()
    assert [gpu.other_bytes for gpu in content.gpus] == [8 * GIB, 0, 0]
    assert content.free == {uuid(0): 12, uuid(1): 4, uuid(2): 0}
    assert content.order == (uuid(1), uuid(0), uuid(2)), "the order counts everything"


def test_a_gpu_that_a_pod_has_for_itself_is_missing_altogether(source, store):
    alone = replace(allocation(1, (0, range(2))), policy=AllocationOptions(exclusive=True))
    store.table = table(alone, whole_allocation(2, 1))
    assert [gpu.slices for gpu in source.now().gpus] == [0, 0, 24]


def test_guaranteed_compute_is_missing_too(source, store):
    store.table = table(replace(allocation(1, (0, range(2))), policy=AllocationOptions(cores=30)))
    assert source.now().gpus[0].other_cores == 30


def test_whoever_watches_is_told_of_gpus_and_allocations(source, store, holder):
    rung = []
    end = source.watch(lambda: rung.append(1))
    holder.replace(inventory(gpus=3))
    for watcher in store.watchers:
        watcher()
    assert len(rung) == 2
    end()
    holder.replace(inventory(gpus=2))
    assert len(rung) == 2 and not store.watchers
