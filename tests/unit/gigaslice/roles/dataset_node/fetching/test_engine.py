# SPDX-License-Identifier: Apache-2.0
"""What a fetch leaves in the image, whatever happens to it on the way."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading

import blake3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigaslice.core.dataset.errors import CacheFullError, DatasetError, LostWritesError, SourceError
from gigaslice.core.dataset.listing import EntryKind
from gigaslice.roles.dataset_node.fetching import bitmap, engine
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.sources.protocol import SourceBusyError
from tests.fakes.dataset_layout import FlatLayout, PartFiles
from tests.fakes.dataset_sources import MemorySource, contents, files, refuse
from tests.fakes.losing_disk import losing_sync

SIZES = {f"dir{i % 7}/file{i}": (i * 997) % 5000 for i in range(300)} | {"large": 300_000, "empty": 0}


def whole_image(listing, plan):
    image = bytearray(plan.size)
    for offset, data in plan.metadata():
        image[offset : offset + len(data)] = data
    entries = [entry for entry in listing.entries if entry.kind is EntryKind.FILE]
    for entry, (offset, size) in zip(entries, plan.extents(), strict=True):
        image[offset : offset + size] = contents(entry.path, size, entry.version)
    return bytes(image)


def fetched(where, source, listing=None, *, bounds=None, started=None, unit_bytes=1 << 16):
    listing = listing or source.listing
    plan = FlatLayout(listing)
    part = PartFiles.begin(where, plan.size)
    digest = asyncio.run(
        fetch(
            plan,
            listing,
            source,
            part,
            bounds=bounds or FetchLimits(),
            started=started,
            unit_bytes=unit_bytes,
        )
    )
    return digest, part.image.read_bytes()


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr(engine, "backoff", lambda failures, retry_after=0.0: 0.001)


class Panic(BaseException):
    """As libraries in Rust raise it."""


def test_a_panic_in_a_thread_ends_the_fetch(tmp_path):
    source = MemorySource(files(SIZES))

    def panics(*_):
        raise Panic("request must be valid")

    source.read_into = panics
    outcome = []

    def work():
        try:
            fetched(tmp_path, source)
        except Panic as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert outcome, "a fetch without threads waits for ever"


def test_every_byte_arrives_and_the_digest_is_the_files(tmp_path):
    listing = files(SIZES)
    source = MemorySource(listing)
    digest, image = fetched(tmp_path, source)
    assert image == whole_image(listing, FlatLayout(listing))
    assert digest == blake3.blake3(image).hexdigest()
    assert source.given == listing.bytes, "every byte of the source once"
    assert set(source.asked.values()) == {1}


@pytest.mark.parametrize("sizes", [{}, {"empty": 0}, {"one": 1}, {"exact": 1 << 16}, {"more": (1 << 16) + 1}])
def test_small_and_empty_datasets(tmp_path, sizes):
    listing = files(sizes)
    digest, image = fetched(tmp_path, MemorySource(listing))
    assert image == whole_image(listing, FlatLayout(listing))
    assert digest == blake3.blake3(image).hexdigest()


def test_what_fails_for_a_time_is_read_again(tmp_path):
    listing = files(SIZES)
    source = MemorySource(listing)
    failed = set()

    def before(entry, offset):
        if (entry.path, offset) not in failed and hash((entry.path, offset)) % 3 == 0:
            failed.add((entry.path, offset))
            raise SourceError("the network is away", retry=True)

    source.before = before
    _, image = fetched(tmp_path, source)
    assert image == whole_image(listing, FlatLayout(listing))
    assert failed


def test_a_read_that_ends_in_the_middle_is_read_again_as_a_whole(tmp_path):
    listing = files({"a": 50_000, "b": 10})
    source = MemorySource(listing, chunk=1000)
    inner, times = source.read_into, []

    def read_into(entry, offset, size, sink):
        times.append(entry.path)
        if len(times) < 3:
            sink(offset, b"x" * min(size, 5))
            raise SourceError("cut", retry=True)
        inner(entry, offset, size, sink)

    source.read_into = read_into
    _, image = fetched(tmp_path, source)
    assert image == whole_image(listing, FlatLayout(listing))


def test_tries_end_and_the_text_has_the_file(tmp_path):
    source = MemorySource(files(SIZES))
    source.before = refuse('file "dir1/file1" is away', retry=True)
    with pytest.raises(SourceError, match=r'"dir1/file1" is away \(8 tries\)'):
        fetched(tmp_path, source)


def test_what_is_not_to_be_tried_again_is_not(tmp_path):
    source = MemorySource(files({"a": 10}))
    source.before = refuse("changed", changed=True)
    with pytest.raises(SourceError) as failure:
        fetched(tmp_path, source)
    assert failure.value.changed
    assert source.asked == {(b"a", 0): 1}


def test_a_busy_server_is_left_alone_by_every_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "backoff", lambda failures, retry_after=0.0: retry_after)
    listing = files({f"{i}": 10 for i in range(400)})
    source = MemorySource(listing, delay=0.001)
    times = []
    begun = threading.Event()

    def before(entry, offset):
        times.append(engine.time.monotonic())
        if not begun.is_set():
            begun.set()
            raise SourceBusyError("busy", 0.4)

    source.before = before
    fetched(tmp_path, source)
    paused = sum(one - times[0] < 0.4 for one in times)
    assert paused <= 64, "each thread may have been about to read; nothing else is read in the pause"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda entry, offset, size, sink: sink(offset, b"x" * (size - 1)),
        lambda entry, offset, size, sink: sink(offset, b"x" * (size + 1)),
        lambda entry, offset, size, sink: sink(offset + 1, b"x" * (size - 1)),
        lambda entry, offset, size, sink: (sink(offset, b"x" * size), sink(offset, b"y" * size)),
    ],
    ids=["fewer", "more", "elsewhere", "twice"],
)
def test_a_source_that_gives_other_bytes_than_asked_is_a_failure(tmp_path, wrong):
    source = MemorySource(files({"a": 1000}))
    source.read_into = wrong
    with pytest.raises(SourceError, match="bytes than asked"):
        fetched(tmp_path, source)


def test_a_mistake_in_a_source_ends_the_fetch(tmp_path):
    source = MemorySource(files(SIZES))
    source.read_into = lambda *_: 1 // 0
    with pytest.raises(ZeroDivisionError):
        fetched(tmp_path, source)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, CacheFullError), (errno.EDQUOT, CacheFullError), (errno.EIO, DatasetError)],
)
def test_a_disk_that_fails_ends_the_fetch_with_its_name(tmp_path, monkeypatch, number, kind):
    def pwrite(*_):
        raise OSError(number, os.strerror(number))

    listing = files({"a": 10})
    plan = FlatLayout(listing)
    part = PartFiles.begin(tmp_path, plan.size)
    source = MemorySource(listing)
    source.before = lambda *_: monkeypatch.setattr(engine.os, "pwrite", pwrite)
    with pytest.raises(kind, match="disk"):
        asyncio.run(fetch(plan, listing, source, part, bounds=FetchLimits()))


@pytest.mark.parametrize("fails", [False, True])
def test_what_has_arrived_counts_after_a_power_loss(tmp_path, monkeypatch, fails):
    """Whether the fetch has ended well, and nothing was made of it, or has failed at its last file."""
    listing = files(SIZES)
    source = MemorySource(listing, parallel=1)
    if fails:
        source.before = lambda entry, _: refuse("large is away")(entry, _) if entry.path == b"large" else None
    with pytest.raises(SourceError) if fails else contextlib.nullcontext():
        fetched(tmp_path, source)
    monkeypatch.setattr(bitmap, "boot_id", lambda: "the next kernel")
    again = MemorySource(listing)
    digest, image = fetched(tmp_path, again)
    assert digest == blake3.blake3(image).hexdigest()
    assert image == whole_image(listing, FlatLayout(listing))
    assert again.given == (SIZES["large"] if fails else 0)


@pytest.mark.parametrize("also", [False, True])
def test_what_a_disk_has_lost_is_read_again(tmp_path, monkeypatch, also):
    """Whether the last sync is the first one to fail, or the fetch has failed already and syncs what it keeps."""
    listing, lost = files(SIZES), []
    source = MemorySource(listing)
    monkeypatch.setattr(os, "fdatasync", losing_sync(os.fdatasync, "part.img", lost))
    if also:
        inner = source.before

        def before(entry, offset):
            if entry.path == b"large":
                raise SourceError("large is away")
            inner(entry, offset)

        source.before = before
    with pytest.raises(SourceError if also else LostWritesError):
        fetched(tmp_path, source)
    assert lost
    source.before = inner if also else source.before
    source.given = 0
    digest, image = fetched(tmp_path, source)
    assert image == whole_image(listing, FlatLayout(listing))
    assert digest == blake3.blake3(image).hexdigest()
    assert source.given == listing.bytes, "nothing that the disk had is trusted"


def test_an_image_of_another_size_is_refused(tmp_path):
    listing = files({"a": 10})
    part = PartFiles.begin(tmp_path, 5)
    with pytest.raises(DatasetError, match="5 bytes"):
        asyncio.run(fetch(FlatLayout(listing), listing, MemorySource(listing), part, bounds=FetchLimits()))


def test_no_more_reads_at_once_than_the_bound(tmp_path):
    source = MemorySource(files({f"{i}": 100 for i in range(600)}), delay=0.002)
    fetched(tmp_path, source, bounds=FetchLimits(reads=6))
    assert 1 < source.most_under_way <= 6


def test_many_reads_at_once_where_each_takes_long(tmp_path):
    source = MemorySource(files({f"{i}": 100 for i in range(3000)}), delay=0.02)
    fetched(tmp_path, source)
    assert source.most_under_way > 20


def test_cancellation_keeps_what_has_arrived(tmp_path):
    listing = files({f"{i:04}": 1000 for i in range(1000)})
    source = MemorySource(listing, delay=0.002)
    plan = FlatLayout(listing)

    async def attempt():
        some = asyncio.Event()
        loop = asyncio.get_running_loop()

        def before(entry, offset):
            if len(source.asked) >= 300 and not some.is_set():
                loop.call_soon_threadsafe(some.set)

        source.before = before
        part = PartFiles.begin(tmp_path, plan.size)
        task = asyncio.create_task(fetch(plan, listing, source, part, bounds=FetchLimits()))
        await some.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(attempt())
    given = source.given
    source.before = lambda *_: None
    assert 250_000 < given < 1_000_000
    assert source.under_way == 0, "no thread reads on after the cancellation has been answered"
    meters = []
    _, image = fetched(tmp_path, source, started=meters.append, unit_bytes=engine.UNIT_BYTES)
    assert image == whole_image(listing, plan)
    assert source.given <= listing.bytes * 1.01
    assert meters[0].now().bytes == listing.bytes
    assert meters[0].now().fetched < listing.bytes


@settings(max_examples=40)
@given(st.data())
def test_a_fetch_that_ends_at_any_read_and_is_resumed_is_a_fetch_in_one_go(tmp_path_factory, data):
    where = tmp_path_factory.mktemp("kill")
    names = st.text("abcdef/", min_size=1, max_size=12).map(
        lambda text: "x" + text.strip("/").replace("//", "/")
    )
    sizes = data.draw(st.dictionaries(names, st.integers(0, 9000), max_size=60))
    sizes = {name: size for name, size in sizes.items() if not any(o.startswith(name + "/") for o in sizes)}
    listing = files({name.replace("//", "/"): size for name, size in sizes.items()})
    source = MemorySource(listing, parallel=4)
    for stop_at in data.draw(st.lists(st.integers(0, 40), max_size=4)):
        left = stop_at

        def before(entry, offset):
            nonlocal left
            left -= 1
            if left < 0:
                raise SourceError("killed")

        source.before = before
        with contextlib.suppress(SourceError):
            fetched(where, source, unit_bytes=4096)
    source.before = lambda *_: None
    _, image = fetched(where, source, unit_bytes=4096)
    assert image == whole_image(listing, FlatLayout(listing))
    assert source.given == listing.bytes, "no byte that arrived is read again"


def test_two_versions_are_never_mixed(tmp_path):
    old, new = files({"a": 4000, "b": 4000}, "old"), files({"a": 4000, "b": 4000}, "new")
    source = MemorySource(old, parallel=1)

    def before(entry, offset):
        if entry.path == b"b":
            raise SourceError("changed", changed=True)

    source.before = before
    first, second = tmp_path / "old", tmp_path / "new"
    first.mkdir()
    second.mkdir()
    with pytest.raises(SourceError):
        fetched(first, source)
    _, image = fetched(second, MemorySource(new))
    assert image == whole_image(new, FlatLayout(new))


@pytest.mark.parametrize("changed", [False, True])
def test_a_source_whose_reads_may_miss_a_change_is_listed_again(tmp_path, changed):
    listing = files({"a": 10})
    source = MemorySource(files({"a": 10}, "2") if changed else listing)
    source.weak = True
    if not changed:
        fetched(tmp_path, source, listing)
        return
    with pytest.raises(SourceError) as failure:
        fetched(tmp_path, source, listing)
    assert failure.value.changed
