# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import ListingError
from gigaslice.core.dataset.image import ImageEntry, ImagePlan, plan, ranges, read_tree
from gigaslice.core.dataset.image.plan import INLINE_BYTES
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing
from tests.fakes.images import content, listed, listings, written

FILE, DIRECTORY, SYMLINK = EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.SYMLINK


def tree(image: bytes) -> list[ImageEntry]:
    return sorted(read_tree(lambda at, size: image[at : at + size], len(image)))


def expect(made: ImagePlan, image: bytes) -> None:
    """Everything of the listing is in the image, and nothing else."""
    found = tree(image)
    assert [(one.path, one.kind, one.target) for one in found] == [
        (one.path, one.kind, one.target) for one in made.listing.entries
    ]
    executable = {one.path for one in made.listing.entries if one.executable}
    for one in found:
        assert (one.owner, one.group) == (0, 0)
        if one.kind is FILE:
            assert image[one.offset : one.offset + one.size] == content(one.path, one.size)
            assert (one.mode, one.links) == (0o555 if one.path in executable else 0o444, 1)
        elif one.kind is DIRECTORY:
            assert one.mode == 0o555
            below = [
                two for two in found if two.kind is DIRECTORY and two.path.rpartition(b"/")[0] == one.path
            ]
            assert one.links == 2 + len(below)
    files = [one for one in found if one.kind is FILE]
    assert [(one.offset, one.size) for one in files if one.size] == [one for one in made.extents() if one[1]]


@given(listings(), st.integers(0, 1000))
def test_an_image_is_its_listing(listing: Listing, seed: int) -> None:
    made = plan(listing)
    assert made.size % made.block_size == 0
    expect(made, written(made, seed))


@given(listings(), st.randoms(use_true_random=False))
def test_an_image_follows_from_the_tree_alone(listing: Listing, random: object) -> None:
    """Not from the order of listing, nor from versions: the same files from another source are the same image."""
    entries = [one._replace(version="w" if one.kind is FILE else "") for one in listing.entries]
    random.shuffle(entries)  # type: ignore[attr-defined]
    assert written(plan(Listing.of(entries)), 1) == written(plan(listing), 2)


@given(listings())
def test_parts_do_not_overlap_and_are_in_order(listing: Listing) -> None:
    made = plan(listing)
    metadata = [(offset, len(data)) for offset, data in made.metadata()]
    assert metadata == sorted(metadata)
    assert all(size for _, size in metadata)
    end = 0
    for offset, size in sorted([*metadata, *(one for one in made.extents() if one[1])]):
        assert offset >= end
        end = offset + size
    assert end <= made.size


def test_the_bytes_of_images_stay_what_they_are() -> None:
    """Nodes share images by their digests, and packs outlive this version: a change of a byte changes the layout's
    version, and this test."""
    made = plan(
        listed(
            [
                (b"a/one", 3),
                (b"a/two", 5000),
                (b"b", 0),
                (b"c", INLINE_BYTES),
                *((b"d/%d" % n, n) for n in range(400)),
            ],
            [Entry(b"empty", DIRECTORY), Entry(b"link", SYMLINK, target=b"a/one")],
        )
    )
    assert hasher(written(made)).hexdigest() == (
        "4477a77581addd4e6ca44a18f4193d3e5c0557c308b8e03603356223395fc95b"
    )


@pytest.mark.parametrize("size", [0, 3, INLINE_BYTES, INLINE_BYTES + 1, 1 << 32])
def test_a_file_that_may_be_executed_differs_by_its_mode_alone(size: int) -> None:
    plain, runs = (
        plan(Listing.of([Entry(b"run", FILE, size, "v", executable=one)])) for one in (False, True)
    )
    assert (plain.size, list(plain.extents())) == (runs.size, list(runs.extents()))
    before, after = (b"".join(data for at, data in one.metadata() if at) for one in (plain, runs))
    differing = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert len(differing) == 1 and (before[differing[0]], after[differing[0]]) == (0o444 & 255, 0o555 & 255)


@pytest.mark.parametrize(
    "size",
    [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 4095, 4096, 4097, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 1 << 42],
)
def test_sizes(size: int) -> None:
    """Large ones are not written: only what describes them is, and read back."""
    made = plan(listed([(b"file", size), (b"next", 5000)]))
    parts = dict(made.metadata())

    def read(at: int, count: int) -> bytes:
        return next(
            (
                data[at - begin : at - begin + count]
                for begin, data in parts.items()
                if begin <= at < begin + len(data)
            ),
            b"",
        ).ljust(count, b"\0")

    file, following = sorted(read_tree(read, made.size))
    assert (file.size, following.size) == (size, 5000)
    if size > INLINE_BYTES:
        assert file.offset % 4096 == 0
        assert following.offset >= file.offset + size


def test_small_files_share_blocks() -> None:
    made = plan(listed((b"%05d" % number, 100) for number in range(10_000)))
    assert made.size < 10_000 * (160 + 12 + 5) * 1.05 + (1 << 16)
    expect(made, written(made))


def test_sixteen_kibibytes_cost_less_than_half_a_percent() -> None:
    listing = listed((b"train/n%04d/image_%08d.jpeg" % (n // 50, n), 16384) for n in range(50_000))
    assert plan(listing).size < 50_000 * 16384 * 1.006


def test_a_directory_of_a_thirty_thousand_names() -> None:
    listing = listed((b"d/%s" % (b"%d" % n).rjust(40, b"-"), 0) for n in range(30_000))
    made = plan(listing)
    expect(made, written(made))


def test_names_of_255_bytes_in_many_blocks() -> None:
    listing = listed((b"%s" % (b"%d" % n).rjust(255, b"x"), 1) for n in range(500))
    made = plan(listing)
    expect(made, written(made))


def test_more_directories_in_one_than_16_bits() -> None:
    listing = Listing.of(Entry(b"d/%d" % n, DIRECTORY) for n in range(65_600))
    image = written(plan(listing))
    assert next(one for one in tree(image) if one.path == b"d").links == 65_602


def test_names_before_and_after_the_dots() -> None:
    made = plan(
        listed(
            (name, 1)
            for name in (b"!", b"-", b"-.", b".-", b"..a", b".a", b"/".join([b"-", b"x"])[:1] + b"z")
        )
    )
    expect(made, written(made))


def test_a_listing_that_is_too_large_for_block_numbers() -> None:
    listing = Listing.of([Entry(b"a", FILE, 1 << 44)], Limits(bytes=1 << 45))
    with pytest.raises(ListingError, match="16 TiB"):
        plan(listing)


@given(listings(), st.integers(1, 5), st.integers(1, 4).map(lambda blocks: blocks * 4096))
@example(
    listed([(b"a", 2000), (b"b", 0)], [Entry(b"c", EntryKind.SYMLINK, target=b"./" * 1000 + b"a")]), 1, 8192
)
def test_ranges_cover_the_image(listing: Listing, files: int, size: int) -> None:
    made = plan(listing)
    found = ranges(made, files, size)
    assert found[0].offset == 0
    for one, following in zip(found, [*found[1:], None], strict=True):
        assert one.offset % 4096 == 0
        assert 0 < one.size <= size
        assert one.offset + one.size == (following.offset if following else made.size)
        blocks = {at // 4096 for at, _ in made.extents() if one.offset <= at < one.offset + one.size}
        in_one_block = len(blocks) == 1  # which no range divides; metadata may follow it
        assert one.files <= files or in_one_block
    assert sum(one.files for one in found) == listing.files


def test_ranges_of_small_and_large_files() -> None:
    made = plan(listed([*((b"a%06d" % n, 16384) for n in range(50_000)), (b"b", 2 << 30)]))
    found = ranges(made)
    assert [one.files for one in found] == [50_000, 1, 0, 0]
    assert [one.size >> 20 for one in found[:-1]] == [781, 800, 800]
