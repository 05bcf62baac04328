# SPDX-License-Identifier: Apache-2.0
import dataclasses
import errno
import os
import shutil

import pytest

import vcuda
from agent.ledgers import usage
from agent.persistence.directories import AllocationDirs
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationOptions
from gigaslice.core.deviceplugin.origin import Owner, plugin, with_origin
from gigaslice.core.errors import StorageError
from tests.fakes.nodes import GIB, LIBRARY, allocation, uuid
from vcuda import contract

ONE = allocation(1, (0, range(8)), (1, range(2)))


@pytest.fixture
def dirs(tmp_path):
    made = AllocationDirs(tmp_path / "allocations", CODEC)
    made.prepare()
    return made


def test_a_directory_has_all_that_the_mounts_point_at(dirs):
    dirs.create(ONE)
    path = dirs.path(ONE.id)
    page = vcuda.read_limits(path / contract.LIMITS_FILE)
    assert {gpu.uuid: gpu.memory_bytes for gpu in page.gpus} == {uuid(0): 8 * GIB, uuid(1): 2 * GIB}
    assert page.allocation_id.hex() == ONE.id
    assert vcuda.read_ledger(path / contract.LEDGER_FILE).allocation_id.hex() == ONE.id
    assert (path / contract.PRELOAD_FILE).read_text() == f"/usr/local/lib/vcuda/{LIBRARY}\n"
    modes = {
        name: (path / name).stat().st_mode & 0o777
        for name in (contract.LIMITS_FILE, contract.LEDGER_FILE, contract.PRELOAD_FILE)
    }
    assert modes == {contract.LIMITS_FILE: 0o644, contract.LEDGER_FILE: 0o666, contract.PRELOAD_FILE: 0o644}
    assert dirs.problem(ONE) is None


def test_modes_do_not_depend_on_the_umask(dirs):
    before = os.umask(0o077)
    try:
        dirs.create(ONE)
    finally:
        os.umask(before)
    path = dirs.path(ONE.id)
    assert (path / contract.LIMITS_FILE).stat().st_mode & 0o777 == 0o644
    assert (path / contract.LEDGER_FILE).stat().st_mode & 0o777 == 0o666
    assert (path / contract.PRELOAD_FILE).stat().st_mode & 0o777 == 0o644


def test_nobody_else_on_the_node_gets_at_the_ledgers(dirs):
    dirs.create(ONE)
    assert dirs.path(ONE.id).stat().st_mode & 0o077 == 0


def test_allocations_are_read_back_with_their_owners(dirs):
    dirs.create(ONE)
    assert dirs.read_all() == {ONE.id: ONE}
    dirs.write_owner(ONE.id, ContainerRef("default", "p", "main"))
    assert str(plugin(dirs.read_all()[ONE.id]).container) == "default/p/main"


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"namespace": 3}'])
def test_a_damaged_owner_is_no_owner(dirs, content):
    dirs.create(ONE)
    (dirs.path(ONE.id) / contract.OWNER_FILE).write_bytes(content)
    found = dirs.read_all()[ONE.id]
    assert found is not None
    assert found.id == ONE.id


def test_a_directory_without_a_readable_allocation_is_known_as_such(dirs):
    dirs.create(ONE)
    (dirs.path(ONE.id) / "allocation.json").write_bytes(b"x")
    (dirs.path("f" * 32)).mkdir()
    assert dirs.read_all() == {ONE.id: None, "f" * 32: None}


def test_a_directory_that_was_copied_under_another_name_is_not_believed(dirs):
    dirs.create(ONE)
    dirs.path(ONE.id).rename(dirs.path("f" * 32))
    assert dirs.read_all() == {"f" * 32: None}


def test_what_a_killed_agent_left_is_cleared_away(dirs, tmp_path):
    for name in (".new-1", ".old-2"):
        (tmp_path / "allocations" / name).mkdir()
        (tmp_path / "allocations" / name / "limits").touch()
    dirs.create(ONE)
    dirs.prepare()
    assert [path.name for path in (tmp_path / "allocations").iterdir()] == [ONE.id]


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "allocations").iterdir())


def test_files_go_later_than_their_directory(dirs, tmp_path):
    """Or at the next start, when the agent is killed in between."""
    dirs.create(ONE)
    dirs.rebuild(ONE)
    dirs.remove(ONE.id)
    assert dirs.read_all() == {}
    assert len([name for name in names(tmp_path) if name.startswith(".old-")]) == 2
    successor = AllocationDirs(tmp_path / "allocations", CODEC)
    successor.prepare()
    assert names(tmp_path) == []
    dirs.tidy()
    assert names(tmp_path) == []


def test_what_cannot_be_removed_is_said_and_keeps_nothing_else(dirs, tmp_path, monkeypatch):
    other = allocation(2, (0, range(8)))
    for one in (ONE, other):
        dirs.create(one)
        dirs.remove(one.id)
    real = shutil.rmtree

    def fail(path, **more):
        if ONE.id in path.name:
            raise OSError(errno.EROFS, "Read-only file system")
        real(path, **more)

    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(StorageError, match="Read-only file system"):
        dirs.tidy()
    assert [name for name in names(tmp_path) if name.startswith(".old-")] == [f".old-0-{ONE.id}"]


def test_directories_made_ahead_are_used_up_and_made_again(dirs, tmp_path):
    dirs.make_ahead(LIBRARY)
    ahead = names(tmp_path)
    allocations = [allocation(number, (0, range(8))) for number in range(1, len(ahead) + 3)]
    for one in allocations:
        dirs.create(one)
    assert names(tmp_path) == sorted(one.id for one in allocations)
    assert dirs.read_all() == {one.id: one for one in allocations}
    assert [dirs.problem(one) for one in allocations] == [None] * len(allocations)
    dirs.make_ahead(LIBRARY)
    assert len(names(tmp_path)) == len(allocations) + len(ahead)


@pytest.mark.parametrize("damage", ["library", "gone", "empty", "torn"])
def test_a_directory_made_ahead_that_does_not_fit_is_not_used(dirs, tmp_path, damage):
    dirs.make_ahead("libvcuda-other.so" if damage == "library" else LIBRARY)
    for spare in (tmp_path / "allocations").iterdir():
        if damage == "gone":
            shutil.rmtree(spare)
        elif damage == "empty":
            (spare / contract.PRELOAD_FILE).unlink()
        elif damage == "torn":
            (spare / contract.LEDGER_FILE).unlink()
    dirs.create(ONE)
    assert dirs.problem(ONE) is None
    dirs.make_ahead(LIBRARY)
    dirs.tidy()
    assert {name[:11] for name in names(tmp_path)} == {".new-spare-", ONE.id[:11]}
    dirs.create(allocation(2, (0, range(8))))
    assert dirs.problem(allocation(2, (0, range(8)))) is None


def test_what_was_made_ahead_has_the_room_and_the_modes_that_it_will_need(dirs, tmp_path):
    before = os.umask(0o077)
    try:
        dirs.make_ahead(LIBRARY)
    finally:
        os.umask(before)
    for spare in (tmp_path / "allocations").iterdir():
        ledger, page = (spare / contract.LEDGER_FILE).stat(), (spare / contract.LIMITS_FILE).stat()
        assert ledger.st_blocks * 512 >= ledger.st_size == vcuda.ledger_file_bytes()
        assert page.st_blocks * 512 >= page.st_size == 4096
        assert (ledger.st_mode & 0o777, page.st_mode & 0o777) == (0o666, 0o644)
    owned = with_origin(ONE, owner=Owner("uid", "default", "p", "main"))
    dirs.create(owned)
    assert "default" in (dirs.path(ONE.id) / contract.OWNER_FILE).read_text()
    lends = dataclasses.replace(
        allocation(2, (0, range(8))), policy=AllocationOptions(oversubscribe=True)
    )  # whose ledger is larger
    lends = dataclasses.replace(lends, holds=(dataclasses.replace(lends.holds[0], physical_bytes=GIB),))
    dirs.create(lends)
    assert dirs.problem(lends) is None
    ledger = (dirs.path(lends.id) / contract.LEDGER_FILE).stat()
    assert ledger.st_blocks * 512 >= ledger.st_size > vcuda.ledger_file_bytes()


def test_on_a_full_disk_nothing_is_made_ahead(dirs, tmp_path, monkeypatch):
    def fail(*arguments, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    dirs.create(ONE)
    dirs.remove(ONE.id)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        dirs.make_ahead(LIBRARY)
        dirs.tidy()
    assert names(tmp_path) == []


def test_removing_is_repeatable(dirs):
    dirs.create(ONE)
    dirs.remove(ONE.id)
    dirs.remove(ONE.id)
    assert dirs.read_all() == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (contract.LIMITS_FILE, None), (contract.LIMITS_FILE, b""), (contract.LIMITS_FILE, b"x" * 5000),
        (contract.LEDGER_FILE, None), (contract.LEDGER_FILE, b""), (contract.LEDGER_FILE, b"\0" * 400000),
        (contract.PRELOAD_FILE, None), (contract.PRELOAD_FILE, b""), (contract.PRELOAD_FILE, b"\xff\xff"),
    ],
)  # fmt: skip
def test_damage_is_seen_and_mended(dirs, name, content):
    dirs.create(ONE)
    target = dirs.path(ONE.id) / name
    target.unlink()
    if content is not None:
        target.write_bytes(content)
    assert dirs.problem(ONE)
    dirs.rebuild(ONE)
    assert dirs.problem(ONE) is None


def test_files_of_another_allocation_are_damage(dirs):
    other = allocation(2, (0, range(8)), (1, range(2)))
    dirs.create(ONE)
    dirs.create(other)
    (dirs.path(other.id) / contract.LEDGER_FILE).replace(dirs.path(ONE.id) / contract.LEDGER_FILE)
    assert "another allocation" in dirs.problem(ONE)


@pytest.mark.parametrize("step", ["reserve_limits", "reserve_ledger", "fill_limits", "fill_ledger"])
def test_a_failure_leaves_nothing_behind(dirs, tmp_path, monkeypatch, step):
    def fail(*arguments, **keywords):
        raise vcuda.errors.SystemError_("cannot create the ledger", "No space left on device")

    monkeypatch.setattr(vcuda, step, fail)
    with pytest.raises(StorageError, match="No space left on device"):
        dirs.create(ONE)
    assert list((tmp_path / "allocations").iterdir()) == []


def test_too_many_gpus_are_an_error_of_one_line(dirs):
    many = allocation(3, *((gpu, range(1)) for gpu in range(17)))
    with pytest.raises(StorageError) as caught:
        dirs.create(many)
    assert "\n" not in str(caught.value)


def test_a_ledger_that_grew_is_cut_back_and_damage_is_a_reading(dirs):
    dirs.create(ONE)
    path = dirs.path(ONE.id)
    with (path / contract.LEDGER_FILE).open("ab") as file:
        file.write(b"x" * 10000)
    dirs.ledgers.cut()
    assert (path / contract.LEDGER_FILE).stat().st_size == vcuda.ledger_file_bytes()
    reading = usage.read(path)
    assert (reading.problem, reading.alive) == (None, False)
    assert reading.present() == {uuid(0): 0, uuid(1): 0}
    (path / contract.LEDGER_FILE).write_bytes(b"garbage")
    assert "ledger" in usage.read(path).problem
    assert usage.read(path / "nowhere").problem


def test_a_ledger_is_held_open_as_long_as_its_directory_is_there(dirs):
    dirs.create(ONE)
    assert dirs.ledgers.held(ONE.id)
    dirs.rebuild(ONE)
    assert dirs.ledgers.held(ONE.id)
    with (dirs.path(ONE.id) / contract.LEDGER_FILE).open("ab") as file:
        file.write(b"x" * 10000)
    dirs.ledgers.cut()
    assert dirs.ledgers.take_grown().keys() == {ONE.id}, "the new file is the one that is held"
    dirs.remove(ONE.id)
    assert not dirs.ledgers.held(ONE.id)


def test_a_made_ahead_directory_is_held_too(dirs):
    dirs.make_ahead(ONE.library)
    dirs.create(ONE)
    assert dirs.ledgers.held(ONE.id)
