# SPDX-License-Identifier: Apache-2.0
"""The parts of EROFS's core on-disk format that images of datasets use, as bytes.

EROFS is read by kernels from 5.4 on. Of its format only the oldest part is used, without any incompatible feature: a
superblock, inodes without attributes whose data is in consecutive blocks ("flat plain") or right behind the inode
("flat inline"), and directories. Everything is little-endian; a block has 4 KiB.

Owner, mode and time are the same everywhere: root, readable by all and writable by none, 1980 (the first year that
every archive format can express); but a file may be one that all may execute. A set-id bit or a device cannot be
written here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

from gigaslice.core.dataset.listing import EntryKind

__all__ = [
    "BLOCK",
    "COMPACT_BYTES",
    "DIRENT_BYTES",
    "FLAT_INLINE",
    "FLAT_PLAIN",
    "MAX_BLOCKS",
    "SLOT",
    "crc32c",
    "directory_block",
    "inode",
    "inode_bytes",
    "superblock",
]

BLOCK_BITS = 12
BLOCK = 1 << BLOCK_BITS
MAX_BLOCKS = 0xFFFFFFFF
"""Block numbers have 32 bits, and the last one means a hole."""
SLOT = 32
"""Inodes are numbered in slots from the beginning of the metadata."""
COMPACT_BYTES = 32
EXTENDED_BYTES = 64
DIRENT_BYTES = 12
FLAT_PLAIN, FLAT_INLINE = 0, 2

_MAGIC = 0xE0F5E1E2
_SUPER_OFFSET = 1024
_CHECKSUM_OFFSET = _SUPER_OFFSET + 4
_COMPAT_CHECKSUM, _COMPAT_MTIME = 1, 2
_EPOCH = 315532800
_LABEL = b"gigaslice"
_SUPERBLOCK = struct.Struct("<III BBH QQIIII 16s16s I 44x")
_COMPACT = struct.Struct("<HHHHIIIIHHI")
_EXTENDED = struct.Struct("<HHHHQIIIIQII16x")
_DIRENT = struct.Struct("<QHBx")
# By the numbers of EntryKind, as a tuple: the hash of an enum's member is a call of Python code.
_MODES = (0, 0o100444, 0o040555, 0o120777)
_EXECUTABLE_MODE = 0o100555
_FILE_TYPES = (0, 1, 2, 7)


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return table


_CRC32C = _crc32c_table()


def crc32c(data: bytes | bytearray) -> int:
    """CRC-32C of DATA as EROFS has it: begun with all ones, not inverted at the end."""
    crc, table = 0xFFFFFFFF, _CRC32C
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc


def superblock(*, root: int, inodes: int, blocks: int, metadata_block: int, uuid: bytes) -> bytes:
    """The first block of an image.

    Args:
        root: Number of the root's inode; 16 bits.
        inodes: How many there are.
        blocks: Of the image.
        metadata_block: Where inode 0 would be.
        uuid: 16 bytes.
    """
    packed = _SUPERBLOCK.pack(
        _MAGIC, 0, _COMPAT_CHECKSUM | _COMPAT_MTIME,
        BLOCK_BITS, 0, root,
        inodes, _EPOCH, 0, blocks, metadata_block, 0,
        uuid, _LABEL,
        0,
    )  # fmt: skip
    block = bytearray(_SUPER_OFFSET) + packed + bytes(BLOCK - _SUPER_OFFSET - len(packed))
    struct.pack_into("<I", block, _CHECKSUM_OFFSET, crc32c(block[_SUPER_OFFSET:]))
    return bytes(block)


def inode_bytes(size: int, links: int) -> int:
    """How long an inode is: 32-bit sizes and 16-bit numbers of links have the short form."""
    return COMPACT_BYTES if size <= 0xFFFFFFFF and links <= 0xFFFF else EXTENDED_BYTES


def inode(
    kind: EntryKind,
    layout: int,
    size: int,
    block: int,
    *,
    number: int,
    links: int = 1,
    executable: bool = False,
) -> bytes:
    """An inode.

    Args:
        kind: What it is.
        layout: FLAT_PLAIN or FLAT_INLINE.
        size: Of its data.
        block: Where that begins.
        number: What 32-bit programs see as its number.
        links: How many names it has.
        executable: Whether all may execute it; of a file.
    """
    mode = _EXECUTABLE_MODE if executable else _MODES[kind]
    if size <= 0xFFFFFFFF and links <= 0xFFFF:
        return _COMPACT.pack(layout << 1, 0, mode, links, size, 0, block, number, 0, 0, 0)
    return _EXTENDED.pack(1 | layout << 1, 0, mode, 0, size, block, number, 0, 0, _EPOCH, 0, links)


def directory_block(names: Sequence[bytes], inodes: Sequence[int], kinds: Sequence[EntryKind]) -> bytes:
    """One block of a directory, without what fills it up: records in the order of the names, then the names."""
    first = DIRENT_BYTES * len(names)
    pack, types = _DIRENT.pack, _FILE_TYPES
    offsets = accumulate(map(len, names), initial=first)
    records = [
        pack(node, offset, types[kind]) for node, offset, kind in zip(inodes, offsets, kinds, strict=False)
    ]
    return b"".join(records) + b"".join(names)
