# SPDX-License-Identifier: Apache-2.0
import stat
from types import SimpleNamespace

import pytest

import vcuda
from agent.deviceplugin.reviews import carry_out
from agent.ledgers import usage
from agent.persistence.store import Store, read_only
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.deviceplugin.lifetime import Evidence, Listed, PodListing
from gigaslice.core.deviceplugin.origin import plugin, with_origin
from gigaslice.core.deviceplugin.reconcile import review
from gigaslice.core.errors import CheckpointError, LockedError, MissingError, StorageError
from tests.fakes.nodes import LIBRARY, allocation, inventory
from vcuda import contract

REF = ContainerRef("default", "p", "main")


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "libvcuda.so"
    path.write_bytes(b"\x7fELF library")
    return path


@pytest.fixture
def make(tmp_path, library):
    opened = []

    def _make():
        store = Store(tmp_path / "state", library, codec=CODEC)
        store.open()
        opened.append(store)
        return store

    yield _make
    for store in opened:
        store.close()


def fill(store, *allocations):
    table = store.table
    for one in allocations:
        table = table.with_allocation(one)
    store.commit(table, allocations)


def test_a_fresh_directory_is_made_ready(make, tmp_path):
    store = make()
    assert store.table == AllocationTable()
    assert store.library == f"libvcuda-{vcuda.__version__}.so"
    assert (store.library_dir / store.library).read_bytes() == b"\x7fELF library"
    assert stat.S_IMODE((tmp_path / "state/allocations").stat().st_mode) == 0o700


def test_whoever_watches_is_told_of_every_change_of_the_allocation_table(make):
    store, told = make(), []
    store.watchers.append(lambda: told.append(len(store.table.allocations)))
    fill(store, allocation(1, (0, range(8))))
    store.update(store.table)
    store.remember(store.table.without([f"{1:032x}"]))
    assert told == [1, 0]


def test_a_successor_finds_the_allocation_table(make):
    first = make()
    fill(first, allocation(1, (0, range(8))), allocation(2, (1, range(4))))
    table = first.table
    first.close()
    assert make().table == table


def test_only_one_agent_at_a_time(make):
    make()
    with pytest.raises(LockedError):
        make()


def test_a_lost_checkpoint_costs_nothing(make, tmp_path):
    first = make()
    fill(first, allocation(1, (0, range(8))), allocation(2, (1, range(4))))
    carry_out(first, reconciled(first, Listed(REF, plugin(allocation(1, (0, range(8)))).device_ids)))
    table = first.table
    first.close()
    for name in ("checkpoint.json", "checkpoint.json.previous"):
        (tmp_path / "state" / name).write_bytes(b"garbage")
    unknown_again = AllocationTable(
        tuple(with_origin(one, suspects=None) for one in table.allocations), table.next_number
    )
    assert make().table == unknown_again


def test_missing_directories_are_made_again(make, tmp_path):
    first = make()
    fill(first, allocation(1, (0, range(8))))
    first.dirs.remove(first.table.allocations[0].id)
    first.close()
    second = make()
    assert second.dirs.problem(second.table.allocations[0]) is None


def test_a_damaged_directory_waits_for_the_next_start_of_its_container(make):
    first = make()
    fill(first, allocation(1, (0, range(8))))
    (one,) = first.table.allocations
    limits = first.dirs.path(one.id) / contract.LIMITS_FILE
    limits.write_bytes(b"")
    first.close()
    second = make()
    assert limits.read_bytes() == b""
    second.ensure(one)
    assert second.dirs.problem(one) is None


def test_a_damaged_directory_that_processes_use_starts_no_container(make, monkeypatch):
    """Without its preload line the container would run without limits."""
    store = make()
    fill(store, allocation(1, (0, range(8))))
    (one,) = store.table.allocations
    preload = store.dirs.path(one.id) / contract.PRELOAD_FILE
    preload.unlink()
    monkeypatch.setattr(usage, "read", lambda path: SimpleNamespace(alive=True))
    with pytest.raises(StorageError, match="damaged while processes use it"):
        store.ensure(one)
    assert not preload.exists()
    monkeypatch.undo()
    store.ensure(one)
    assert preload.exists()


def test_a_commit_that_fails_changes_nothing(make, monkeypatch):
    store = make()
    fill(store, allocation(1, (0, range(8))))
    table = store.table

    def fail(found):
        raise StorageError("no room")

    monkeypatch.setattr(store._checkpoint, "save", fail)
    with pytest.raises(StorageError):
        fill(store, allocation(2, (1, range(4))), allocation(3, (1, range(4, 8))))
    assert store.table == table
    assert set(store.dirs.read_all()) == {table.allocations[0].id}


def reconciled(store, *listed, patience=3):
    return review(
        store.table,
        Evidence(PodListing(listed)),
        young=frozenset(),
        asked_at=store.table.next_number,
        unlisted={},
        patience=patience,
        gpus=inventory().gpus,
        library=LIBRARY,
        now=1.0,
    )


def test_a_review_is_carried_out(make):
    store = make()
    one, two = (
        allocation(1, (0, range(8))),
        allocation(2, (1, range(4)), container=ContainerRef("default", "q", "main")),
    )
    fill(store, one, two)
    carry_out(store, reconciled(store, Listed(REF, plugin(one).device_ids), patience=1))
    assert [plugin(found).container for found in store.table.allocations] == [REF]
    assert plugin(store.dirs.read_all()[one.id]).container == REF
    assert not store.dirs.path(two.id).exists()


def test_a_stranger_gets_a_directory(make):
    store = make()
    carry_out(store, reconciled(store, Listed(REF, plugin(allocation(1, (0, range(8)))).device_ids)))
    (found,) = store.table.allocations
    assert store.dirs.problem(found) is None


def test_reading_needs_no_lock_and_changes_nothing(make, tmp_path):
    store = make()
    fill(store, allocation(1, (0, range(8))))
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "state").rglob("*"))
    table, readings = read_only(tmp_path / "state", CODEC)
    assert table == store.table
    assert set(readings) == {table.allocations[0].id}
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "state").rglob("*")) == before


def test_reading_what_is_no_state_directory(tmp_path):
    with pytest.raises(StorageError, match="--state-dir"):
        read_only(tmp_path, CODEC)
    (tmp_path / "allocations").mkdir()
    (tmp_path / "checkpoint.json").write_bytes(b"x")
    with pytest.raises(CheckpointError):
        read_only(tmp_path, CODEC)


def test_a_state_directory_that_cannot_be(tmp_path, library):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="state directory"):
        Store(tmp_path / "file" / "state", library, codec=CODEC).open()


def test_without_permission_the_remedy_is_said(tmp_path, library, monkeypatch):
    from pathlib import Path

    def refused(*arguments, **keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(MissingError, match="run as root"):
        Store(tmp_path / "state", library, codec=CODEC).open()


def test_an_upgrade_leaves_the_old_library(make, tmp_path, library):
    first = make()
    fill(first, allocation(1, (0, range(8))))
    old = first.library
    first.close()
    library.write_bytes(b"\x7fELF another")
    second = make()
    assert second.library != old
    assert (second.library_dir / old).read_bytes() == b"\x7fELF library"
