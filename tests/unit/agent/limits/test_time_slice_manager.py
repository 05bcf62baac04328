# SPDX-License-Identifier: Apache-2.0
"""Pages say what was decided, as leases, and no container is forgotten in one."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import vcuda
from agent.inventory.page_faults import Paging
from agent.limits.time_slice_manager import BUSY, LEASE_MS, QUIET, SOON, TimeSliceManager
from gigaslice.core.allocation.table import AllocationOptions, AllocationTable
from gigaslice.core.deviceplugin.origin import GpuTokens
from tests.fakes.hostile import HostileLedger
from tests.fakes.nodes import GIB, inventory, of_tokens, uuid
from vcuda import contract

QUOTA = 16


def used(progress, **more):
    base = vcuda.TimeSliceUsage(
        progress, waiting=False, busy=1, alive=1, managed=15 * GIB, real=GIB, held_us=0
    )
    return replace(base, **more)


class Node:
    """Containers a, b, … of 16 GiB on one GPU of 16, whose ledgers say what the test says."""

    def __init__(self, store, names="ab", **policy):
        self.store, self.now, self.said = store, 100.0, {}
        found = inventory(1, 64, host_bytes=48 * GIB)
        self.counted = None
        self.manager = TimeSliceManager(store, lambda: found, lambda: self.now, lambda gpu: self.counted)
        self.manager._usage = lambda allocation: {uuid(0): self.said[self.names[allocation.id]]}
        self.names = {}
        table, fresh = AllocationTable(), []
        for number, name in enumerate(names, 1):
            tokens = GpuTokens(uuid(0), tuple(f"{uuid(0)}/{QUOTA * number + n}" for n in range(QUOTA)))
            rules = AllocationOptions(oversubscribe=True, **policy)
            allocation = of_tokens(number, tokens, library=store.library, policy=rules, physical_bytes=GIB)
            self.names[allocation.id] = name
            self.said[name] = used(1)
            table, fresh = table.with_allocation(allocation), [*fresh, allocation]
        store.commit(table, fresh)
        self.progress = dict.fromkeys(names, 1)

    def page(self, name):
        """State and milliseconds left of a container's time slice."""
        (allocation_id,) = (key for key, value in self.names.items() if value == name)
        raw = (self.store.dirs.path(allocation_id) / contract.LIMITS_FILE).read_bytes()
        at = 64 + 16 * 64 + 32
        value = int.from_bytes(raw[at : at + 8], "little") & (1 << 48) - 1
        return value & 3, (value >> 2) - vcuda.time_slice_clock() if value else 0

    def step(self, seconds, **rates):
        """Polls every 50 ms for so long; containers that are not held work at their rate."""
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            for name, rate in rates.items():
                held = self.page(name)[0] == 1
                alone = any(self.page(other)[0] == 1 for other in self.names.values() if other != name)
                self.progress[name] += 0 if held else rate * (10 if alone else 1)
                self.said[name] = used(self.progress[name], waiting=held, busy=0 if held else 1)
            self.manager.poll()


def test_one_has_the_turn_and_the_others_wait_for_a_lease(store):
    node = Node(store)
    node.step(0.5, a=1, b=1)
    assert {node.page(name)[0] for name in "ab"} == {3}, "queues are short before a container waits"
    assert all(0 < node.page(name)[1] <= LEASE_MS for name in "ab")
    node.step(8, a=1, b=1)
    states = {name: node.page(name) for name in "ab"}
    assert sorted(state for state, _ in states.values()) == [1, 2]
    assert all(0 < left <= LEASE_MS for _, left in states.values())
    gpu = node.manager.gpus[uuid(0)]
    assert gpu.arbiter.mode == "slicing"
    assert gpu.seconds > 0 and gpu.wanting == 2 and not gpu.fits


def test_a_container_that_opted_out_is_left_alone(store):
    node = Node(store, time_slicing=False)
    node.step(8, a=1, b=1)
    assert node.page("a") == node.page("b") == (0, 0)


def test_the_page_of_a_container_that_ends_is_freed_and_so_are_all_at_the_end(store):
    node = Node(store, "abc")
    node.step(8, a=1, b=1, c=1)
    assert sum(node.page(name)[0] == 1 for name in "abc") == 2
    ended = next(allocation for allocation in store.table.allocations if node.names[allocation.id] == "b")
    store.update(store.table.replaced([replace(ended, ended=True)]))
    node.step(0.1, a=1, c=1)
    assert node.page("b")[0] == 0
    assert sum(node.page(name)[0] == 1 for name in "ac") == 1
    node.manager.end_all()
    assert [node.page(name)[0] for name in "abc"] == [0, 0, 0]


def test_of_a_container_that_was_given_up_nothing_is_kept(store):
    node = Node(store)
    node.step(0.1, a=1, b=1)
    first, second = store.table.allocations
    store.update(store.table.replaced([replace(first, ended=True)]))
    node.manager.poll()
    assert len(node.manager.held_us) == 2, "it is still shown"
    store.update(store.table.without([first.id]))
    node.manager.poll()
    assert node.manager.held_us.keys() == {(second.id, uuid(0))}


def test_what_the_driver_counts_is_heeded_and_told(store):
    node = Node(store)
    node.counted = Paging(7, 100, 200)
    node.step(8, a=1, b=1)
    assert node.manager.gpus[uuid(0)].paging == Paging(7, 100, 200)
    assert node.manager.gpus[uuid(0)].arbiter.changes == 0, "no page moves"
    node.counted = None
    node.step(8, a=1, b=1)
    assert node.manager.gpus[uuid(0)].paging is None
    assert node.manager.gpus[uuid(0)].arbiter.changes > 0, "it counts no more, so progress decides"


def test_looks_follow_what_there_is_to_decide(store):
    node = Node(store)
    assert node.manager.pause == QUIET
    node.step(0.5, a=1, b=1)
    assert node.manager.pause == BUSY
    pauses = set()
    for _ in range(40):
        node.step(0.05, a=1, b=1)
        pauses.add(node.manager.pause)
    assert SOON in pauses, "before a time slice begins"


def test_a_dead_holder_blocks_no_container(store):
    node = Node(store)
    node.step(8, a=1, b=1)
    holder = next(name for name in "ab" if node.page(name)[0] == 2)
    other = "b" if holder == "a" else "a"
    node.said[holder] = used(node.progress[holder], alive=0, managed=0, real=0, busy=0)
    node.step(0.05, **{other: 1})
    assert node.page(other)[0] == 0


def test_a_ledger_that_cannot_be_read_is_not_waited_for(store):
    node = Node(store)
    node.step(8, a=1, b=1)
    node.manager._usage = lambda allocation: (
        {} if node.names[allocation.id] == "a" else {uuid(0): node.said["b"]}
    )
    node.step(0.05, b=1)
    assert node.page("b")[0] == 0


def test_every_gpu_has_its_own_time_slices(store):
    """A container on two GPUs waits on the one that thrashes and goes on on the other."""
    found = inventory(2, 64, host_bytes=48 * GIB)
    clock = [100.0]
    manager = TimeSliceManager(store, lambda: found, lambda: clock[0])
    table, fresh = AllocationTable(), []
    for number in (1, 2):
        tokens = [
            GpuTokens(uuid(n), tuple(f"{uuid(n)}/{100 * number + k}" for k in range(QUOTA))) for n in range(2)
        ]
        policy = AllocationOptions(oversubscribe=True)
        one = of_tokens(number, *tokens, library=store.library, policy=policy, physical_bytes=GIB)
        table, fresh = table.with_allocation(one), [*fresh, one]
    store.commit(table, fresh)
    progress = [1]
    manager._usage = lambda allocation: {
        uuid(0): used(progress[0]),
        uuid(1): used(progress[0], managed=4 * GIB),
    }
    for _ in range(60):
        clock[0] += 0.05
        progress[0] += 1
        manager.poll()
    assert manager.gpus[uuid(0)].holder
    assert manager.gpus[uuid(1)].holder is None and manager.gpus[uuid(1)].fits
    assert {gpu for _, gpu in manager._written} == {uuid(0)}
    manager.end_all()


def test_it_frees_everybody_when_it_is_cancelled(store):
    node = Node(store)
    node.step(8, a=1, b=1)

    async def begin_and_end():
        task = asyncio.create_task(node.manager.run())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(begin_and_end())
    assert [node.page(name)[0] for name in "ab"] == [0, 0]


def test_no_container_causes_time_slicing_by_false_claims(store):
    """Two whose working sets fit the GPU go on together, whatever a third says of its own."""
    node = Node(store, "abc")
    for name in "ab":
        node.said[name] = used(1, managed=2 * GIB)
    (liar,) = (allocation for allocation in store.table.allocations if node.names[allocation.id] == "c")
    del node.manager._usage
    honest = node.manager._usage
    node.manager._usage = lambda allocation: (
        honest(allocation) if allocation is liar else {uuid(0): node.said[node.names[allocation.id]]}
    )
    with HostileLedger(store.dirs.path(liar.id)) as ledger:
        ledger.hold(0)
        ledger.slot(0, 64 << 40)
        ledger.split(0, real=64 << 40, managed=64 << 40, busy=0)
        vcuda.read_ledger(ledger.path)  # as every measuring round does: then it is in memory
        for step in range(40):
            node.now += 0.05
            for name in "ab":
                node.said[name] = used(step, managed=2 * GIB)
            node.manager.poll()
        assert node.manager.gpus[uuid(0)].fits
        assert node.page("a") == node.page("b") == (0, 0)
        usage = node.manager._usage(liar)[uuid(0)]
        assert (usage.real, usage.managed) == (GIB, QUOTA * GIB)


def test_a_ledger_that_cannot_be_read_takes_no_more_than_its_part_of_the_gpu(store):
    """Else a container could take the room from its neighbours by damaging its own file."""
    node = Node(store, "abc")
    (liar,) = (allocation for allocation in store.table.allocations if node.names[allocation.id] == "c")
    del node.manager._usage
    honest = node.manager._usage
    node.manager._usage = lambda allocation: (
        honest(allocation) if allocation is liar else {uuid(0): node.said[node.names[allocation.id]]}
    )
    HostileLedger(store.dirs.path(liar.id)).garbage()
    for step in range(40):
        node.now += 0.05
        for name in "ab":
            node.said[name] = used(step, managed=2 * GIB)
        node.manager.poll()
    assert node.manager.gpus[uuid(0)].fits
