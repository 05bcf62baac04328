# SPDX-License-Identifier: Apache-2.0
"""What is joined into one write is what would have been written one by one."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.image import plan
from gigaslice.roles.dataset_node.fetching import engine
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.fetching.write_coalescer import WriteCoalescer
from tests.fakes.dataset_layout import PartFiles
from tests.fakes.dataset_sources import MemorySource, files
from tests.unit.gigaslice.roles.dataset_node.fetching.test_engine import whole_image

BLOCK = 16


class Image:
    def __init__(self, size=1 << 21):
        self.bytes, self.writes = bytearray(b"\xee" * size), []

    def write(self, place, data):
        self.writes.append((place, len(data)))
        self.bytes[place : place + len(data)] = data


@pytest.fixture
def image():
    return Image()


def test_units_that_touch_are_one_write(image):
    joined = WriteCoalescer(image.write, BLOCK)
    for place in (32, 64, 96):
        joined.begin(place)
        joined.add(place, b"a" * 20)
        joined.add(place + 20, b"b" * 12)
    assert image.writes == []
    joined.flush()
    joined.flush()
    assert image.writes == [(32, 96)]


def test_zeros_are_written_behind_a_file_that_has_its_block_to_itself_and_nowhere_else(image):
    joined = WriteCoalescer(image.write, BLOCK)
    for place, size in ((32, 5), (48, 7), (64, 3), (70, 4), (80, 2), (112, 16), (128, 1)):
        joined.begin(place)
        joined.add(place, b"x" * size)
    joined.flush()
    assert image.writes == [(32, 35), (70, 4), (80, 2), (112, 17)]
    assert bytes(image.bytes[32:67]) == b"xxxxx" + bytes(11) + b"xxxxxxx" + bytes(9) + b"xxx"


def test_what_is_large_is_written_as_it_is_and_in_its_order(image):
    joined = WriteCoalescer(image.write, BLOCK)
    joined.begin(0)
    joined.add(0, b"s" * 160)
    joined.add(160, b"l" * (1 << 20))
    joined.add(160 + (1 << 20), b"e" * 8)
    joined.flush()
    assert image.writes == [(0, 160), (160, 1 << 20), (160 + (1 << 20), 8)]


def test_a_unit_that_failed_is_left_out_and_what_stood_before_it_is_not(image):
    joined = WriteCoalescer(image.write, BLOCK)
    joined.begin(0)
    joined.add(0, b"x" * 16)
    joined.begin(16)
    joined.add(16, b"half")
    joined.undo()
    joined.begin(32)
    joined.add(32, b"y" * 16)
    joined.flush()
    assert image.writes == [(0, 16), (32, 16)]


def test_what_could_not_be_written_is_not_written_later():
    def fail(place, data):
        raise OSError("no")

    joined = WriteCoalescer(fail, BLOCK)
    joined.begin(0)
    joined.add(0, b"x")
    with pytest.raises(OSError, match="no"):
        joined.flush()
    joined.flush()


@given(
    units=st.lists(
        st.tuples(
            st.integers(0, 20),
            st.integers(0, 30) | st.integers(60_000, 70_000),
            st.integers(0, 60_000),
            st.booleans(),
        ),
        max_size=30,
    ),
    piece=st.integers(7, 50_000),
)
def test_any_units_at_any_places(units, piece):
    """Each is (gap before it, size, what arrives of it, whether it is undone)."""
    image, place, whole, gaps = Image(1 << 22), 0, [], []
    joined = WriteCoalescer(image.write, 1)
    for gap, size, arrives, undone in units:
        gaps.append((place, gap))
        place += gap
        data = os.urandom(size)
        joined.begin(place)
        for at in range(0, min(size, arrives) if undone else size, piece):
            joined.add(place + at, data[at : at + piece])
        if undone:
            joined.undo()
        else:
            whole.append((place, data))
        place += size
    joined.flush()
    for where, data in whole:
        assert image.bytes[where : where + len(data)] == data
    for where, gap in gaps:
        assert image.bytes[where : where + gap] == b"\xee" * gap, "what is between units is not touched"


@given(sizes=st.lists(st.sampled_from([0, 1, 31, 2000, 2100, 4095, 4096, 4097, 9000, 70_000]), max_size=60))
def test_an_image_of_a_real_plan_has_every_byte(tmp_path_factory, sizes):
    listing = files({f"d{number % 3}/f{number}": size for number, size in enumerate(sizes)})
    made, where = plan(listing), tmp_path_factory.mktemp("part")
    part = PartFiles.begin(where, made.size)
    source = MemorySource(listing, parallel=3, chunk=1500)
    asyncio.run(fetch(made, listing, source, part, bounds=FetchLimits()))
    assert part.image.read_bytes() == whole_image(listing, made)


def test_small_files_are_written_by_few_calls_and_none_counts_before(tmp_path, monkeypatch):
    listing = files({f"f{number:04}": 4096 for number in range(512)})
    made = plan(listing)
    part = PartFiles.begin(tmp_path, made.size)
    source = MemorySource(listing, parallel=1)
    writes, real = [], engine.os.pwrite

    def pwrite(fd, data, place):
        writes.append(place)
        return real(fd, data, place)

    def before(entry, offset):
        if entry.path == b"f0300":
            raise SourceError("gone", changed=True)

    monkeypatch.setattr(engine.os, "pwrite", pwrite)
    source.before = before
    with pytest.raises(SourceError, match="gone"):
        asyncio.run(fetch(made, listing, source, part, bounds=FetchLimits(), flush_seconds=60.0))
    assert len(writes) < 150, "metadata, bits, and the files a batch at a time"
    source.before, source.asked = lambda entry, offset: None, source.asked.__class__()
    part = PartFiles.begin(tmp_path, made.size)
    asyncio.run(fetch(made, listing, source, part, bounds=FetchLimits(), flush_seconds=60.0))
    assert part.image.read_bytes() == whole_image(listing, made)
    assert 212 <= len(source.asked) < 300, "what had arrived before the failure was written, and counts"
