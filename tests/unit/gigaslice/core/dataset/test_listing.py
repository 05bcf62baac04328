# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.errors import ListingError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing

FILE, DIRECTORY, SYMLINK = EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.SYMLINK


def file(path: bytes, size: int = 1, version: str = "v") -> Entry:
    return Entry(path, FILE, size, version)


def link(path: bytes, target: bytes) -> Entry:
    return Entry(path, SYMLINK, target=target)


def test_entries_are_sorted_and_parents_implied() -> None:
    listing = Listing.of([file(b"b/c/d", 5), file(b"b-a", 2), Entry(b"e", DIRECTORY)])
    assert [(one.path, one.kind) for one in listing.entries] == [
        (b"b", DIRECTORY),
        (b"b-a", FILE),
        (b"b/c", DIRECTORY),
        (b"b/c/d", FILE),
        (b"e", DIRECTORY),
    ]
    assert (listing.files, listing.bytes) == (2, 7)


def test_an_empty_listing_is_one() -> None:
    assert Listing.of([]).entries == ()
    assert len(Listing.of([]).digest) == 32


def test_a_directorys_version_is_no_part_of_it() -> None:
    """Its time changes with files beside the dataset, and object stores have none."""
    plain = Listing.of([file(b"a/b")])
    assert Listing.of([Entry(b"a", DIRECTORY, 4096, "yesterday"), file(b"a/b")]) == plain


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (b"/etc/passwd", "absolute"),
        (b"/a", "absolute"),
        (b"", "empty path"),
        (b"a//b", 'segment ""'),
        (b"a/", 'segment ""'),
        (b"./a", 'segment "."'),
        (b"a/./b", 'segment "."'),
        (b"..", 'segment ".."'),
        (b"../a", 'segment ".."'),
        (b"a/../../b", 'segment ".."'),
        (b"a/..", 'segment ".."'),
        (b"a\0b", "NUL"),
        (b"a\0/b", "NUL"),
        (b"n" * 256, "256 bytes"),
        (b"n" * 256 + b"/a", "256 bytes"),
        (b"/".join([b"n" * 255] * 16) + b"/a", "4097 bytes"),
    ],
)
def test_paths_that_are_refused(path: bytes, says: str) -> None:
    with pytest.raises(ListingError, match=says) as caught:
        Listing.of([file(b"good"), file(path)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path", [b"n" * 255, b"/".join([b"n" * 255] * 16)[:4095], b"...", b"..a", b"a\nb", b"\xff\xfe", b" "]
)
def test_paths_that_are_taken(path: bytes) -> None:
    assert Listing.of([file(path)]).entries[-1].path == path


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([file(b"a"), file(b"a")], "twice"),
        ([file(b"a"), Entry(b"a", DIRECTORY)], "twice"),
        ([Entry(b"a", DIRECTORY), Entry(b"a", DIRECTORY)], "twice"),
        ([file(b"a"), file(b"a/b")], "no directory"),
        ([link(b"a", b"b"), file(b"a/b")], "no directory"),
        ([file(b"a", -1)], "below zero"),
        ([file(b"a", 1 << 63)], "at most"),
        ([file(b"a", 1 << 42), file(b"b", 1 << 42), file(b"c", 1)], "in all"),
        ([Entry(b"a", FILE, 1, "v", b"target")], "link's target"),
    ],
)
def test_listings_that_are_refused(entries: list[Entry], says: str) -> None:
    for order in itertools.permutations(entries):
        with pytest.raises(ListingError, match=says):
            Listing.of(order)


def test_more_entries_than_the_limit() -> None:
    with pytest.raises(ListingError, match="more than 3 entries"):
        Listing.of((file(b"%d" % number) for number in range(4)), Limits(entries=3))
    with pytest.raises(ListingError, match="more than 3 entries"):
        Listing.of([file(b"a/b/c/d")], Limits(entries=3))


@pytest.mark.parametrize(
    "target", [b"b", b"./b", b"../x/b", b"y/../b", b"../x//y", b"gone", b"../gone/far", b"..", b"z/b"]
)
def test_links_inside(target: bytes) -> None:
    """z leads to y: links may lead through links, and to what is not there."""
    listing = Listing.of([file(b"x/b"), file(b"x/y/c"), link(b"x/z", b"y"), link(b"x/l", target)])
    assert next(one for one in listing.entries if one.path == b"x/l").target == target


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (b"/etc/shadow", "absolute"),
        (b"../../etc", "leaves"),
        (b"..//./../etc", "leaves"),
        (b"y/../../../etc", "leaves"),
        (b"deep/../../..", "goes up"),  # deep leads two levels down: what is lexically inside need not be
        (b"gone/..", "goes up"),
        (b"b/..", "goes up"),
        (b"", "no target"),
        (b"a\0b", "no target"),
        (b"n" * 4096, "no target"),
        (b"n" * 256, "no target"),
    ],
)
def test_links_that_are_refused(target: bytes, says: str) -> None:
    entries = [file(b"x/b"), file(b"x/y/c"), link(b"x/deep", b"../x"), link(b"x/l", target)]
    with pytest.raises(ListingError, match=says):
        Listing.of(entries)


names = st.binary(min_size=1, max_size=3).filter(
    lambda name: name not in (b".", b"..") and not set(b"/\0") & set(name)
)
paths = st.lists(names, min_size=1, max_size=4).map(b"/".join)


@given(st.dictionaries(paths, st.integers(0, 9), max_size=12), st.randoms(use_true_random=False))
def test_order_and_parents_change_nothing(found: dict[bytes, int], random: object) -> None:
    entries = [file(path, size) for path, size in found.items()]
    try:
        listing = Listing.of(entries)
    except ListingError:
        return
    shuffled = list(listing.entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = Listing.of(shuffled)
    assert again == listing
    assert {one.path: one.size for one in listing.entries if one.kind is FILE} == found
    assert list(listing.entries) == sorted(listing.entries, key=lambda one: one.path)


def test_every_part_of_an_entry_is_in_the_digest() -> None:
    base = [file(b"a", 1, "v"), file(b"ab", 1, "w"), link(b"l", b"a")]
    changes = [
        [file(b"a", 2, "v"), *base[1:]],
        [file(b"a", 1, "x"), *base[1:]],
        [file(b"b", 1, "v"), *base[1:]],
        [*base[:2], link(b"l", b"ab")],
        [*base[:2], file(b"l", 1)],
        base[1:],
        [*base, file(b"z", 0, "")],
        [*base, Entry(b"z", DIRECTORY)],
        [file(b"a", 1, "w"), file(b"ab", 1, "v"), base[2]],
    ]
    digests = {Listing.of(one).digest for one in [base, *changes]}
    assert len(digests) == len(changes) + 1


def test_a_hundred_thousand_files_take_less_than_a_kibibyte_each() -> None:
    tracemalloc.start()
    listing = Listing.of(
        file(b"train/n%05d/image_%08d.jpeg" % (n // 1000, n), 16384, f"16384:{n}") for n in range(100_000)
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert listing.files == 100_000
    assert peak / 100_000 < 1024


def test_the_execute_bit_is_in_the_identity_only_where_it_is_set() -> None:
    """Nodes have copies, and packs have listings, that were made before there was one."""

    def record(kind: int) -> bytes:
        return struct.pack("<BQIII", kind, 3, 3, 1, 0) + b"run" + b"v"

    for executable, kind in ((False, 1), (True, 4)):
        listing = Listing.of([Entry(b"run", EntryKind.FILE, 3, "v", executable=executable)])
        assert listing.encoded() == b"gigaslice listing 1\n" + record(kind)
        assert Listing.decode(listing.encoded()) == listing
    for kind in (0, 5, 255):
        with pytest.raises(ListingError, match="damaged"):
            Listing.decode(b"gigaslice listing 1\n" + record(kind))


def test_directories_and_links_have_no_execute_bit() -> None:
    odd = [
        Entry(b"d", EntryKind.DIRECTORY, executable=True),
        Entry(b"l", EntryKind.SYMLINK, target=b"d", executable=True),
    ]
    plain = [one._replace(executable=False) for one in odd]
    assert Listing.of(odd).digest == Listing.of(plain).digest
