# SPDX-License-Identifier: Apache-2.0
"""Reads an image back: its tree, and where the bytes of each file are.

Written from the format's description and not from the writer beside it, whose mistakes it would share: tests compare
the two. It takes only what an image of a dataset may have, which is less than EROFS has, and refuses everything else;
so it may be given bytes of unknown origin. Kernels may not, and nothing here makes an image fit to be mounted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gigaslice.core.dataset.errors import ImageError
from gigaslice.core.dataset.listing import EntryKind, shown

__all__ = ["ImageEntry", "Read", "read_tree"]

Read = Callable[[int, int], bytes]
"""Gives that many bytes at that offset, fewer at the end."""

_KINDS = {0o10: (EntryKind.FILE, 1), 0o04: (EntryKind.DIRECTORY, 2), 0o12: (EntryKind.SYMLINK, 7)}
_MAX_DIRECTORY = 1 << 33
_MAX_TARGET = 4095
_MAX_DEPTH = 2048


class ImageEntry(NamedTuple):
    """What an image has at a path."""

    path: bytes
    kind: EntryKind
    size: int
    offset: int
    """Of a file's bytes in the image."""
    target: bytes
    mode: int
    owner: int
    group: int
    links: int


class _Inode(NamedTuple):
    kind: EntryKind
    file_type: int
    mode: int
    size: int
    owner: int
    group: int
    links: int
    extents: tuple[tuple[int, int], ...]


class _Image(NamedTuple):
    read: Read
    size: int
    block: int
    root: int
    inodes: int
    metadata: int


def read_tree(read: Read, size: int) -> Iterator[ImageEntry]:
    """All that is in an image of SIZE bytes, parents before what is in them; the root is left out.

    Raises:
        ImageError: It is no image of a dataset, or a damaged one.
    """
    image = _superblock(read, size)
    root = _inode(image, image.root)
    if root.kind is not EntryKind.DIRECTORY:
        raise ImageError("the image's root is no directory; make the image anew")
    visited = {image.root}
    pending = [(b"", image.root, image.root, root)]
    while pending:
        path, number, parent, directory = pending.pop()
        for name, inner, file_type in _directory(image, directory, number, parent, path):
            below = path + b"/" + name if path else name
            if inner in visited or len(visited) > image.inodes:
                raise ImageError(
                    f"the image has {shown(below)} under two names, or more than it says; make it anew"
                )
            visited.add(inner)
            inode = _inode(image, inner)
            if inode.file_type != file_type:
                raise ImageError(f"the image's directory and inode differ about {shown(below)}; make it anew")
            target, offset = b"", 0
            if inode.kind is EntryKind.DIRECTORY:
                if below.count(b"/") > _MAX_DEPTH:
                    raise ImageError("the image's directories are too deep; make it anew")
                pending.append((below, inner, number, inode))
            elif inode.kind is EntryKind.SYMLINK:
                if inode.size > _MAX_TARGET:
                    raise ImageError(f"the image's link {shown(below)} is too long; make it anew")
                target = _content(image, inode)
            else:
                offset = _place(inode, below)
            yield ImageEntry(
                below,
                inode.kind,
                inode.size,
                offset,
                target,
                inode.mode,
                inode.owner,
                inode.group,
                inode.links,
            )


def _superblock(read: Read, size: int) -> _Image:
    block = read(0, 4096)
    if len(block) < 4096 or struct.unpack_from("<I", block, 1024)[0] != 0xE0F5E1E2:
        raise ImageError("this is no image of a dataset: it does not begin like one")
    checksum, compatible = struct.unpack_from("<II", block, 1028)
    bits, extensions, root = struct.unpack_from("<BBH", block, 1036)
    inodes = struct.unpack_from("<Q", block, 1040)[0]
    blocks, metadata = struct.unpack_from("<II", block, 1060)
    incompatible, compressed = struct.unpack_from("<IH", block, 1024 + 0x50)
    if bits != 12 or extensions or incompatible or compressed or compatible & ~3:
        raise ImageError(
            "the image uses parts of EROFS that images of datasets do not have; make it with `dataset pack`"
        )
    if compatible & 1 and checksum != _checksum(block[1024:1028] + bytes(4) + block[1032:]):
        raise ImageError("the image's first block is damaged: its checksum differs; copy it again")
    if blocks << bits != size:
        raise ImageError(f"the image has {size} bytes, and says {blocks << bits}; copy it again")
    return _Image(read, size, 1 << bits, root, inodes, metadata << bits)


def _checksum(data: bytes) -> int:
    """CRC-32C, bit by bit: the polynomial 0x1EDC6F41, reflected; without the final inversion."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc


def _inode(image: _Image, number: int) -> _Inode:
    at = image.metadata + 32 * number
    raw = image.read(at, 32)
    if len(raw) < 32:
        raise ImageError(f"the image ends before inode {number}; copy it again")
    form, attributes, mode = struct.unpack_from("<HHH", raw)
    if attributes or form & ~0b1111 or mode >> 12 not in _KINDS or mode & 0o7000:
        raise ImageError(f"the image's inode {number} is of a kind that datasets do not have; make it anew")
    start = struct.unpack_from("<I", raw, 16)[0] * image.block
    if form & 1:
        raw += image.read(at + 32, 32)
        if len(raw) < 64:
            raise ImageError(f"the image ends before inode {number}; copy it again")
        size = struct.unpack_from("<Q", raw, 8)[0]
        owner, group = struct.unpack_from("<II", raw, 24)
        links = struct.unpack_from("<I", raw, 44)[0]
    else:
        links, size = struct.unpack_from("<HI", raw, 6)
        owner, group = struct.unpack_from("<HH", raw, 24)
    if at // image.block != (at + len(raw) - 1) // image.block:
        raise ImageError(f"the image's inode {number} crosses a block; make it anew")
    layout = form >> 1 & 7
    if layout == 0:
        extents: tuple[tuple[int, int], ...] = ((start, size),) if size else ()
    elif layout == 2 and size % image.block:
        tail, behind = size % image.block, at + len(raw)
        if behind // image.block != (behind + tail - 1) // image.block:
            raise ImageError(f"what is inline in the image's inode {number} crosses a block; make it anew")
        extents = ((start, size - tail), (behind, tail)) if size > tail else ((behind, tail),)
    else:
        raise ImageError(f"the image's inode {number} has a layout that datasets do not have; make it anew")
    if any(begin + length > image.size for begin, length in extents):
        raise ImageError(f"the image ends within the data of inode {number}; copy it again")
    return _Inode(*_KINDS[mode >> 12], mode & 0o777, size, owner, group, links, extents)


def _place(inode: _Inode, path: bytes) -> int:
    if len(inode.extents) > 1:
        raise ImageError(f"the image has {shown(path)} in two pieces; make it with `dataset pack`")
    return inode.extents[0][0] if inode.extents else 0


def _content(image: _Image, inode: _Inode) -> bytes:
    content = b"".join(image.read(*extent) for extent in inode.extents)
    if len(content) != inode.size:
        raise ImageError("the image is cut short; copy it again")
    return content


def _directory(
    image: _Image, directory: _Inode, number: int, parent: int, path: bytes
) -> Iterator[tuple[bytes, int, int]]:
    """Name, inode and file type of everything in a directory but "." and ".."."""
    if directory.size > _MAX_DIRECTORY:
        raise ImageError(f"the image's directory {shown(path)} is too large; make it anew")
    content = _content(image, directory)
    last = b""
    dots = {b".": number, b"..": parent}
    for begin in range(0, len(content), image.block):
        for name, inner, file_type in _names(content[begin : begin + image.block], path):
            if name <= last:
                raise ImageError(f"the image's directory {shown(path)} is out of order; make it anew")
            last = name
            if name in dots:
                if dots.pop(name) != inner:
                    raise ImageError(
                        f"the image's directory {shown(path)} is not where it says; make it anew"
                    )
            else:
                yield name, inner, file_type
    if dots:
        raise ImageError(f"the image's directory {shown(path)} lacks . or ..; make it anew")


def _names(block: bytes, path: bytes) -> Iterator[tuple[bytes, int, int]]:
    damaged = ImageError(f"the image's directory {shown(path)} is damaged; copy it again")
    if len(block) < 12:
        raise damaged
    first = struct.unpack_from("<H", block, 8)[0]
    if first < 12 or first % 12 or first >= len(block):
        raise damaged
    records = list(struct.iter_unpack("<QHBB", block[:first]))
    for index, (inner, begin, file_type, _) in enumerate(records):
        end = records[index + 1][1] if index + 1 < len(records) else len(block)
        name = block[begin:end]
        if index + 1 == len(records):
            name = name.partition(b"\0")[0]
        if not first <= begin < end or not 0 < len(name) <= 255 or b"/" in name or b"\0" in name:
            raise damaged
        yield name, inner, file_type
