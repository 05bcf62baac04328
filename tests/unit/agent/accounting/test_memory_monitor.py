# SPDX-License-Identifier: Apache-2.0
"""The measuring round against a driver that answers while the container's programs go on."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from types import SimpleNamespace

import vcuda
from agent.accounting.auditor import Auditor
from agent.accounting.memory_monitor import MemoryMonitor
from agent.accounting.overuse import OverusePolicy
from agent.apiserver import NoCluster
from agent.ledgers import usage
from agent.ledgers.open_ledgers import OpenLedgers
from agent.ledgers.trust import RecentLimits
from agent.telemetry.counters import Counters
from gigaslice.core.allocation.table import Allocation, AllocationTable, Hold
from gigaslice.core.deviceplugin.origin import DevicePluginOrigin, Owner
from tests.fakes.hostile import HostileLedger
from tests.fakes.nodes import allocation, uuid
from vcuda import contract

GPU = "GPU-00000000-0000-4000-8000-000000000001"
GIB = 1 << 30


def declares(count):
    process = SimpleNamespace(pid=os.getpid(), used={GPU: count}, nameless=False)
    return usage.Reading({GPU: count}, {}, (process,), {GPU: 0})


class World:
    """One allocation in DIRECTORY, whose program declares BEFORE until the driver is asked, and then AFTER."""

    def __init__(self, directory, before, after):
        holds = (Hold(GPU, 8 * GIB, GIB),)
        self.allocation = Allocation("ab" * 16, 1, 0.0, holds, "libvcuda.so", DevicePluginOrigin())
        self.table = AllocationTable((self.allocation,))
        self.dirs = SimpleNamespace(path=lambda _: directory, recent=RecentLimits(), ledgers=OpenLedgers())
        self.declared, self._after = before, after

    def believe(self, allocation, reading):
        return reading

    def read(self, path):
        return declares(self.declared)

    def process_memory(self):
        self.declared = self._after
        return {GPU: {os.getpid(): 5 * GIB}}


SEEN = ()
"""The processes that a stand-in for the auditor has read."""


class Audit:
    """Finds one process of so many bytes without the library."""

    def __init__(self, world, count):
        self.world, self.count = world, count

    def read_processes(self, measured, claimed):
        assert claimed == {os.getpid()}
        return SEEN

    def owners(self, claims, sightings):
        return {pid: next(iter(keys)) for pid, keys in claims.items()}

    def audit(self, measured, sightings, owners, readings):
        assert sightings is SEEN
        assert owners == {os.getpid(): self.world.allocation.id}
        assert set(readings) == {self.world.allocation.id}
        return {self.world.allocation.id: {GPU: self.count}}


def published(tmp_path, monkeypatch, before, after):
    vcuda.create_limits(tmp_path / contract.LIMITS_FILE, bytes(16), [vcuda.GpuLimit(GPU, 8 * GIB)])
    world = World(tmp_path, before, after)
    monkeypatch.setattr(usage, "read", world.read)
    asyncio.run(MemoryMonitor(world, world, 1.0, Audit(world, 0)).round())
    return vcuda.read_limits(tmp_path / contract.LIMITS_FILE).gpus[0].undeclared_bytes


def test_memory_that_is_freed_while_the_driver_answers_is_not_published(tmp_path, monkeypatch):
    assert published(tmp_path, monkeypatch, 5 * GIB, 0) == 0


def test_undeclared_memory_is_published(tmp_path, monkeypatch):
    assert published(tmp_path, monkeypatch, 4 * GIB, 4 * GIB) == GIB


def test_memory_without_the_library_counts_in_full(tmp_path, monkeypatch):
    vcuda.create_limits(tmp_path / contract.LIMITS_FILE, bytes(16), [vcuda.GpuLimit(GPU, 8 * GIB)])
    world = World(tmp_path, 4 * GIB, 4 * GIB)
    monkeypatch.setattr(usage, "read", world.read)
    memory_monitor = MemoryMonitor(world, world, 1.0, Audit(world, 2 * GIB))
    asyncio.run(memory_monitor.round())
    assert vcuda.read_limits(tmp_path / contract.LIMITS_FILE).gpus[0].undeclared_bytes == 3 * GIB
    assert memory_monitor.last[world.allocation.id].memory == {GPU: 7 * GIB}
    assert world.without_library == {world.allocation.id: {GPU: 2 * GIB}}


def test_what_runs_without_the_library_is_alive_and_holds_memory():
    reading = usage.Reading({GPU: 0}, {}, undeclared={GPU: GIB}, without_library={GPU: GIB})
    assert reading.alive and not reading.attached
    assert reading.present() == {GPU: GIB}


class Several:
    """Allocations by name with the PIDs that their ledgers know, first and once the driver was asked; counts reads."""

    def __init__(self, directory, first, then, measured):
        self.table = AllocationTable(
            tuple(
                Allocation(name, 1, 0.0, (Hold(GPU, GIB, GIB),), "libvcuda.so", DevicePluginOrigin())
                for name in first
            )
        )
        self.dirs = SimpleNamespace(
            path=lambda name: directory / name, recent=RecentLimits(), ledgers=OpenLedgers()
        )
        self.pids, self._then, self._measured = first, then, measured
        self.reads, self.known = [], {}
        self.without_library = {}
        self.asked = False
        for name in first:
            (directory / name).mkdir()
            vcuda.create_limits(
                directory / name / contract.LIMITS_FILE, bytes(16), [vcuda.GpuLimit(GPU, GIB)]
            )

    def believe(self, allocation, reading):
        return reading

    def read(self, path):
        self.reads.append((path.name, self.asked))
        processes = tuple(
            SimpleNamespace(pid=pid, used={GPU: 0}, nameless=False) for pid in self.pids[path.name]
        )
        return usage.Reading({GPU: 0}, {}, processes, {GPU: 0})

    def process_memory(self):
        self.pids = self._then
        self.asked = True
        return self._measured and {GPU: self._measured}

    def read_processes(self, measured, claimed):
        return ()

    def owners(self, claims, sightings):
        return {pid: next(iter(keys)) for pid, keys in claims.items()}

    def audit(self, measured, sightings, owners, readings):
        self.known = owners
        assert set(readings) == set(self.pids)
        return {}


def reads_again(tmp_path, monkeypatch, then, measured):
    first = {"a": (11, 12), "b": (21,), "c": ()}
    world = Several(tmp_path, first, first | then, measured)
    monkeypatch.setattr(usage, "read", world.read)
    asyncio.run(MemoryMonitor(world, world, 1.0, world).round())
    assert [name for name, asked in world.reads if not asked] == ["a", "b", "c"]
    return [name for name, asked in world.reads if asked], world.known


def test_nothing_is_read_twice_when_nothing_was_measured(tmp_path, monkeypatch):
    assert reads_again(tmp_path, monkeypatch, {}, {})[0] == []


def test_nothing_is_read_twice_by_an_agent_that_cannot_measure(tmp_path, monkeypatch):
    assert reads_again(tmp_path, monkeypatch, {}, None)[0] == []


def test_only_who_was_measured_is_read_twice(tmp_path, monkeypatch):
    assert reads_again(tmp_path, monkeypatch, {}, {12: GIB})[0] == ["a"]
    assert vcuda.read_limits(tmp_path / "a" / contract.LIMITS_FILE).gpus[0].undeclared_bytes == GIB


def test_a_process_that_came_while_the_driver_answered_has_its_library(tmp_path, monkeypatch):
    again, owners = reads_again(tmp_path, monkeypatch, {"c": (31,)}, {11: GIB, 31: GIB})
    assert again == ["a", "b", "c"]
    assert owners[31] == "c"


class Driver:
    """NVML over processes that the test names."""

    def __init__(self, **memory):
        self.memory = memory

    def process_memory(self):
        return {uuid(0): {int(pid): count for pid, count in self.memory.items()}}


def test_after_a_round_ledgers_count_for_what_was_measured(store):
    """One that says 64 TiB with 1 GiB on the GPU, and one that says nothing with 6 GiB."""
    much = allocation(1, (0, range(4)), library=store.library, ended=True)
    none = allocation(2, (0, range(4, 8)), library=store.library)
    store.commit(store.table.with_allocation(much).with_allocation(none), [much, none])
    with HostileLedger(store.dirs.path(much.id)) as one, HostileLedger(store.dirs.path(none.id)) as two:
        pids = one.hold(0), two.hold(0)
        one.slot(0, 64 << 40)
        two.slot(0, 0)
        driver = Driver(**{str(pids[0]): GIB, str(pids[1]): 6 * GIB})
        memory_monitor = MemoryMonitor(
            store, driver, 1.0, Auditor(store, NoCluster(), OverusePolicy(), Counters())
        )
        asyncio.run(memory_monitor.round())
        assert store.measured == {much.id: {uuid(0): GIB}, none.id: {uuid(0): 6 * GIB}}
        assert store.reading(much.id).present() == {uuid(0): 4 * GIB}
        assert store.reading(none.id).present() == {uuid(0): 6 * GIB}
        assert memory_monitor.last[none.id].reading.used == {uuid(0): 0}


def test_a_process_of_another_container_is_not_had_by_holding_its_number(store, tmp_path):
    """A lock outlives the process that took it where others share its files, and its number is given out again."""
    victim, liar = (
        allocation(
            number,
            (0, range(at, at + 4)),
            library=store.library,
            owner=Owner(f"{number}" * 32, "default", name, "c0"),
        )
        for number, at, name in ((1, 0, "victim"), (2, 4, "liar"))
    )
    store.commit(store.table.with_allocation(victim).with_allocation(liar), [victim, liar])
    with HostileLedger(store.dirs.path(victim.id)) as one, HostileLedger(store.dirs.path(liar.id)) as two:
        pid = one.hold(0)
        stolen = two.hold(0)
        for number, key in ((pid, "1"), (stolen, "1")):
            directory = tmp_path / "proc" / str(number)
            directory.mkdir(parents=True)
            (directory / "comm").write_text("p\n")
            (directory / "cgroup").write_text(f"0::/kubepods/pod{key * 32}/{'a' * 64}\n")
        two.slot(0, GIB)
        driver = Driver(**{str(pid): GIB, str(stolen): 2 * GIB})
        auditor = Auditor(store, NoCluster(), OverusePolicy(), Counters(), proc=tmp_path / "proc")
        asyncio.run(MemoryMonitor(store, driver, 1.0, auditor).round())
        assert store.disowned == {liar.id: frozenset([stolen])}
        assert store.reading(liar.id).pids == () and not store.reading(liar.id).alive
        assert store.measured == {victim.id: {uuid(0): 3 * GIB}, liar.id: {uuid(0): 0}}


def test_an_owner_that_lost_its_record_lock_has_its_library(store, tmp_path):
    """What it has declared is not held against its container a second time."""
    mine = allocation(1, (0, range(8)), library=store.library, owner=Owner("1" * 32, "default", "a", "c0"))
    store.commit(store.table.with_allocation(mine), [mine])
    ledger = store.dirs.path(mine.id) / contract.LEDGER_FILE
    directory = tmp_path / "proc" / "70"
    directory.mkdir(parents=True)
    (directory / "comm").write_text("p\n")
    (directory / "cgroup").write_text(f"0::/kubepods/pod{'1' * 32}/{'a' * 64}\n")
    (directory / "mountinfo").write_text(
        f"9 8 0:1 {store.dirs.path(mine.id) / contract.LIMITS_FILE} {contract.CONTAINER_LIMITS} ro - ext4 x ro\n"
    )
    (directory / "status").write_text("Name:\tp\nNSpid:\t70\t1\n")
    HostileLedger(ledger.parent).slot(0, 2 * GIB)
    with ledger.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhlli4x", fcntl.F_WRLCK, 0, 1 << 33, 1, 0))
        auditor = Auditor(store, NoCluster(), OverusePolicy(), Counters(), proc=tmp_path / "proc")
        memory_monitor = MemoryMonitor(store, Driver(**{"70": 3 * GIB}), 1.0, auditor)
        asyncio.run(memory_monitor.round())
        assert store.without_library == {}
        assert store.pods_seen == {mine.id: frozenset(["1" * 32])}
        assert store.measured == {mine.id: {uuid(0): 3 * GIB}}
        assert vcuda.read_limits(ledger.parent / contract.LIMITS_FILE).gpus[0].undeclared_bytes == GIB
