# SPDX-License-Identifier: Apache-2.0
"""The two views of a GPU with lent host memory, and what the start decision and changes of limits make of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from agent.roles.records import CODEC
from gigaslice.core.allocation import host_memory, start_decision
from gigaslice.core.allocation.table import AllocationOptions, AllocationTable
from gigaslice.core.deviceplugin.handing_out import with_handed_out
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.limits import live_limits
from gigaslice.core.model import NodeState, Topology
from tests.fakes.gpus import make_gpu, node_state
from tests.fakes.nodes import GIB, allocation, uuid

MIB = 1 << 20
HOST = AllocationOptions(oversubscribe=True)


def gpu(own=16, host=8, number=0):
    return make_gpu(number, own + host, host_bytes=host * GIB)


def free(table, gpu_, *, host, asked=8):
    gpus, taken = host_memory.view(table, [gpu_], "", host=host, memory_bytes=asked * GIB)
    return NodeState.build(gpus, Topology.flat(1), taken).free(gpu_.uuid)


def with_split(table, one, gpu_):
    return table.with_allocation(host_memory.split(table, one, [gpu_]))


def test_three_jobs_of_8_gib_on_16_gib_and_8_of_the_host():
    found = gpu()
    table = AllocationTable()
    for number in range(1, 4):
        assert free(table, found, host=True) == 32 - 8 * number
        table = with_split(
            table, allocation(number, (0, range(8 * number - 8, 8 * number)), policy=HOST), found
        )
    assert [one.physical[uuid(0)] for one in table.allocations] == [4 * GIB] * 3
    assert free(table, found, host=True) == 0
    assert free(table, found, host=False) == 0
    node = node_state([found])
    for one in table.allocations:
        assert start_decision.shortfall(table, one, node, {}) == ()
    # The real memory of all and the rest of one are on the GPU together.
    assert 3 * 4 + (8 - 4) == 16


def test_without_the_options_nobody_is_placed_beyond_the_gpu():
    found = gpu()
    assert free(AllocationTable(), found, host=False, asked=16) == 16
    table = AllocationTable().with_allocation(allocation(1, (0, range(16))))
    assert free(table, found, host=False) == 0
    assert free(table, found, host=True) == 0, "a program needs some real memory for its context"
    table = AllocationTable().with_allocation(allocation(1, (0, range(12))))
    assert free(table, found, host=False) == 4
    assert free(table, found, host=True) == 12


def test_the_lent_memory_is_not_lent_twice():
    """One that may use host memory has most of its quota there: what is left to others is the sum, not the GPU."""
    found = gpu()
    table = with_split(AllocationTable(), allocation(1, (0, range(16)), policy=HOST), found)
    assert table.allocations[0].physical[uuid(0)] == 2 * GIB
    assert free(table, found, host=False) == 8
    assert free(table, found, host=True) == 8


@pytest.mark.parametrize(
    ("memory", "own", "host", "expected"),
    [
        (8, 16, 8, 4),
        (16, 16, 16, 2),
        (4, 16, 8, 2.4),
        (1, 16, 8, 1),
        (24, 16, 8, 3),
        (8, 80, 40, 72 * 8 / 112),
    ],
)
def test_the_physical_share(memory, own, host, expected):
    found = host_memory.physical_share(memory * GIB, own * GIB, host * GIB)
    assert found == int(expected * GIB) // MIB * MIB


def test_a_gpu_without_lent_memory_is_as_ever():
    found = gpu(host=0)
    table = with_split(AllocationTable(), allocation(1, (0, range(8)), policy=HOST), found)
    assert table.allocations[0].physical == {}
    assert free(table, found, host=True) == free(table, found, host=False) == 8


def test_the_gate_counts_real_memory():
    found = gpu()
    node = node_state([found])
    plain = allocation(1, (0, range(14)))
    late = replace(allocation(2, (0, range(14, 22)), policy=HOST), waiting=True)
    table = with_split(AllocationTable().with_allocation(plain), late, found)
    late = table.allocations[1]
    assert late.physical[uuid(0)] == 2 * GIB
    assert start_decision.shortfall(table, late, node, {}) == ()
    # The neighbour lingers with more than it was promised: real memory is lacking, though slices are not.
    assert [
        lack.bytes for lack in start_decision.shortfall(table, late, node, {plain.id: {uuid(0): 15 * GIB}})
    ] == [GIB]
    assert start_decision.shortfall(table, plain, node, {late.id: {uuid(0): 8 * GIB}}) == ()
    bigger = allocation(3, (0, range(16)))
    table = AllocationTable().with_allocation(late).with_allocation(bigger)
    assert [lack.bytes for lack in start_decision.shortfall(table, bigger, node, {})] == [2 * GIB]


def test_limits_grow_only_into_what_is_there():
    found = gpu()
    table = with_split(AllocationTable(), allocation(1, (0, range(8)), policy=HOST), found)
    table = table.with_allocation(allocation(2, (0, range(8, 16))))
    one, plain = table.allocations
    grown = live_limits.resized(table, one, [found], {}, memory={uuid(0): 16 * GIB})
    assert not isinstance(grown, live_limits.ResizeRefusal)
    assert grown.physical[uuid(0)] == 4 * GIB
    assert isinstance(
        live_limits.resized(table, one, [found], {}, memory={uuid(0): 17 * GIB}), live_limits.ResizeRefusal
    )
    larger = live_limits.resized(table, plain, [found], {}, memory={uuid(0): 12 * GIB})
    assert not isinstance(larger, live_limits.ResizeRefusal)
    assert isinstance(
        live_limits.resized(table, plain, [found], {}, memory={uuid(0): 13 * GIB}), live_limits.ResizeRefusal
    )
    small = live_limits.resized(table, one, [found], {}, memory={uuid(0): 2 * GIB})
    assert not isinstance(small, live_limits.ResizeRefusal)
    assert small.physical[uuid(0)] == 2 * GIB


def test_an_elastic_container_grows_in_the_gpus_own_memory():
    found = gpu()
    policy = AllocationOptions(oversubscribe=True, elastic=True)
    table = with_split(AllocationTable(), allocation(1, (0, range(8)), policy=policy), found)
    ((memory, *_),) = live_limits.limits_now(table, [found], {})[table.allocations[0].id].values()
    assert memory == 24 * GIB
    assert live_limits.physical_now(table.allocations[0], [found], {uuid(0): memory}) == {uuid(0): 16 * GIB}
    plain = AllocationTable().with_allocation(
        allocation(1, (0, range(8)), policy=AllocationOptions(elastic=True))
    )
    ((memory, *_),) = live_limits.limits_now(plain, [found], {})[plain.allocations[0].id].values()
    assert memory == 16 * GIB


def test_the_host_needs_what_all_promises_go_beyond_the_gpu():
    found = gpu()
    table = AllocationTable()
    for number in range(1, 4):
        table = with_split(
            table, allocation(number, (0, range(8 * number - 8, 8 * number)), policy=HOST), found
        )
    one, two, three = table.allocations
    assert host_memory.host_need(table.without([two.id, three.id]), one, {}, [found]) == 0
    assert host_memory.host_need(table.without([three.id]), two, {}, [found]) == 0
    # Its own part of the host is 4 GiB, but it is others' pages, too, that have to make room.
    assert host_memory.host_need(table, three, {}, [found]) == 8 * GIB
    used = {one.id: {uuid(0): 8 * GIB}, two.id: {uuid(0): 8 * GIB}, three.id: {uuid(0): 3 * GIB}}
    assert host_memory.host_need(table, three, used, [found]) == 5 * GIB, "3 GiB lie there already"
    waits = table.replaced([replace(three, waiting=True)])
    assert host_memory.host_need(waits, two, {}, [found]) == 0, "one that waits behind has to see to itself"
    assert host_memory.host_need(waits, waits.allocations[2], {}, [found]) == 8 * GIB


def test_a_container_without_the_options_pushes_pages_out_too():
    found = gpu()
    table = with_split(AllocationTable(), allocation(1, (0, range(12)), policy=HOST), found)
    plain = allocation(2, (0, range(12, 20)))
    assert host_memory.host_need(table.with_allocation(plain), plain, {}, [found]) == 4 * GIB
    other = allocation(3, (1, range(4)))
    assert host_memory.host_need(table.with_allocation(other), other, {}, [found, gpu(host=0, number=1)]) == 0


def test_the_host_is_one_for_all_gpus():
    gpus = [gpu(number=0), gpu(number=1)]
    table = AllocationTable()
    for number in (1, 2):
        table = table.with_allocation(
            host_memory.split(table, allocation(number, (number - 1, range(20)), policy=HOST), gpus)
        )
    one = table.allocations[1]
    assert host_memory.host_need(table, one, {}, gpus) == 8 * GIB


@pytest.mark.parametrize("seed", range(25))
def test_a_node_never_promises_more_host_memory_than_it_lends(seed):
    """Containers with the options and without come, wait, start, grow, shrink, are taken over and end; the agent
    restarts. After every step: what has been let start goes beyond each GPU by no more than it was lent.
    """
    luck = random.Random(seed)
    gpus = [gpu(luck.choice([16, 24, 80]), luck.choice([0, 1, 8, 40]), number) for number in range(2)]
    node = node_state(gpus)
    table = AllocationTable()
    for number in range(1, 150):
        roll = luck.random()
        if not table.allocations or roll < 0.45:
            at, size, host = luck.randrange(2), luck.randint(1, 24), luck.random() < 0.6
            device_ids = range(100 * number, 100 * number + size)
            policy = AllocationOptions(oversubscribe=host, elastic=luck.random() < 0.2)
            # The kubelet's choice, whatever has room: the start decision decides.
            one = replace(allocation(number, (at, device_ids), policy=policy), waiting=True)
            table = table.with_allocation(host_memory.split(table, one, gpus))
        elif roll < 0.6:
            table = table.without([luck.choice(table.allocations).id])
        elif roll < 0.85:
            one = luck.choice(table.allocations)
            changed = next(iter(one.quota()))
            asked = {changed: luck.randint(1, 48) * GIB // 2}
            grown = live_limits.resized(table, one, gpus, {}, memory=asked)
            if not isinstance(grown, live_limits.ResizeRefusal):
                table = table.replaced([grown])
        elif roll < 0.95:
            victim = luck.choice(table.allocations)
            table, _ = with_handed_out(table, luck.sample(sorted(plugin(victim).device_ids), 1))
        else:
            table = CODEC.decode_table(CODEC.encode_table(table))
        for one in table.allocations:
            if one.waiting and not start_decision.shortfall(table, one, node, {}):
                table = table.replaced([replace(one, waiting=False)])
        started = table.without([one.id for one in table.allocations if one.waiting])
        beyond = host_memory.host_promised(started, gpus)
        for found in gpus:
            assert beyond.get(found.uuid, 0) <= found.bytes_of(found.slices - found.own_slices)
            real = [
                host_memory.real_part(one, found.uuid, one.promised.get(found.uuid, 0))
                for one in started.allocations
            ]
            assert sum(real) <= found.bytes_of(found.own_slices)
        assert sum(beyond.values()) <= sum(found.host_bytes for found in gpus)


@pytest.mark.parametrize("seed", range(30))
def test_never_beyond_what_there_is(seed):
    """Random containers come and go: real promises fit the GPU, all promises the GPU and what is lent."""
    luck = random.Random(seed)
    found = gpu(luck.choice([16, 24, 80]), luck.choice([1, 8, 40]))
    table = AllocationTable()
    for number in range(1, 200):
        if table.allocations and luck.random() < 0.4:
            table = table.without([luck.choice(table.allocations).id])
            continue
        host, size = luck.random() < 0.6, luck.randint(1, 20)
        if free(table, found, host=host, asked=size) < size:
            continue
        one = allocation(number, (0, range(size)), policy=HOST if host else AllocationOptions())
        table = with_split(table, one, found)
        promised = sum(one.promised[uuid(0)] for one in table.allocations)
        real = sum(host_memory.real_part(one, uuid(0), one.promised[uuid(0)]) for one in table.allocations)
        assert promised <= found.bytes_of(found.slices)
        assert real <= found.bytes_of(found.own_slices)
        node = node_state([found])
        assert start_decision.shortfall(table, table.allocations[-1], node, {}) == ()
