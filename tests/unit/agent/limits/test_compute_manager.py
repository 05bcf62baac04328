# SPDX-License-Identifier: Apache-2.0
"""What reaches the limits pages of containers that share a GPU's time."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from vcuda._native import ffi, lib

import vcuda
from agent.limits.compute_manager import ComputeManager
from tests.fakes.nodes import uuid
from tests.unit.agent.limits.test_manager import Node
from vcuda import contract


class Clock:
    """Five milliseconds each time it is asked, unless told otherwise."""

    def __init__(self):
        self.now, self.step = 100.0, 0.005

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def manager(node):
    return ComputeManager(node.store, Clock())


def page(node, allocation):
    return vcuda.read_limits(node.store.dirs.path(allocation.id) / contract.LIMITS_FILE).gpus[0]


class Busy:
    """Reports what a container's processes would: work under way, and what it was charged."""

    def __init__(self, monkeypatch):
        self.uses = {}
        monkeypatch.setattr(vcuda, "ShareReader", self.reader)

    def reader(self, path, gpu):
        assert gpu == uuid(0)
        return SimpleNamespace(
            read=lambda: self.uses.get(Path(path).parent.name, vcuda.ShareUsage(0, 0, 0, False))
        )

    def charge(self, seconds, *allocations):
        for allocation in allocations:
            before = self.uses.get(allocation.id, vcuda.ShareUsage(0, 0, 0, False))
            self.uses[allocation.id] = vcuda.ShareUsage(before.spent + seconds, 0, 1, False)


def test_a_node_without_shares_is_left_alone(node, manager):
    node.admit("one", range(4))
    node.admit("two", range(4, 8))
    assert manager.poll() >= 1
    assert page(node, node.store.table.allocations[0]).allowed_permille == 0


def test_one_container_with_a_hard_share_is_not_polled(node, manager):
    node.admit("one", range(4), cores="30")
    assert manager.poll() >= 1


def test_pages_say_how_the_share_is_meant(node):
    node.admit("one", range(4), cores="30", cores_policy="elastic", priority="guaranteed")
    node.admit("two", range(4, 8), cores="30")
    one, two = (page(node, allocation) for allocation in node.store.table.allocations)
    assert one.compute_policy == 16 << 8 | 1
    assert two.compute_policy == 4 << 8


def test_neighbours_are_given_back_what_the_other_had(node, manager, monkeypatch):
    node.admit("one", range(4), cores="30")
    node.admit("two", range(4, 8), cores="70")
    busy, allocations = Busy(monkeypatch), node.store.table.allocations
    for _ in range(100):
        busy.charge(0.005, *allocations)
        assert manager.poll() <= 0.005, "polled often while there is work"
    for allocation in allocations:
        assert page(node, allocation).credit_us == pytest.approx(250_000, rel=0.1)
        assert page(node, allocation).allowed_permille == allocation.policy.cores * 10
    busy.uses = {allocation.id: vcuda.ShareUsage(0.5, 0, 0, False) for allocation in allocations}
    assert manager.poll() > 0.005, "and seldom while there is none"


def test_a_successor_never_takes_credit_back(node, manager, monkeypatch):
    node.admit("one", range(4), cores="30")
    node.admit("two", range(4, 8), cores="70")
    busy, allocations = Busy(monkeypatch), node.store.table.allocations
    for _ in range(50):
        busy.charge(0.005, *allocations)
        manager.poll()
    before = page(node, allocations[0]).credit_us
    successor = ComputeManager(node.store, Clock())
    for _ in range(50):
        busy.charge(0.005, *allocations)
        successor.poll()
        assert page(node, allocations[0]).credit_us >= before
    assert page(node, allocations[0]).credit_us > before


def test_idle_compute_is_lent_and_taken_back(node, manager, monkeypatch):
    node.admit("borrower", range(4), cores="30", cores_policy="elastic")
    node.admit("owner", range(4, 8), cores="60")
    borrower, owner = node.store.table.allocations
    busy = Busy(monkeypatch)
    for _ in range(60):
        busy.charge(0.005, borrower)
        manager.poll()
    assert page(node, borrower).allowed_permille >= 900
    for _ in range(30):
        busy.charge(0.005, borrower, owner)
        manager.poll()
    assert page(node, borrower).allowed_permille <= 420


def test_what_is_lent_is_said_again_while_it_lasts(node, manager, monkeypatch):
    """A library takes a silent page for a dead agent's."""
    node.admit("borrower", range(4), cores="30", cores_policy="elastic")
    borrower, busy = node.store.table.allocations[0], Busy(monkeypatch)
    path = node.store.dirs.path(borrower.id) / contract.LIMITS_FILE
    changes = []
    for _ in range(400):
        busy.charge(0.005, borrower)
        manager.poll()
        changes.append(vcuda.read_limits(path).changes)
    assert changes[-1] > changes[200] > 0


def test_nothing_is_lent_while_one_without_a_share_is_at_work(node, monkeypatch):
    node.admit("borrower", range(4), cores="30", cores_policy="elastic")
    node.admit("owner", range(4, 8), cores="20")
    node.admit("unlimited", range(8, 12))
    borrower, _, unlimited = node.store.table.allocations
    busy, parts = Busy(monkeypatch), {4711: 0.0, 99: 0.9}
    process = SimpleNamespace(pid=4711)
    ledger = node.store.dirs.path(unlimited.id) / contract.LEDGER_FILE
    monkeypatch.setattr(
        vcuda, "read_ledger", lambda path: SimpleNamespace(processes=[process] if path == ledger else [])
    )
    manager = ComputeManager(node.store, Clock(), lambda gpu: parts if gpu == uuid(0) else None)

    def allowed(answers):
        for _ in range(answers):
            manager.add_sample(manager.measure_unlimited(manager._unlimited))
            for _ in range(40):
                busy.charge(0.005, borrower)
                manager.poll()
        return page(node, borrower).allowed_permille

    assert allowed(3) >= 900, "the GPU's other processes belong to no container"
    parts[4711] = 0.4
    assert allowed(1) == 300
    parts[4711] = 0.0
    assert allowed(1) == 300, "the driver samples seldom"
    assert allowed(3) >= 900


def test_a_driver_that_cannot_say_what_processes_do_changes_nothing(node, monkeypatch):
    node.admit("borrower", range(4), cores="30", cores_policy="elastic")
    node.admit("unlimited", range(8, 12))
    borrower, busy = node.store.table.allocations[0], Busy(monkeypatch)
    manager = ComputeManager(node.store, Clock())
    for _ in range(60):
        busy.charge(0.005, borrower)
        manager.poll()
        manager.add_sample(manager.measure_unlimited(manager._unlimited))
    assert page(node, borrower).allowed_permille >= 900


def test_a_damaged_ledger_costs_only_its_own_container(node, manager):
    node.admit("one", range(4), cores="30")
    node.admit("two", range(4, 8), cores="70")
    damaged = node.store.dirs.path(node.store.table.allocations[0].id) / contract.LEDGER_FILE
    damaged.write_bytes(b"no ledger")
    for _ in range(3):
        assert manager.poll() <= 0.05


def test_a_ledger_of_nonsense_gives_numbers(node):
    """Whatever a container writes there, reading it ends, with values that fit."""
    node.admit("one", range(4), cores="30")
    ledger = node.store.dirs.path(node.store.table.allocations[0].id) / contract.LEDGER_FILE
    with ledger.open("r+b") as file:
        file.seek(960)
        file.write(b"\xff" * 1024)
        file.seek(320)
        file.write(b"\xff" * 4)  # more slots than there are
        file.seek(4096)
        file.write(b"\xff" * 320 * 1024)
    array = ffi.new("struct vc_share_usage[]", 16)
    assert lib.ledger_read_shares(str(ledger).encode(), array, 16) in (1, -1) or array[0].flying <= 1024
    found = vcuda.read_shares(ledger)
    assert all(0 <= use.flying <= lib.VC_MAX_SLOTS for use in found.values())


def test_processes_that_nvml_does_not_list_have_no_work_under_way(node, manager, monkeypatch):
    """A container that says 1,000 processes are at work would give its neighbour back all that it is charged."""
    node.admit("honest", range(4), cores="30")
    node.admit("liar", range(4, 8), cores="70")
    honest, liar = node.store.table.allocations
    busy = Busy(monkeypatch)
    node.store.listed = {honest.id: {uuid(0): 1}, liar.id: {uuid(0): 1}}
    for _ in range(100):
        busy.charge(0.005, honest, liar)
        busy.uses[liar.id] = replace(busy.uses[liar.id], flying=1000)
        manager.poll()
    assert page(node, honest).credit_us == pytest.approx(250_000, rel=0.1)
