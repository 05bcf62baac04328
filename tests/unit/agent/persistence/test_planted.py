# SPDX-License-Identifier: Apache-2.0
"""Something else under a name of the state directory: no process waits for it; what meets it goes on or reports it."""

from __future__ import annotations

import os

import pytest

import vcuda
from agent.commands import status_rows
from agent.health import health_files as health
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.errors import GigasliceError
from tests.fakes.nodes import allocation
from vcuda import errors, quotas

KINDS = ["fifo", "directory", "device", "socket", "loop"]
ALLOCATION = [
    "limits",
    "ledger",
    "ld.so.preload",
    "allocation.json",
    "allocation.json.new",
    "owner.json",
    "owner.json.new",
]
STATE = [
    "checkpoint.json",
    "checkpoint.json.previous",
    "checkpoint.json.new",
    "cordon.json",
    "health.json",
    ".health.json.new",
    ".cordon.json.lock",
    "lock",
]


def plant(path, kind):
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")  # a file that never ends
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.symlink_to(path)


@pytest.fixture
def state(short_dir):
    """A state directory with one allocation, whose agent has ended."""
    library = short_dir / "libvcuda.so"
    library.write_bytes(b"\x7fELF library")
    store = Store(short_dir / "s", library, codec=CODEC)
    store.open()
    one = allocation(1, (0, range(2)), library=store.library)
    store.commit(store.table.with_allocation(one), [one])
    store.close()
    return store, one


def go_on(store, one):
    """What an agent and the commands beside it do with a state directory."""
    try:
        status_rows.collect(store.state_dir)
    except GigasliceError as error:
        assert "\n" not in str(error)
    again = Store(store.state_dir, store.state_dir.parent / "libvcuda.so", codec=CODEC)
    try:
        again.open()
        again.readings()
        if again.table.allocations:
            again.ensure(one)
            again.dirs.write_allocation(one)
            again.dirs.write_owner(one.id, plugin(one).container) if plugin(one).container else None
        again.update(again.table.without([one.id]))
        again.sync()
        again.tidy()
    except GigasliceError as error:
        assert "\n" not in str(error)
    finally:
        again.close()
    for work in (
        lambda: health.read_cordons(store.state_dir),
        lambda: health.read_report(store.state_dir),
        lambda: health.change_cordons(store.state_dir, lambda cordons: cordons),
        lambda: health.write_report(store.state_dir, health.Report("boot", (), {})),
    ):
        try:
            work()
        except GigasliceError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STATE)
def test_in_the_state_directory(state, name, kind):
    store, one = state
    plant(store.state_dir / name, kind)
    go_on(store, one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ALLOCATION)
def test_in_the_directory_of_an_allocation(state, name, kind):
    store, one = state
    directory = store.dirs.path(one.id)
    plant(directory / name, kind)
    try:
        quotas.read_quota(directory)
    except errors.VcudaError as error:
        assert "\n" not in str(error)
    go_on(store, one)


@pytest.mark.parametrize("kind", KINDS)
def test_in_place_of_a_directory(state, kind):
    store, one = state
    directory = store.dirs.path(one.id)
    directory.rename(directory.with_name("elsewhere"))
    plant(directory, kind)
    go_on(store, one)


def test_a_directory_that_goes_while_it_is_read_is_no_damage(state, monkeypatch):
    """Between the checkpoint and its ledgers an allocation can end: it is not shown, neither as damaged."""
    store, one = state
    again = Store(store.state_dir, store.state_dir.parent / "libvcuda.so", codec=CODEC)
    again.open()
    real = vcuda.read_ledger

    def ends(path, *more, **how):
        if again.table.allocations:
            again.update(again.table.without([one.id]))
            again.dirs.remove(one.id)
        return real(path, *more, **how)

    monkeypatch.setattr(vcuda, "read_ledger", ends)
    assert status_rows.collect(store.state_dir) == ()
    assert again.reading(one.id).problem and not again.reading(one.id).alive
    again.close()
