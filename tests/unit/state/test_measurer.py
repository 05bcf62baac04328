"""The measuring round against a driver that answers while the container's programs go on."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import vcuda
from agent.state import ledgers
from agent.state.measurer import Measurer
from agent.state.records import Book, Grant, Hold
from vcuda import contract

CARD = "GPU-00000000-0000-4000-8000-000000000001"
GIB = 1 << 30


def declares(count):
    process = SimpleNamespace(pid=os.getpid(), used={CARD: count})
    return ledgers.Reading({CARD: count}, {}, (process,), {CARD: 0})


class World:
    """One allocation in DIRECTORY, whose program declares BEFORE until the driver is asked, and then AFTER."""

    def __init__(self, directory, before, after):
        tokens = tuple(f"{CARD}/{number}" for number in range(8))
        self.grant = Grant("ab" * 16, 1, 0.0, (Hold(CARD, GIB, tokens),), "libvcuda.so")
        self.book = Book((self.grant,))
        self.dirs = SimpleNamespace(path=lambda _: directory)
        self.declared, self._after = before, after

    def read(self, path, *, trim=False):
        return declares(self.declared)

    def process_memory(self):
        self.declared = self._after
        return {CARD: {os.getpid(): 5 * GIB}}


class Audit:
    """Finds one process of so many bytes without the library."""

    def __init__(self, world, count):
        self.world, self.count = world, count

    def look(self, measured):
        return "seen"

    def judge(self, measured, sightings, owners, readings):
        assert sightings == "seen"
        assert owners == {os.getpid(): self.world.grant.id}
        assert set(readings) == {self.world.grant.id}
        return {self.world.grant.id: {CARD: self.count}}


def unhooked(tmp_path, monkeypatch, before, after):
    vcuda.create_limits(tmp_path / contract.LIMITS_FILE, bytes(16), [vcuda.GpuLimit(CARD, 8 * GIB)])
    world = World(tmp_path, before, after)
    monkeypatch.setattr(ledgers, "read", world.read)
    asyncio.run(Measurer(world, world, 1.0).round())
    return vcuda.read_limits(tmp_path / contract.LIMITS_FILE).gpus[0].unhooked_bytes


def test_memory_that_is_freed_while_the_driver_answers_is_not_published(tmp_path, monkeypatch):
    assert unhooked(tmp_path, monkeypatch, 5 * GIB, 0) == 0


def test_memory_that_nobody_declares_is_published(tmp_path, monkeypatch):
    assert unhooked(tmp_path, monkeypatch, 4 * GIB, 4 * GIB) == GIB


def test_memory_without_the_library_counts_in_full(tmp_path, monkeypatch):
    vcuda.create_limits(tmp_path / contract.LIMITS_FILE, bytes(16), [vcuda.GpuLimit(CARD, 8 * GIB)])
    world = World(tmp_path, 4 * GIB, 4 * GIB)
    monkeypatch.setattr(ledgers, "read", world.read)
    measurer = Measurer(world, world, 1.0, Audit(world, 2 * GIB))
    asyncio.run(measurer.round())
    assert vcuda.read_limits(tmp_path / contract.LIMITS_FILE).gpus[0].unhooked_bytes == 3 * GIB
    assert measurer.last[world.grant.id].memory == {CARD: 7 * GIB}
    assert world.strangers == {world.grant.id: {CARD: 2 * GIB}}


def test_what_runs_without_the_library_is_alive_and_holds_memory():
    reading = ledgers.Reading({CARD: 0}, {}, unhooked={CARD: GIB}, strangers={CARD: GIB})
    assert reading.alive and not reading.attached
    assert reading.present() == {CARD: GIB}


class Several:
    """Allocations by name with the PIDs that their ledgers know, first and once the driver was asked; counts reads."""

    def __init__(self, directory, first, then, measured):
        self.book = Book(
            tuple(
                Grant(name, 1, 0.0, (Hold(CARD, GIB, (f"{CARD}/{at}",)),), "libvcuda.so")
                for at, name in enumerate(first)
            )
        )
        self.dirs = SimpleNamespace(path=lambda name: directory / name)
        self.pids, self._then, self._measured = first, then, measured
        self.reads, self.owners = [], {}
        self.strangers = {}
        for name in first:
            (directory / name).mkdir()
            vcuda.create_limits(
                directory / name / contract.LIMITS_FILE, bytes(16), [vcuda.GpuLimit(CARD, GIB)]
            )

    def read(self, path, *, trim=False):
        self.reads.append((path.name, trim))
        processes = tuple(SimpleNamespace(pid=pid, used={CARD: 0}) for pid in self.pids[path.name])
        return ledgers.Reading({CARD: 0}, {}, processes, {CARD: 0})

    def process_memory(self):
        self.pids = self._then
        return self._measured and {CARD: self._measured}

    def look(self, measured):
        return ()

    def judge(self, measured, sightings, owners, readings):
        self.owners = owners
        assert set(readings) == set(self.pids)
        return {}


def reads_again(tmp_path, monkeypatch, then, measured):
    first = {"a": (11, 12), "b": (21,), "c": ()}
    world = Several(tmp_path, first, first | then, measured)
    monkeypatch.setattr(ledgers, "read", world.read)
    asyncio.run(Measurer(world, world, 1.0, world).round())
    assert [name for name, trim in world.reads if trim] == ["a", "b", "c"]
    return [name for name, trim in world.reads if not trim], world.owners


def test_nothing_is_read_twice_when_nothing_was_measured(tmp_path, monkeypatch):
    assert reads_again(tmp_path, monkeypatch, {}, {})[0] == []


def test_nothing_is_read_twice_by_an_agent_that_cannot_measure(tmp_path, monkeypatch):
    assert reads_again(tmp_path, monkeypatch, {}, None)[0] == []


def test_only_who_was_measured_is_read_twice(tmp_path, monkeypatch):
    assert reads_again(tmp_path, monkeypatch, {}, {12: GIB})[0] == ["a"]
    assert vcuda.read_limits(tmp_path / "a" / contract.LIMITS_FILE).gpus[0].unhooked_bytes == GIB


def test_a_process_that_came_while_the_driver_answered_is_nobodys_stranger(tmp_path, monkeypatch):
    again, owners = reads_again(tmp_path, monkeypatch, {"c": (31,)}, {11: GIB, 31: GIB})
    assert again == ["a", "b", "c"]
    assert owners[31] == "c"
