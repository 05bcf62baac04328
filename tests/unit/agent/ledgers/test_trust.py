# SPDX-License-Identifier: Apache-2.0
"""What a hostile ledger can do to others: nothing. Ledgers are real files with real locks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vcuda
from agent.accounting.auditor import Auditor
from agent.accounting.memory_monitor import MemoryMonitor
from agent.accounting.overuse import OverusePolicy
from agent.apiserver import NoCluster
from agent.ledgers.trust import Ceiling, RecentLimits, believed, ceiling
from agent.ledgers.usage import Reading
from agent.telemetry.counters import Counters
from gigaslice.core.allocation import start_decision
from gigaslice.core.allocation.table import AllocationOptions, LiveLimit
from gigaslice.core.limits import live_limits
from tests.fakes.gpus import node_state
from tests.fakes.hostile import HostileLedger
from tests.fakes.nodes import GIB, allocation, inventory, uuid

TIB = 1 << 40
GPUS = inventory()


@pytest.fixture
def victim_and_liar(store):
    """A container of 20 GiB on GPU 0 that is to start, and one of 4 GiB there that lies."""
    liar = allocation(1, (0, range(20, 24)), library=store.library)
    victim = allocation(2, (0, range(20)), library=store.library)
    store.commit(store.table.with_allocation(liar).with_allocation(victim), [liar, victim])
    return victim, liar


def lacking(store, one):
    present = {key: reading.present() for key, reading in store.readings().items()}
    node = node_state(GPUS.gpus)
    return start_decision.shortfall(store.table, one, node, present)


def test_a_slot_that_says_64_tib_holds_no_container_back(store, victim_and_liar):
    victim, liar = victim_and_liar
    with HostileLedger(store.dirs.path(liar.id)) as ledger:
        ledger.hold(0)
        ledger.slot(0, 64 * TIB, peak=64 * TIB)
        assert lacking(store, victim) == ()
        assert store.reading(liar.id).used == {uuid(0): 4 * GIB}
        assert store.reading(liar.id).peak == {uuid(0): 4 * GIB}


def test_a_thousand_slots_are_no_more_than_one(store, victim_and_liar):
    victim, liar = victim_and_liar
    with HostileLedger(store.dirs.path(liar.id)) as ledger:
        ledger.hold(*range(32))
        for index in range(32):
            ledger.slot(index, 4 * GIB)
        assert lacking(store, victim) == ()
        assert store.reading(liar.id).present() == {uuid(0): 4 * GIB}


def test_a_gpu_that_was_not_granted_is_not_held(store):
    """An elastic container alone on GPU 1 keeps it, whatever a container of GPU 0 says of GPU 1."""
    liar = allocation(1, (0, range(4)), library=store.library)
    alone = allocation(2, (1, range(4)), library=store.library, policy=AllocationOptions(elastic=True))
    store.commit(store.table.with_allocation(liar).with_allocation(alone), [liar, alone])
    with HostileLedger(store.dirs.path(liar.id)) as ledger:
        ledger.hold(0)
        ledger.head([uuid(0), uuid(1)])
        ledger.slot(0, GIB, GIB)
        present = {key: reading.present() for key, reading in store.readings().items()}
        assert present[liar.id] == {uuid(0): GIB}
        assert live_limits.limits_now(store.table, GPUS.gpus, present)[alone.id] == {uuid(1): (24 * GIB, 0)}


def test_a_ledger_of_another_gpu_altogether_hides_nothing_that_was_measured(store, victim_and_liar):
    victim, liar = victim_and_liar
    with HostileLedger(store.dirs.path(liar.id)) as ledger:
        ledger.hold(0)
        ledger.head([uuid(1)])
        ledger.slot(0, GIB)
        vcuda.set_undeclared(store.dirs.path(liar.id) / "limits", uuid(0), 6 * GIB)
        store.measured = {liar.id: {uuid(0): 6 * GIB}}
        assert store.reading(liar.id).present() == {uuid(0): 6 * GIB}
        assert [lack.bytes for lack in lacking(store, victim)] == [2 * GIB]


def test_a_damaged_ledger_hides_no_living_process(store, victim_and_liar):
    _, liar = victim_and_liar
    with HostileLedger(store.dirs.path(liar.id)) as ledger:
        pid = ledger.hold(5)
        ledger.garbage()
        reading = store.reading(liar.id)
        assert reading.problem
        assert reading.alive and reading.pids == (pid,)
        assert reading.present() == {uuid(0): 4 * GIB}, "as much as it may have"
        store.measured = {liar.id: {uuid(0): GIB}}
        assert store.reading(liar.id).present() == {uuid(0): GIB}, "as much as it has"
    assert not store.reading(liar.id).alive
    assert store.reading(liar.id).present() == {uuid(0): 0}


def test_what_was_allowed_a_moment_ago_counts_until_it_was_measured(store):
    """An elastic container that filled a GPU is cut back when a neighbour comes; its memory is still there."""
    one = allocation(1, (0, range(4)), library=store.library, policy=AllocationOptions(elastic=True))
    store.commit(store.table.with_allocation(one), [one])
    store.measured = {one.id: {uuid(0): GIB}}
    store.dirs.set_limits(one.id, {uuid(0): (24 * GIB, 0)})
    with HostileLedger(store.dirs.path(one.id)) as ledger:
        ledger.hold(0)
        ledger.slot(0, 20 * GIB)
        assert store.reading(one.id).present() == {uuid(0): 20 * GIB}
        store.dirs.set_limits(one.id, {uuid(0): (4 * GIB, 0)})
        assert store.reading(one.id).present() == {uuid(0): 20 * GIB}
        begun = store.dirs.recent.begin()
        store.measured = {one.id: {uuid(0): 20 * GIB}}
        store.dirs.recent.end(begun)
        assert store.reading(one.id).present() == {uuid(0): 20 * GIB}
        store.measured = {one.id: {uuid(0): 2 * GIB}}
        assert store.reading(one.id).present() == {uuid(0): 4 * GIB}


def test_a_limit_lowered_while_the_driver_was_asked_is_not_forgotten_with_its_answer():
    recent = RecentLimits()
    recent.note("a", uuid(0), 3)
    begun = recent.begin()
    recent.note("a", uuid(0), 2)
    assert recent.of("a") == {uuid(0): 3}
    recent.end(begun)
    assert recent.of("a") == {uuid(0): 2}
    recent.end(recent.begin())
    assert recent.of("a") == {}


sizes = st.integers(0, (1 << 48) - 1)
gpus = st.sampled_from([uuid(n) for n in range(4)])
by_gpu = st.dictionaries(gpus, sizes)


@st.composite
def hostile(draw):
    processes = tuple(
        vcuda.ProcessUsage(
            slot,
            draw(st.integers(-1, 40)),
            draw(st.integers(-(1 << 31), (1 << 31) - 1)),
            draw(st.integers(0, (1 << 64) - 1)),
            draw(by_gpu),
            draw(by_gpu),
            draw(st.integers(0, (1 << 64) - 1)),
            draw(st.text(max_size=16)),
            draw(by_gpu),
            draw(by_gpu),
            draw(st.booleans()),
        )
        for slot in range(draw(st.integers(0, 6)))
    )
    return Reading(
        draw(by_gpu),
        draw(by_gpu),
        processes,
        draw(by_gpu),
        {uuid(0): 8 * GIB},
        problem=draw(st.none() | st.just("damaged")),
        managed=draw(by_gpu),
        shares=draw(
            st.dictionaries(
                gpus,
                st.builds(
                    vcuda.ShareUsage,
                    st.floats(0, 1e13),
                    st.floats(0, 1e13),
                    st.integers(0, 1024),
                    st.booleans(),
                ),
            )
        ),
        without_library=draw(st.dictionaries(gpus, st.integers(0, GIB))),
    )


def within(counts, most):
    assert counts.keys() <= most.keys()
    assert all(0 <= count <= most[gpu] for gpu, count in counts.items())


@given(
    hostile(),
    st.none() | st.dictionaries(gpus, st.integers(0, 24 * GIB)),
    st.booleans(),
    st.booleans(),
    st.dictionaries(gpus, st.integers(0, 24 * GIB)),
)
def test_no_ledger_counts_for_more_than_was_measured_or_promised(reading, measured, elastic, resized, recent):
    one = allocation(1, (0, range(8)), (1, range(2)), policy=AllocationOptions(elastic=elastic))
    if resized:
        one = replace(one, limits=(LiveLimit(uuid(0), 6 * GIB),), resizes=1)
    most = ceiling(one, reading.limits, measured, recent, {uuid(n): 24 * GIB for n in range(2)})
    found = believed(reading, most, measured)
    assert most.now.keys() == most.ever.keys() == one.quota().keys()
    promised = {gpu: max(count, reading.limits.get(gpu, 0)) for gpu, count in one.quota().items()}
    for gpu, count in most.now.items():
        if measured is not None and gpu in measured:
            assert count == max(measured[gpu], promised[gpu], recent.get(gpu, 0))
        elif elastic or resized:
            assert count == 24 * GIB
        else:
            assert count == max(promised[gpu], recent.get(gpu, 0))
    for counted in (found.used, found.managed, found.present()):
        within(counted, most.now)
    within(found.peak, most.ever)
    for process in found.processes:
        for counted in (process.used, process.managed, process.undeclared):
            within(counted, most.now)
        within(process.peak, most.ever)
        assert all(process.declared(gpu) >= 0 for gpu in process.used)
    assert found.shares.keys() <= most.now.keys()
    assert all(one.flying <= found.living for one in found.shares.values())
    assert found.pids == reading.pids and found.alive == reading.alive and found.problem == reading.problem
    if not found.alive:
        assert not any(found.present().values())


@given(st.integers(0, 8 * GIB), st.integers(0, 8 * GIB))
def test_an_honest_ledger_is_believed_to_the_byte(first, rest):
    one = allocation(1, (0, range(8)))
    used = min(first + rest, 8 * GIB)
    process = vcuda.ProcessUsage(
        0, 10, 1, 1, {uuid(0): used}, {uuid(0): used}, 3, "python", {uuid(0): 0}, {uuid(0): 0}
    )
    reading = Reading(
        {uuid(0): used}, {uuid(0): used}, (process,), {uuid(0): 0}, {uuid(0): 8 * GIB}, managed={uuid(0): 0}
    )
    found = believed(reading, ceiling(one, reading.limits, {uuid(0): used}, {}, {}), {uuid(0): used})
    assert replace(found, most={}) == reading


def test_a_process_that_another_container_runs_is_not_believed_to_be_ours():
    process = vcuda.ProcessUsage(0, 10, 1, 1, {uuid(0): GIB}, {uuid(0): GIB}, 0, "p")
    other = replace(process, slot=1, pid=11)
    reading = Reading({uuid(0): 2 * GIB}, {}, (process, other), {}, {uuid(0): 8 * GIB})
    most = Ceiling({uuid(0): 8 * GIB}, {uuid(0): 8 * GIB})
    found = believed(reading, most, None, disowned=frozenset([10]))
    assert found.pids == (11,)
    assert found.used == {uuid(0): GIB}


def test_a_ledger_that_is_being_written_all_the_time_is_not_waited_for(store, victim_and_liar, monkeypatch):
    """XFS has readers wait for writers. The last round's reading counts, which a thread has waited for."""
    victim, liar = victim_and_liar
    real = vcuda.read_ledger

    def busy(path, *more, wait=True):
        if not wait and liar.id in str(path):
            raise vcuda.errors.BusyError("cannot read the ledger")
        return real(path, *more, wait=wait)

    monkeypatch.setattr(vcuda, "read_ledger", busy)
    with HostileLedger(store.dirs.path(liar.id)) as ledger:
        pid = ledger.hold(0)
        ledger.slot(0, GIB)
        early = store.reading(liar.id)
        assert early.problem and early.pids == (pid,) and early.present() == {uuid(0): 4 * GIB}
        auditor = Auditor(store, NoCluster(), OverusePolicy(), Counters())
        asyncio.run(MemoryMonitor(store, SimpleNamespace(process_memory=lambda: None), 1.0, auditor).round())
        assert store.reading(liar.id).present() == {uuid(0): GIB}
        assert store.reading(victim.id).problem is None
        store.ensure(liar)
        assert store.reading(liar.id).present() == {uuid(0): GIB}, "not rebuilt for that"


@pytest.mark.parametrize(("measured", "counted"), [(0, GIB), (2 * GIB, 3 * GIB), (9 * GIB, 4 * GIB)])
def test_of_an_allocation_that_has_ended_nameless_slots_count_as_measured(measured, counted):
    """Another pod can hold a slot of it with a descriptor that it was passed, and hold the memory back for good."""
    held = vcuda.ProcessUsage(0, 0, 1, 1, {uuid(0): 3 * GIB}, {}, 0, "p")
    own = replace(held, slot=1, pid=11, used={uuid(0): GIB})
    reading = Reading({uuid(0): 4 * GIB}, {}, (held, own), {}, {uuid(0): 8 * GIB})
    most, seen = Ceiling({uuid(0): 9 * GIB}, {uuid(0): 9 * GIB}), {uuid(0): measured}
    assert believed(reading, most, seen).used == {uuid(0): 4 * GIB}
    assert believed(reading, most, seen, ended=True).used == {uuid(0): counted}
    assert believed(reading, most, None, ended=True).used == {uuid(0): 4 * GIB}, "without a measurement"
