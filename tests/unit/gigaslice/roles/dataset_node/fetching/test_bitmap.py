# SPDX-License-Identifier: Apache-2.0
"""Which bits count after a kill, after a power loss, and on a damaged file."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.errors import DatasetError, LostWritesError
from gigaslice.roles.dataset_node.fetching import bitmap as module
from gigaslice.roles.dataset_node.fetching.bitmap import Bitmap, boot_id
from tests.fakes.losing_disk import losing_sync

UNITS = 100_000


class Disk:
    """A bitmap beside an image."""

    def __init__(self, where, units=UNITS):
        self.where, self.units = where, units
        self.image = os.open(where / "img", os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.image, 12345)

    def open(self, *, resumed=True, boot="this kernel", layout=0):
        return Bitmap(self.where / "bits", self.image, self.units, resumed=resumed, boot=boot, layout=layout)


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def bits(found, units=UNITS):
    return {unit for unit in range(units) if unit in found}


MARKED = {0, 7, 8, 32703, 32704, 32705, 65408, 99_999}


def mark(found, which=MARKED):
    for unit in which:
        found.mark([unit])


def test_a_new_one_has_no_bits(disk):
    assert bits(disk.open(resumed=False)) == set()


def test_flushed_bits_outlive_the_process(disk):
    first = disk.open(resumed=False)
    mark(first)
    first.flush()
    found = disk.open()
    assert bits(found) == MARKED
    assert found.count == len(MARKED)


def test_marked_bits_that_were_not_flushed_do_not(disk):
    mark(disk.open(resumed=False))
    assert bits(disk.open()) == set()


def test_after_a_reboot_only_synced_bits_count(disk):
    first = disk.open(resumed=False)
    mark(first, {1, 50_000})
    first.sync(disk.image)
    mark(first, {2, 60_000})
    first.flush()
    assert bits(disk.open(boot="the next kernel")) == {1, 50_000}


def test_bits_that_did_not_count_once_count_never(disk):
    first = disk.open(resumed=False)
    mark(first, {2})
    first.flush()
    disk.open(boot="the next kernel").close()
    assert bits(disk.open(boot="this kernel")) == set()


def test_without_a_boot_id_only_synced_bits_count(disk):
    first = disk.open(resumed=False, boot="")
    mark(first, {1})
    first.sync(disk.image)
    mark(first, {2})
    first.flush()
    assert bits(disk.open(boot="")) == {1}


def test_the_image_is_synced_before_the_bits_are_written(disk, monkeypatch):
    found = disk.open(resumed=False)
    mark(found, {1})
    found.flush()
    calls = []
    sync, write = os.fdatasync, os.pwrite
    monkeypatch.setattr(module.os, "fdatasync", lambda fd: (calls.append(("sync", fd)), sync(fd)))
    monkeypatch.setattr(module.os, "pwrite", lambda fd, *a: (calls.append(("write", fd)), write(fd, *a))[1])
    found.sync(disk.image)
    assert calls[0] == ("sync", disk.image)
    assert {kind for kind, _ in calls[1:-1]} == {"write"}
    assert calls[-1][0] == "sync"
    assert disk.image not in {fd for _, fd in calls[1:]}


@pytest.mark.parametrize("file", ["img", "bits"])
def test_after_a_sync_that_failed_no_bit_counts_and_no_later_sync_succeeds(disk, monkeypatch, file):
    found = disk.open(resumed=False)
    mark(found, {1})
    found.sync(disk.image)
    mark(found, {2})
    lost = []
    monkeypatch.setattr(module.os, "fdatasync", losing_sync(os.fdatasync, file, lost))
    for _ in range(2):
        with pytest.raises(LostWritesError, match="Input/output error"):
            found.sync(disk.image)
    assert len(lost) == 1
    mark(found, {3})
    found.flush()
    assert bits(disk.open()) == set()


def test_a_bit_that_is_marked_during_the_sync_is_not_synced(disk, monkeypatch):
    found = disk.open(resumed=False)
    mark(found, {1})
    sync = os.fdatasync

    def late(fd):
        sync(fd)
        if fd == disk.image:
            found.mark([2])

    monkeypatch.setattr(module.os, "fdatasync", late)
    found.sync(disk.image)
    assert bits(disk.open(boot="the next kernel")) == {1}


@pytest.mark.parametrize("torn", [0, 1])
def test_a_torn_copy_costs_its_bits_only(disk, torn):
    found = disk.open(resumed=False)
    mark(found, {1})
    found.sync(disk.image)
    mark(found, {2})
    found.sync(disk.image)
    blocks = found._blocks
    found.close()
    with (disk.where / "bits").open("r+b") as file:
        file.seek(4096 * (1 + (1 + torn) * blocks) + 100)
        file.write(b"\xff")
    assert bits(disk.open(boot="the next kernel")) == ({1} if torn else {1, 2})


@pytest.mark.parametrize(
    "change", ["another image", "another size", "another layout", "more units", "not resumed"]
)
def test_a_bitmap_of_something_else_counts_nothing(disk, change):
    first = disk.open(resumed=False)
    mark(first)
    first.sync(disk.image)
    first.close()
    layout, resumed = 0, True
    if change == "another image":
        (disk.where / "img").rename(disk.where / "other")
        disk = Disk(disk.where)
    elif change == "another size":
        os.ftruncate(disk.image, 1)
    elif change == "another layout":
        layout = 1
    elif change == "more units":
        disk.units += 1
    else:
        resumed = False
    assert bits(disk.open(layout=layout, resumed=resumed)) == set()


@given(st.data())
def test_damage_anywhere_never_adds_a_bit(tmp_path_factory, data):
    where = tmp_path_factory.mktemp("bits")
    disk = Disk(where, 40_000)
    found = disk.open(resumed=False)
    marked = set(random.Random(data.draw(st.integers(0, 99))).sample(range(40_000), 100))
    mark(found, marked)
    found.sync(disk.image)
    found.close()
    path = where / "bits"
    body = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(body))))
    path.write_bytes(body[:cut])
    assert bits(disk.open(), 40_000) <= marked


def test_missing_finds_the_first_hole(disk):
    found = disk.open(resumed=False)
    for unit in range(1000):
        if unit not in (0, 13, 64, 999):
            found.mark([unit])
    assert [found.missing(start) for start in (0, 1, 14, 64, 65, 1000)] == [0, 13, 64, 64, 999, 1000]
    small = Disk.__new__(Disk)
    small.where, small.units, small.image = disk.where, 3, disk.image
    few = small.open(resumed=False)
    mark(few, {0, 1, 2})
    assert few.missing() == 3


def test_a_directory_that_cannot_be_written_is_a_text(disk):
    (disk.where / "bits").mkdir()
    with pytest.raises(DatasetError, match="cannot be written"):
        disk.open()


def test_the_kernel_has_a_name_for_its_run():
    assert len(boot_id()) == 36
