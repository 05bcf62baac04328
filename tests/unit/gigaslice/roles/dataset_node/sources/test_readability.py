# SPDX-License-Identifier: Apache-2.0
"""What is read to show that one may read."""

import asyncio

import pytest

from gigaslice.core.dataset.errors import SourceError
from gigaslice.roles.dataset_node.sources import readability
from gigaslice.roles.dataset_node.sources.readability import check_readable
from tests.fakes.dataset_sources import MemorySource, files, refuse


def asked(sizes, before=None):
    source = MemorySource(files(sizes))
    if before is not None:
        source.before = before
    asyncio.run(check_readable(source, source.listing))
    return source


def test_it_is_one_byte_of_a_few_files_from_the_first_to_the_last():
    source = asked({f"{number:03}": 5000 for number in range(100)})
    assert sorted(path for path, _ in source.asked) == [b"000", b"033", b"066", b"099"]
    assert source.given == 4


def test_of_a_few_files_it_is_all_and_of_empty_ones_none():
    assert asked({"a": 1, "b": 0, "c": 7}).given == 2
    assert asked({"a": 0}).given == asked({}).given == 0


def test_one_file_that_may_not_be_read_is_enough():
    def before(entry, offset):
        if entry.path.startswith(b"private"):
            refuse("not yours", denied=True)(entry, offset)

    with pytest.raises(SourceError, match="not yours"):
        asked({"a": 9, "b": 9, "private/x": 9, "private/y": 9, "public": 9}, before)


def test_a_server_without_ranges_is_asked_for_whole_small_files():
    spans = []

    class Whole(MemorySource):
        def read_into(self, entry, offset, size, sink):
            spans.append((entry.path, size))
            if size != entry.size:
                raise SourceError("gives no ranges")
            super().read_into(entry, offset, size, sink)

    source = Whole(files({"a": 300}))
    asyncio.run(check_readable(source, source.listing))
    assert spans == [(b"a", 1), (b"a", 300)]
    large = Whole(files({"a": 9 << 20}))
    with pytest.raises(SourceError, match="gives no ranges"):
        asyncio.run(check_readable(large, large.listing))


def test_a_fault_that_may_pass_is_tried_again_a_few_times(monkeypatch):
    monkeypatch.setattr(readability, "backoff", lambda failures, after: 0.001)
    faults = [SourceError("busy", retry=True)] * 4

    def before(entry, offset):
        if faults:
            raise faults.pop()

    assert asked({"a": 9}, before).given == 1
    faults = [SourceError("busy", retry=True)] * 5
    with pytest.raises(SourceError, match="busy"):
        asked({"a": 9}, before)


def test_a_pack_has_shown_it_by_its_listing():
    source = MemorySource(files({"a": 9}))
    source.image = object()
    asyncio.run(check_readable(source, source.listing))
    assert source.given == 0
