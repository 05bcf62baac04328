"""What reaches the limits pages of containers that share a card's time."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from vcuda._native import ffi, lib

import vcuda
from agent.control.shares import ShareKeeper
from tests.fakes.nodes import uuid
from tests.unit.control.test_keeper import Node
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
def keeper(node):
    return ShareKeeper(node.store, Clock())


def page(node, grant):
    return vcuda.read_limits(node.store.dirs.path(grant.id) / contract.LIMITS_FILE).gpus[0]


class Busy:
    """Says what a container's processes would: work under way, and what it was charged."""

    def __init__(self, monkeypatch):
        self.uses = {}
        monkeypatch.setattr(vcuda, "ShareReader", self.reader)

    def reader(self, path, gpu):
        assert gpu == uuid(0)
        return SimpleNamespace(
            read=lambda: self.uses.get(Path(path).parent.name, vcuda.ShareUsage(0, 0, 0, False))
        )

    def charge(self, seconds, *grants):
        for grant in grants:
            before = self.uses.get(grant.id, vcuda.ShareUsage(0, 0, 0, False))
            self.uses[grant.id] = vcuda.ShareUsage(before.spent + seconds, 0, 1, False)


def test_a_node_without_shares_is_left_alone(node, keeper):
    node.admit("one", range(4))
    node.admit("two", range(4, 8))
    assert keeper.look() >= 1
    assert page(node, node.store.book.grants[0]).granted_permille == 0


def test_one_container_with_a_hard_share_needs_nobody(node, keeper):
    node.admit("one", range(4), cores="30")
    assert keeper.look() >= 1


def test_pages_say_how_the_share_is_meant(node):
    node.admit("one", range(4), cores="30", cores_policy="elastic", priority="guaranteed")
    node.admit("two", range(4, 8), cores="30")
    one, two = (page(node, grant) for grant in node.store.book.grants)
    assert one.compute_policy == 16 << 8 | 1
    assert two.compute_policy == 4 << 8


def test_neighbours_are_given_back_what_the_other_had(node, keeper, monkeypatch):
    node.admit("one", range(4), cores="30")
    node.admit("two", range(4, 8), cores="70")
    busy, grants = Busy(monkeypatch), node.store.book.grants
    for _ in range(100):
        busy.charge(0.005, *grants)
        assert keeper.look() <= 0.005, "looked at often while there is work"
    for grant in grants:
        assert page(node, grant).credit_us == pytest.approx(250_000, rel=0.1)
        assert page(node, grant).granted_permille == grant.policy.cores * 10
    busy.uses = {grant.id: vcuda.ShareUsage(0.5, 0, 0, False) for grant in grants}
    assert keeper.look() > 0.005, "and seldom while there is none"


def test_a_successor_never_takes_credit_back(node, keeper, monkeypatch):
    node.admit("one", range(4), cores="30")
    node.admit("two", range(4, 8), cores="70")
    busy, grants = Busy(monkeypatch), node.store.book.grants
    for _ in range(50):
        busy.charge(0.005, *grants)
        keeper.look()
    before = page(node, grants[0]).credit_us
    successor = ShareKeeper(node.store, Clock())
    for _ in range(50):
        busy.charge(0.005, *grants)
        successor.look()
        assert page(node, grants[0]).credit_us >= before
    assert page(node, grants[0]).credit_us > before


def test_idle_compute_is_lent_and_taken_back(node, keeper, monkeypatch):
    node.admit("borrower", range(4), cores="30", cores_policy="elastic")
    node.admit("owner", range(4, 8), cores="60")
    borrower, owner = node.store.book.grants
    busy = Busy(monkeypatch)
    for _ in range(60):
        busy.charge(0.005, borrower)
        keeper.look()
    assert page(node, borrower).granted_permille >= 900
    for _ in range(30):
        busy.charge(0.005, borrower, owner)
        keeper.look()
    assert page(node, borrower).granted_permille <= 420


def test_what_is_lent_is_said_again_while_it_lasts(node, keeper, monkeypatch):
    """A library takes a silent page for a dead agent's."""
    node.admit("borrower", range(4), cores="30", cores_policy="elastic")
    borrower, busy = node.store.book.grants[0], Busy(monkeypatch)
    path = node.store.dirs.path(borrower.id) / contract.LIMITS_FILE
    changes = []
    for _ in range(400):
        busy.charge(0.005, borrower)
        keeper.look()
        changes.append(vcuda.read_limits(path).changes)
    assert changes[-1] > changes[200] > 0


def test_nothing_is_lent_while_one_without_a_share_is_at_work(node, monkeypatch):
    node.admit("borrower", range(4), cores="30", cores_policy="elastic")
    node.admit("owner", range(4, 8), cores="20")
    node.admit("unlimited", range(8, 12))
    borrower, _, unlimited = node.store.book.grants
    busy, parts = Busy(monkeypatch), {4711: 0.0, 99: 0.9}
    process = SimpleNamespace(pid=4711)
    ledger = node.store.dirs.path(unlimited.id) / contract.LEDGER_FILE
    monkeypatch.setattr(
        vcuda, "read_ledger", lambda path: SimpleNamespace(processes=[process] if path == ledger else [])
    )
    keeper = ShareKeeper(node.store, Clock(), lambda gpu: parts if gpu == uuid(0) else None)

    def granted(answers):
        for _ in range(answers):
            keeper.heed(keeper.measure(keeper._unlimited))
            for _ in range(40):
                busy.charge(0.005, borrower)
                keeper.look()
        return page(node, borrower).granted_permille

    assert granted(3) >= 900, "the card's other processes are nobody's"
    parts[4711] = 0.4
    assert granted(1) == 300
    parts[4711] = 0.0
    assert granted(1) == 300, "the driver samples seldom"
    assert granted(3) >= 900


def test_a_driver_that_cannot_say_what_processes_do_changes_nothing(node, monkeypatch):
    node.admit("borrower", range(4), cores="30", cores_policy="elastic")
    node.admit("unlimited", range(8, 12))
    borrower, busy = node.store.book.grants[0], Busy(monkeypatch)
    keeper = ShareKeeper(node.store, Clock())
    for _ in range(60):
        busy.charge(0.005, borrower)
        keeper.look()
        keeper.heed(keeper.measure(keeper._unlimited))
    assert page(node, borrower).granted_permille >= 900


def test_a_damaged_ledger_costs_only_its_own_container(node, keeper):
    node.admit("one", range(4), cores="30")
    node.admit("two", range(4, 8), cores="70")
    damaged = node.store.dirs.path(node.store.book.grants[0].id) / contract.LEDGER_FILE
    damaged.write_bytes(b"no ledger")
    for _ in range(3):
        assert keeper.look() <= 0.05


def test_a_ledger_of_nonsense_gives_numbers(node):
    """Whatever a container writes there, reading it ends, with values that fit."""
    node.admit("one", range(4), cores="30")
    ledger = node.store.dirs.path(node.store.book.grants[0].id) / contract.LEDGER_FILE
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


def test_processes_that_nvml_does_not_list_have_no_work_under_way(node, keeper, monkeypatch):
    """A container that says 1,000 processes are at work would give its neighbour back all that it is charged."""
    node.admit("honest", range(4), cores="30")
    node.admit("liar", range(4, 8), cores="70")
    honest, liar = node.store.book.grants
    busy = Busy(monkeypatch)
    node.store.listed = {honest.id: {uuid(0): 1}, liar.id: {uuid(0): 1}}
    for _ in range(100):
        busy.charge(0.005, honest, liar)
        busy.uses[liar.id] = replace(busy.uses[liar.id], flying=1000)
        keeper.look()
    assert page(node, honest).credit_us == pytest.approx(250_000, rel=0.1)
