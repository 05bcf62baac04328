# SPDX-License-Identifier: Apache-2.0
"""Trees as listings, contents that follow from a path, and images of them written as a fetch does: in any order."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

from hypothesis import strategies as st

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.image import ImagePlan
from gigaslice.core.dataset.listing import Entry, EntryKind, Listing


def content(path: bytes, size: int) -> bytes:
    """The bytes of the file PATH: any, and other ones for every path."""
    seed = hasher(path).digest()
    return (seed * (size // len(seed) + 1))[:size]


def listed(files: Iterable[tuple[bytes, int]], others: Iterable[Entry] = ()) -> Listing:
    """The listing of FILES with those sizes, and OTHERS."""
    return Listing.of([*(Entry(path, EntryKind.FILE, size, "v") for path, size in files), *others])


def written(plan: ImagePlan, seed: int = 0) -> bytes:
    """The image, each of its parts written once, in an order that follows from SEED."""
    image = bytearray(plan.size)
    for offset, data in _parts(plan, seed):
        image[offset : offset + len(data)] = data
    return bytes(image)


def write(plan: ImagePlan, path: Path, seed: int = 0) -> None:
    """The same as a file."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        os.truncate(fd, plan.size)
        for offset, data in _parts(plan, seed):
            os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def _parts(plan: ImagePlan, seed: int) -> list[tuple[int, bytes]]:
    parts = list(plan.metadata())
    files = (entry for entry in plan.listing.entries if entry.kind is EntryKind.FILE)
    for entry, (offset, size) in zip(files, plan.extents(), strict=True):
        assert size == entry.size
        parts.append((offset, content(entry.path, size)))
    random.Random(seed).shuffle(parts)
    return parts


_names = st.one_of(
    st.binary(min_size=1, max_size=3),
    st.binary(min_size=1, max_size=255),
    st.sampled_from([b"-", b"!", b"...", b".a", b"a", b"b", b"n" * 255, b"\xff" * 255, b"a\n"]),
).filter(lambda name: name not in (b".", b"..") and not set(b"/\0") & set(name))
_sizes = st.one_of(
    st.integers(0, 9),
    st.integers(2000, 2100),
    st.sampled_from([4064, 4095, 4096, 4097, 8192]),
    st.integers(0, 20_000),
)


@st.composite
def listings(draw: st.DrawFn) -> Listing:
    """Trees of files, directories and links, of every size that is treated in another way."""
    directories = [b""]
    entries: dict[bytes, Entry] = {}
    for name in draw(st.lists(_names, max_size=25)):
        above = draw(st.sampled_from(directories))
        path = above + b"/" + name if above else name
        if path in entries or len(path) > 4095:
            continue
        kind = draw(st.sampled_from(list(EntryKind)))
        if kind is EntryKind.FILE:
            entries[path] = Entry(path, kind, draw(_sizes), "v", executable=draw(st.booleans()))
        elif kind is EntryKind.DIRECTORY:
            entries[path] = Entry(path, kind)
            directories.append(path)
        else:
            target = b"/".join([name] * draw(st.integers(1, 20)))[:4000].rstrip(b"/")
            entries[path] = Entry(
                path, kind, target=b"./" * draw(st.sampled_from([0, 0, 40, 1000])) + target[:2000]
            )
    return Listing.of(entries.values())
