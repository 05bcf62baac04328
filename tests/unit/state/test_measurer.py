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
