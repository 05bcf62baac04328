# SPDX-License-Identifier: Apache-2.0
"""Where everything of an image is, made from the listing before any byte of the dataset has arrived.

    block 0      superblock
    then         files of more than INLINE_BYTES, in the listing's order, each in blocks of its own
    then         blocks of directories, and of links too long to be inline
    then         metadata: the root's inode and the others in the listing's order, each followed by what is inline

Small files, ends of directories and targets of links stand right behind their inodes, as long as two of that size share
a block; so a file of 100 bytes costs 160 and not 4,128. Nothing crosses a block there, as the format demands.

The plan depends on paths, kinds, sizes, targets and on which files may be executed, and on nothing else: equal trees
have equal images, wherever they come from. LAYOUT_VERSION changes whenever any byte of any image would.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from gigaslice.core.dataset.errors import ListingError
from gigaslice.core.dataset.image import erofs
from gigaslice.core.dataset.image.erofs import BLOCK, COMPACT_BYTES, DIRENT_BYTES, SLOT, inode_bytes
from gigaslice.core.dataset.listing import Entry, EntryKind, Listing

__all__ = ["INLINE_BYTES", "LAYOUT_VERSION", "Extents", "ImagePlan", "plan"]

LAYOUT_VERSION = 1
INLINE_BYTES = BLOCK // 2 - COMPACT_BYTES
"""The most that stands behind an inode."""
_ROOT_AT = SLOT  # slot 0 stays empty, since programs take an inode number of 0 for none
_GATHERED = 1 << 20
_DOTS = (b".", b"..")


class Extents(Sequence[tuple[int, int]]):
    """Offset in the image and size of each file, in the listing's order. 16 bytes a file."""

    __slots__ = ("_offsets", "_sizes")

    def __init__(self, offsets: array[int], sizes: array[int]) -> None:
        self._offsets = offsets
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> Extents: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | Extents:
        if isinstance(index, slice):
            return Extents(self._offsets[index], self._sizes[index])
        return self._offsets[index], self._sizes[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._offsets, self._sizes, strict=True)

    def by_offset(self) -> Sequence[int]:
        """The numbers of the files in the order of their places in the image."""
        return sorted(range(len(self)), key=self._offsets.__getitem__)


@dataclass(slots=True)
class _Directory:
    path: bytes
    parent: int  # its entry's number; -1 is the root
    children: array[int] = field(default_factory=lambda: array("L"))
    links: int = 2
    ends: list[int] = field(default_factory=list)  # of each block: how many names are up to its end
    size: int = 0
    blocks: int = 0  # without what is inline
    inline: int = 0
    at: int = 0  # its first block

    def measure(self, entries: Sequence[Entry]) -> None:
        """Distributes the names over blocks, as many as fit into each."""
        names = self.names(entries)
        used = DIRENT_BYTES * len(names) + sum(map(len, names))
        if used > BLOCK:
            used = 0
            for number, name in enumerate(names):
                need = DIRENT_BYTES + len(name)
                if used + need > BLOCK:
                    self.ends.append(number)
                    used = 0
                used += need
        self.blocks = len(self.ends)
        self.ends.append(len(names))
        self.size = self.blocks * BLOCK + used
        if used <= INLINE_BYTES:
            self.inline = used
        else:
            self.blocks += 1

    def names(self, entries: Sequence[Entry]) -> list[bytes]:
        """All names in it, sorted, with "." and ".." where they belong."""
        skipped = len(self.path) + 1 if self.path else 0
        names = [entries[child].path[skipped:] for child in self.children]
        for dots in _DOTS:
            names.insert(bisect_left(names, dots), dots)
        return names


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """The layout of one image; made by `plan`."""

    listing: Listing
    size: int
    """Bytes of the whole image, a multiple of its blocks of 4096."""
    block_size: int
    _extents: Extents
    _metadata_block: int
    _slots: array[int]
    _directories: dict[bytes, _Directory]
    _long_links: dict[int, int]

    def extents(self) -> Extents:
        """Where each file's bytes belong, in the listing's order of files."""
        return self._extents

    def metadata(self) -> Iterator[tuple[int, bytes]]:
        """Everything but the files' bytes and zeros, in ascending order; never a byte of a file's place.

        What is neither in here nor in a file's place is zero.
        """
        entries = self.listing.entries
        yield (
            0,
            erofs.superblock(
                root=_ROOT_AT // SLOT,
                inodes=len(entries) + 1,
                blocks=self.size // BLOCK,
                metadata_block=self._metadata_block,
                uuid=self.listing.layout_digest()[:16],
            ),
        )
        yield from self._blocks()
        yield from self._inodes()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Blocks of directories and long links, in the order in which they were placed."""
        yield from self._directory_blocks(-1, self._directories[b""])
        for number, entry in enumerate(self.listing.entries):
            if entry.kind is EntryKind.DIRECTORY:
                directory = self._directories[entry.path]
                if directory.blocks:
                    yield from self._directory_blocks(number, directory)
            elif number in self._long_links:
                yield self._long_links[number] * BLOCK, entry.target

    def _directory_blocks(self, number: int, directory: _Directory) -> Iterator[tuple[int, bytes]]:
        if directory.blocks:
            parts = self._parts(number, directory)
            for block in range(directory.blocks):
                yield (directory.at + block) * BLOCK, next(parts)

    def _parts(self, number: int, directory: _Directory, first: int = 0) -> Iterator[bytes]:
        """The blocks of a directory from FIRST on."""
        entries, slots = self.listing.entries, self._slots
        names = directory.names(entries)
        inodes = [slots[child] for child in directory.children]
        kinds = [entries[child].kind for child in directory.children]
        for dots, inode in zip(_DOTS, (self._slot(number), self._slot(directory.parent)), strict=True):
            where = names.index(dots)
            inodes.insert(where, inode)
            kinds.insert(where, EntryKind.DIRECTORY)
        for block in range(first, len(directory.ends)):
            which = slice(directory.ends[block - 1] if block else 0, directory.ends[block])
            yield erofs.directory_block(names[which], inodes[which], kinds[which])

    def _slot(self, number: int) -> int:
        return self._slots[number] if number >= 0 else _ROOT_AT // SLOT

    def _inodes(self) -> Iterator[tuple[int, bytes]]:
        base = self._metadata_block * BLOCK
        begin = base + _ROOT_AT
        gathered = bytearray(self._directory_inode(-1, self._directories[b""]))
        extents = iter(self._extents)
        make, file, plain, inline = erofs.inode, EntryKind.FILE, erofs.FLAT_PLAIN, erofs.FLAT_INLINE
        for number, (entry, slot) in enumerate(zip(self.listing.entries, self._slots, strict=True)):
            at = base + slot * SLOT
            if len(gathered) > _GATHERED:
                yield begin, bytes(gathered)
                begin, gathered = at, bytearray()
            gathered += bytes(at - begin - len(gathered))
            if entry.kind is file:
                offset, size = next(extents)
                runs = entry.executable
                if size > INLINE_BYTES:
                    gathered += make(file, plain, size, offset // BLOCK, number=number + 2, executable=runs)
                elif size:
                    gathered += make(file, inline, size, 0, number=number + 2, executable=runs)
                    yield begin, bytes(gathered)
                    begin, gathered = offset + size, bytearray()
                else:
                    gathered += make(file, plain, 0, 0, number=number + 2, executable=runs)
            elif entry.kind is EntryKind.DIRECTORY:
                gathered += self._directory_inode(number, self._directories[entry.path])
            elif number in self._long_links:
                gathered += make(entry.kind, plain, entry.size, self._long_links[number], number=number + 2)
            else:
                gathered += make(entry.kind, inline, entry.size, 0, number=number + 2) + entry.target
        if gathered:
            yield begin, bytes(gathered)

    def _directory_inode(self, number: int, directory: _Directory) -> bytes:
        inode = erofs.inode(
            EntryKind.DIRECTORY,
            erofs.FLAT_INLINE if directory.inline else erofs.FLAT_PLAIN,
            directory.size,
            directory.at,
            number=number + 2,
            links=directory.links,
        )
        return inode + next(self._parts(number, directory, directory.blocks)) if directory.inline else inode


def plan(listing: Listing) -> ImagePlan:
    """The layout of LISTING's image.

    Raises:
        ListingError: It is more than block numbers reach: 16 TiB.
    """
    entries = listing.entries
    directories = _directories(entries)
    file_blocks = sum(
        -(-entry.size // BLOCK)
        for entry in entries
        if entry.kind is EntryKind.FILE and entry.size > INLINE_BYTES
    )
    other = 1 + file_blocks
    long_links: dict[int, int] = {}
    for directory in directories.values():
        directory.measure(entries)
    root = directories[b""]
    root.at, other = other, other + root.blocks
    for number, entry in enumerate(entries):
        if entry.kind is EntryKind.DIRECTORY:
            directory = directories[entry.path]
            directory.at, other = other, other + directory.blocks
        elif entry.kind is EntryKind.SYMLINK and entry.size > INLINE_BYTES:
            long_links[number], other = other, other + 1
    slots, extents, end = _placed(entries, directories, other)
    blocks = other + -(-end // BLOCK)
    if blocks > erofs.MAX_BLOCKS:
        raise ListingError(f"an image of {blocks * BLOCK} bytes; 16 TiB is the most, split the dataset")
    return ImagePlan(listing, blocks * BLOCK, BLOCK, extents, other, slots, directories, long_links)


def _directories(entries: Sequence[Entry]) -> dict[bytes, _Directory]:
    """All directories with what is in them; the listing's order is also the order of names in each."""
    root = _Directory(b"", -1)
    directories = {b"": root}
    numbers = {b"": -1}
    path, directory = b"", root
    for number, entry in enumerate(entries):
        parent = entry.path.rpartition(b"/")[0]
        if parent != path:
            path, directory = parent, directories[parent]
        directory.children.append(number)
        if entry.kind is EntryKind.DIRECTORY:
            directory.links += 1
            directories[entry.path] = _Directory(entry.path, numbers[parent])
            numbers[entry.path] = number
    return directories


def _placed(
    entries: Sequence[Entry], directories: dict[bytes, _Directory], metadata_block: int
) -> tuple[array[int], Extents, int]:
    """Numbers of all inodes, places of all files, and where the metadata ends."""
    slots, offsets, sizes = array("Q"), array("Q"), array("Q")
    base, block, within = metadata_block * BLOCK, 1, BLOCK - 1
    root = directories[b""]
    at = _ROOT_AT + _bytes(root)
    for path, kind, size, _, _, _ in entries:
        inline = 0
        header = COMPACT_BYTES
        if kind is EntryKind.FILE:
            if size > INLINE_BYTES:
                header = inode_bytes(size, 1)
                offsets.append(block * BLOCK)
                block += -(-size // BLOCK)
            else:
                inline = size
            sizes.append(size)
        elif kind is EntryKind.DIRECTORY:
            header = _bytes(directories[path])
        elif size <= INLINE_BYTES:
            inline = size
        at += -at % SLOT
        if (at & within) + header + inline > BLOCK:
            at += -at % BLOCK
        slots.append(at // SLOT)
        at += header
        if kind is EntryKind.FILE and size <= INLINE_BYTES:
            offsets.append(base + at)
        at += inline
    return slots, Extents(offsets, sizes), at


def _bytes(directory: _Directory) -> int:
    return inode_bytes(directory.size, directory.links) + directory.inline
