# SPDX-License-Identifier: Apache-2.0
"""A state directory whose file system loses the locks of processes: ledgers lie elsewhere, and nothing else changes.

Most tests have a stand-in of the trial; the last one has a real overlayfs, where the kernel lets it be mounted.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vcuda
from agent.ledgers import usage
from agent.persistence.ledger_files import ledger_path
from agent.persistence.store import Store, read_only
from agent.roles.records import CODEC
from gigaslice.core.errors import StorageError
from tests.fakes.nodes import allocation
from vcuda import contract

ONE = allocation(1, (0, range(8)))
TWO = allocation(2, (1, range(8)))


@pytest.fixture
def losing(monkeypatch):
    """Paths below which no lock lasts."""
    found = []
    monkeypatch.setattr(vcuda, "locks_last", lambda path: not any(path.is_relative_to(one) for one in found))
    return found


@pytest.fixture
def make(tmp_path):
    library = tmp_path / "libvcuda.so"
    library.write_bytes(b"\x7fELF library")
    opened = []

    def _make():
        for one in opened:
            one.close()
        store = Store(tmp_path / "state", library, ledger_dir=tmp_path / "run", codec=CODEC)
        store.open()
        opened.append(store)
        return store

    yield _make
    opened[-1].close()


def add(store, one):
    store.commit(store.table.with_allocation(one), [one])
    return ledger_path(store.dirs.path(one.id))


def ledgers(tmp_path):
    return sorted(path.name for path in (tmp_path / "run").rglob("*") if path.is_file())


def test_where_locks_last_a_ledger_lies_beside_the_other_files(make, tmp_path, losing):
    store = make()
    assert add(store, ONE).parent == store.dirs.path(ONE.id)
    assert not (store.dirs.path(ONE.id) / contract.LEDGER_FILE).is_symlink()
    assert not (tmp_path / "run").exists()
    assert store.dirs.ledger_files.unsafe == ""


@pytest.mark.parametrize("ahead", [False, True])
def test_where_they_do_not_it_lies_elsewhere_under_the_same_name(make, tmp_path, losing, ahead):
    losing.append(tmp_path / "state")
    store = make()
    if ahead:
        store.make_ahead()
    where = add(store, ONE)
    assert where.is_relative_to(tmp_path / "run")
    assert where.stat().st_mode & 0o777 == contract.LEDGER_MODE
    assert where.parent.stat().st_mode & 0o077 == 0
    mounted = store.dirs.path(ONE.id) / contract.LEDGER_FILE
    assert mounted.samefile(where)
    assert vcuda.read_ledger(mounted).allocation_id.hex() == ONE.id
    assert store.dirs.problem(ONE) is None
    assert store.dirs.ledgers.held(ONE.id)
    assert store.dirs.ledger_files.unsafe == ""
    _, readings = read_only(
        store.state_dir, CODEC
    )  # as another process reads it, which knows nothing of the place
    assert readings[ONE.id].problem is None


def test_a_ledger_that_grows_elsewhere_is_cut_too(make, tmp_path, losing):
    losing.append(tmp_path / "state")
    store = make()
    where = add(store, ONE)
    size = where.stat().st_size
    os.truncate(where, 8 << 20)
    store.dirs.ledgers.cut()
    assert where.stat().st_size == size


def test_what_runs_keeps_the_place_that_it_has(make, tmp_path, losing):
    before = add(make(), ONE)
    losing.append(tmp_path / "state")
    after = make()
    assert ledger_path(after.dirs.path(ONE.id)) == before
    assert add(after, TWO).is_relative_to(tmp_path / "run")
    losing.clear()
    again = make()
    assert ledger_path(again.dirs.path(TWO.id)).is_relative_to(tmp_path / "run")
    assert again.dirs.problem(ONE) is again.dirs.problem(TWO) is None


def test_it_ends_with_its_allocation(make, tmp_path, losing):
    losing.append(tmp_path / "state")
    store = make()
    store.make_ahead()
    where = add(store, ONE)
    store.dirs.remove(ONE.id)
    assert not where.exists()
    store.tidy()
    assert store.dirs.path(ONE.id).parent.is_dir()
    assert all(name.startswith(".new-spare-") for name in ledgers(tmp_path))


def test_what_a_killed_agent_left_is_cleared_away(make, tmp_path, losing):
    losing.append(tmp_path / "state")
    store = make()
    store.make_ahead()
    kept, ended = add(store, ONE), add(store, TWO)
    store.update(store.table.without([TWO.id]))
    shutil.rmtree(store.dirs.path(TWO.id))
    neighbour = kept.parent / "neighbour"  # of another agent, whose state directory lies below ours
    neighbour.mkdir()
    assert len(ledgers(tmp_path)) > 2
    make()
    assert ledgers(tmp_path) == [ONE.id]
    assert neighbour.is_dir()
    assert not ended.exists()


@pytest.mark.parametrize("still", [True, False])
def test_after_a_reboot_it_is_made_anew_at_the_same_path(make, tmp_path, losing, still):
    losing.append(tmp_path / "state")
    store = make()
    where = add(store, ONE)
    page = store.dirs.path(ONE.id) / contract.LIMITS_FILE
    before = page.stat().st_ino
    shutil.rmtree(tmp_path / "run")
    if not still:
        losing.clear()  # the state directory has moved to another disk meanwhile
    again = make()
    assert ledger_path(again.dirs.path(ONE.id)) == where
    assert usage.read(again.dirs.path(ONE.id)).problem is None
    assert again.dirs.problem(ONE) is None
    assert again.dirs.ledgers.held(ONE.id)
    assert page.stat().st_ino == before  # what may be mounted stays


def test_a_start_mends_what_is_lost_while_the_agent_runs(make, tmp_path, losing):
    losing.append(tmp_path / "state")
    store = make()
    add(store, ONE)
    shutil.rmtree(tmp_path / "run")
    store.ensure(ONE)
    assert store.dirs.problem(ONE) is None
    assert add(store, TWO).exists()


def test_where_nothing_keeps_a_lock_containers_start_and_it_is_said(make, tmp_path, losing):
    losing.extend([tmp_path / "state", tmp_path / "run"])
    store = make()
    assert add(store, ONE).parent == store.dirs.path(ONE.id)
    assert str(tmp_path / "state") in store.dirs.ledger_files.unsafe
    assert str(tmp_path / "run") in store.dirs.ledger_files.unsafe


def test_a_place_that_cannot_be_made_turns_nobody_away(make, tmp_path, losing):
    losing.append(tmp_path / "state")
    (tmp_path / "run").write_text("a file")
    store = make()
    assert add(store, ONE).parent == store.dirs.path(ONE.id)
    assert "run" in store.dirs.ledger_files.unsafe


def test_a_ledger_that_cannot_be_made_anew_does_not_end_the_agent(make, tmp_path, losing):
    losing.append(tmp_path / "state")
    add(make(), ONE)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("a file")
    again = make()
    assert again.dirs.problem(ONE)
    again.ensure(ONE)  # beside the other files then, and at the same path for its mount
    assert again.dirs.problem(ONE) is None


def test_a_full_place_is_one_sentence_and_leaves_nothing(make, tmp_path, losing, monkeypatch):
    losing.append(tmp_path / "state")
    store = make()

    def full(path, mode):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vcuda, "reserve_ledger", full)
    store.make_ahead()
    with pytest.raises(StorageError, match="No space left"):
        add(store, ONE)
    with pytest.raises(StorageError, match="No space left"):
        store.probe()
    assert ledgers(tmp_path) == []
    assert list((tmp_path / "state/allocations").iterdir()) == []


@pytest.mark.parametrize("target", ["/dev/zero", "ledger", "../x", "/tmp"])
def test_a_planted_link_is_not_taken_for_the_agents_own(make, tmp_path, losing, target):
    store = make()
    path = add(store, ONE)
    path.unlink()
    path.symlink_to(target)
    assert ledger_path(path.parent) == path
    store.dirs.remove(ONE.id)
    store.tidy()
    assert Path("/dev/zero").is_char_device()


_ON_OVERLAYFS = """
import subprocess, sys
from pathlib import Path
root = Path(sys.argv[1])
run = lambda *words: subprocess.run(words, check=True, capture_output=True)
try:
    run("mount", "-t", "tmpfs", "none", str(root))
    for name in ("lower", "upper", "work", "state", "run"):
        (root / name).mkdir()
    layers = f"lowerdir={root}/lower,upperdir={root}/upper,workdir={root}/work"
    run("mount", "-t", "overlay", "none", "-o", layers, str(root / "state"))
except subprocess.CalledProcessError as error:
    print(error.stderr.decode(), file=sys.stderr)
    raise SystemExit(77)
import vcuda
from agent.roles.records import CODEC
from agent.persistence.ledger_files import ledger_path
from agent.persistence.store import Store
from tests.fakes.nodes import allocation
one = allocation(1, (0, range(8)))
(root / "libvcuda.so").write_bytes(b"library")
for place in (root / "run", None):
    store = Store(root / "state" / str(place is None), root / "libvcuda.so", ledger_dir=place, codec=CODEC)
    store.open()
    store.commit(store.table.with_allocation(one), [one])
    path = ledger_path(store.dirs.path(one.id))
    print("lasts", vcuda.locks_last(path), "unsafe", bool(store.dirs.ledger_files.unsafe))
    store.close()
"""


def test_on_a_real_overlayfs(tmp_path):
    found = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-c",
            _ON_OVERLAYFS,
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode in (1, 77) and "Traceback" not in found.stderr:
        pytest.skip(f"no overlayfs can be mounted here: {found.stderr.strip()}")
    said = [line for line in found.stdout.splitlines() if line.startswith("lasts")]
    assert said == ["lasts True unsafe False", "lasts False unsafe True"], found.stderr
