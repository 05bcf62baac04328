# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.errors import ImageError
from gigaslice.core.dataset.image import plan, read_tree
from gigaslice.core.dataset.listing import Entry, EntryKind
from tests.fakes.images import listed, written

PLAN = plan(
    listed(
        [(b"a/b/c", 5000), (b"a/d", 10), *((b"many/%03d" % n, 1) for n in range(300))],
        [Entry(b"link", EntryKind.SYMLINK, target=b"a/d")],
    )
)
IMAGE = written(PLAN)


def read(image: bytes, size: int | None = None) -> list[object]:
    return list(read_tree(lambda at, count: image[at : at + count], len(image) if size is None else size))


def checked(image: bytearray) -> bytes:
    """With the checksum of its first block made right, as who forges an image does."""
    from gigaslice.core.dataset.image.erofs import crc32c

    image[1028:1032] = bytes(4)
    struct.pack_into("<I", image, 1028, crc32c(bytes(image[1024:4096])))
    return bytes(image)


def forged(offset: int, data: bytes) -> bytes:
    image = bytearray(IMAGE)
    image[offset : offset + len(data)] = data
    return checked(image)


def inode_of(path: bytes) -> int:
    """Where the inode of PATH is: found by its directory entry, in which the name follows the number."""
    base = struct.unpack_from("<I", IMAGE, 1024 + 0x28)[0] * 4096
    entries = PLAN.listing.entries
    number = next(index for index, one in enumerate(entries) if one.path == path)
    return base + PLAN._slots[number] * 32


def test_the_image_itself() -> None:
    assert len(read(IMAGE)) == len(PLAN.listing.entries)
    assert read(forged(0, b"boot")) == read(IMAGE)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (b"", "does not begin"),
        (bytes(8192), "does not begin"),
        (IMAGE[:-4096], "bytes, and says"),
        (IMAGE + bytes(4096), "bytes, and says"),
        (IMAGE[:1100] + b"x" + IMAGE[1101:], "checksum"),
        (forged(1036, b"\x09"), "parts of EROFS"),
        (forged(1024 + 0x50, b"\x01"), "parts of EROFS"),
        (forged(1038, b"\xff\xff"), "ends before inode"),
        (forged(1038, b"\x00\x00"), "of a kind"),
        (forged(inode_of(b"a/d") + 4, struct.pack("<H", 0o104755)), "of a kind"),  # set-user-id
        (forged(inode_of(b"a/d") + 4, struct.pack("<H", 0o020666)), "of a kind"),  # a device
        (forged(inode_of(b"a/d") + 4, struct.pack("<H", 0o040555)), "differ about"),
        (forged(inode_of(b"a/d") + 2, b"\x01"), "of a kind"),  # attributes
        (forged(inode_of(b"a/d"), b"\x06"), "layout"),  # compressed
        (forged(inode_of(b"a/d"), b"\x10"), "of a kind"),
        (forged(inode_of(b"a/b/c") + 16, b"\xff\xff\xff\x00"), "ends within"),
        (forged(inode_of(b"a/b/c") + 8, b"\xff\xff\xff\xff"), "ends within"),
        (forged(inode_of(b"link") + 8, struct.pack("<I", 4060)), "crosses a block"),
        (forged(inode_of(b"a") + 32, struct.pack("<Q", 1)), "not where it says"),
    ],
)
def test_what_is_refused(image: bytes, says: str) -> None:
    with pytest.raises(ImageError, match=says) as caught:
        read(image)
    assert str(caught.value).isprintable()


def test_a_directory_in_itself() -> None:
    """Its "b" leads to itself: a reader that trusts it never ends."""
    at = inode_of(b"a") + 32
    names = [struct.unpack_from("<QHBB", IMAGE, at + 12 * index) for index in range(4)]
    own = names[0][0]
    with pytest.raises(ImageError, match="two names"):
        read(forged(at + 24, struct.pack("<Q", own)))


@given(
    st.lists(
        st.tuples(st.integers(0, len(IMAGE) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4
    )
)
def test_damage_is_an_error_or_no_matter(damage: list[tuple[int, bytes]]) -> None:
    image = bytearray(IMAGE)
    for offset, data in damage:
        image[offset : offset + len(data)] = data
    del image[len(IMAGE) :]
    for one in (bytes(image), checked(image)):
        try:
            found = read(one)
        except ImageError:
            continue
        assert len(found) <= len(PLAN.listing.entries)


METADATA = len(IMAGE) - struct.unpack_from("<I", IMAGE, 1024 + 0x28)[0] * 4096


@given(st.integers(len(IMAGE) - METADATA, len(IMAGE) - 1), st.integers(1, 255))
def test_damage_of_metadata(offset: int, change: int) -> None:
    image = bytearray(IMAGE)
    image[offset] ^= change
    try:
        found = read(bytes(image))
    except ImageError:
        return
    assert len(found) <= len(PLAN.listing.entries)
