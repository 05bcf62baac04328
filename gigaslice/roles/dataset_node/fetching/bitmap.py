# SPDX-License-Identifier: Apache-2.0
"""What of a dataset has arrived: one bit per unit, in a file beside the image, that never says too much.

Two things can end a fetch. A process that is killed loses nothing that it has written: the kernel has it, and will
write it. A machine that loses power loses what was not synced, and in any order. So there are two kinds of bits. A bit
is written as soon as its unit is in the page cache, and counts for as long as the kernel is the one that it was written
under (its boot ID). It is written a second time after an fdatasync of the image that began later than the write of the
unit, and counts from then on.

Bits are only ever set. So the second kind is kept in two copies, written in turn: a copy that was torn by a power loss
fails its checksum and is left out, the other one is older and right. Each block of 4 KiB has a checksum of its own, and
is written by one call within one page. The header names the image's inode and size: a bitmap of another file counts
nothing.

The kernel reports a failed write once, by the sync that comes next, and then has the lost pages as if they were
written. So a sync that fails takes all bits with it, and the file that they are in. A process that is killed between
the two is beyond this.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path

from gigaslice.core.dataset.errors import DatasetError, LostWritesError

__all__ = ["Bitmap", "boot_id"]

_MAGIC = b"gslcbits"
_HEADER = struct.Struct("<8sIIQQQ36s")
_BLOCK = 4096
_TRAILER = struct.Struct("<II")
_BITS = (_BLOCK - _TRAILER.size) * 8
_COPIES = 3  # the quick one, and two that are synced in turn


def boot_id() -> str:
    """The kernel's name for its present run; empty where there is none, and quick bits count for nothing then."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:36]
    except OSError:
        return ""


class Bitmap:
    """The bits of one image. All methods may be called from several threads.

    Args:
        path: The bitmap's file.
        image: The image, open for writing.
        units: How many bits.
        resumed: Whether an earlier attempt wrote to this image; otherwise whatever PATH has is of another one.
        layout: A number for where the units are (`Units.fingerprint`).
        boot: The kernel's run.
    """

    def __init__(
        self, path: Path, image: int, units: int, *, resumed: bool, layout: int = 0, boot: str | None = None
    ) -> None:
        self._boot = boot_id() if boot is None else boot
        self._units = units
        self._blocks = max(1, -(-units // _BITS))
        self._bits = bytearray(self._blocks * (_BLOCK - _TRAILER.size))
        self._dirty: set[int] = set()
        self._unsynced: set[int] = set()
        self._next_copy = 0
        self._path = path
        self._lost: OSError | None = None
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        status = os.fstat(image)
        self._identity = (layout, units, status.st_size, status.st_ino)
        try:
            if not resumed:
                path.unlink(missing_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _unwritable(error) from None
        try:
            if not resumed or not self._load():
                self._bits = bytearray(len(self._bits))
                os.ftruncate(self._file, 0)
            os.ftruncate(self._file, _BLOCK * (1 + _COPIES * self._blocks))
            # what counts under this kernel is written before the header that says so
            for block in range(self._blocks):
                self._write(0, block)
            os.pwrite(self._file, self._header(), 0)
        except OSError as error:
            os.close(self._file)
            raise _unwritable(error) from None
        self.count = sum(byte.bit_count() for byte in self._bits)

    def _header(self) -> bytes:
        body = _HEADER.pack(_MAGIC, 1, *self._identity, self._boot.encode())
        return body + zlib.crc32(body).to_bytes(4, "little")

    def _load(self) -> bool:
        """Takes over the bits that count. Returns whether the file is one of this image's."""
        head = os.pread(self._file, _HEADER.size + 4, 0)
        if len(head) != _HEADER.size + 4 or zlib.crc32(head[:-4]).to_bytes(4, "little") != head[-4:]:
            return False
        magic, version, layout, units, size, inode, boot = _HEADER.unpack(head[:-4])
        if magic != _MAGIC or version != 1 or (layout, units, size, inode) != self._identity:
            return False
        same_kernel = bool(self._boot) and boot == self._boot.encode().ljust(36, b"\0")
        for copy in range(0 if same_kernel else 1, _COPIES):
            for block in range(self._blocks):
                self._take(copy, block)
        spare = len(self._bits) * 8 - self._units
        whole = int.from_bytes(self._bits, "little") & ((1 << self._units) - 1) if spare else None
        if whole is not None:
            self._bits = bytearray(whole.to_bytes(len(self._bits), "little"))
        return True

    def _take(self, copy: int, block: int) -> None:
        data = os.pread(self._file, _BLOCK, self._where(copy, block))
        if len(data) != _BLOCK:
            return
        number, checksum = _TRAILER.unpack(data[-_TRAILER.size :])
        if number != block + 1 or zlib.crc32(data[:-4]) != checksum:
            return
        width = _BLOCK - _TRAILER.size
        at = block * width
        mine = int.from_bytes(self._bits[at : at + width], "little")
        both = mine | int.from_bytes(data[:width], "little")
        self._bits[at : at + width] = both.to_bytes(width, "little")

    def _where(self, copy: int, block: int) -> int:
        return _BLOCK * (1 + copy * self._blocks + block)

    def _write(self, copy: int, block: int, bits: bytes | bytearray | None = None) -> None:
        width = _BLOCK - _TRAILER.size
        body = bytes((self._bits if bits is None else bits)[block * width : (block + 1) * width])
        body += (block + 1).to_bytes(4, "little")
        os.pwrite(self._file, body + zlib.crc32(body).to_bytes(4, "little"), self._where(copy, block))

    def __contains__(self, unit: int) -> bool:
        return bool(self._bits[(unit // _BITS) * (_BITS // 8) + unit % _BITS // 8] >> (unit & 7) & 1)

    def mark(self, units: Iterable[int]) -> None:
        """Notes that all of each unit was written to the image. `flush` makes it last."""
        with self._lock:
            for unit in units:
                index = (unit // _BITS) * (_BITS // 8) + unit % _BITS // 8
                bit = 1 << (unit & 7)
                if not self._bits[index] & bit:
                    self._bits[index] |= bit
                    self.count += 1
                    self._dirty.add(unit // _BITS)

    def flush(self) -> None:
        """Writes what was marked, for the case that this process is killed. Raises DatasetError."""
        with self._lock:
            if not self._dirty or self._file < 0:
                return
            try:
                for block in self._dirty:
                    self._write(0, block)
            except OSError as error:
                raise _unwritable(error) from None
            self._unsynced |= self._dirty
            self._dirty.clear()

    def sync(self, image: int) -> None:
        """Has what was marked until now on the disk, image first, for the case of a power loss.

        Raises:
            LostWritesError: This sync has failed, or an earlier one: no bit counts for any later attempt.
            DatasetError: The bits cannot be written.
        """
        with self._syncing:
            if self._lost is not None:
                raise _lost(self._lost)
            self.flush()
            with self._lock:
                if not self._unsynced:
                    return
                bits = bytes(self._bits)
                self._unsynced.clear()
                copy = 1 + self._next_copy
                self._next_copy ^= 1
            try:
                os.fdatasync(image)
                for block in range(self._blocks):
                    self._write(copy, block, bits)
                os.fdatasync(self._file)
            except OSError as error:
                self._lost = error
                with contextlib.suppress(OSError):
                    self._path.unlink()
                raise _lost(error) from None

    def missing(self, start: int = 0) -> int:
        """The first unit from START on that has not arrived; the number of units where all have."""
        unit, bits = start, self._bits
        while unit < self._units:
            index = (unit // _BITS) * (_BITS // 8) + unit % _BITS // 8
            if unit & 7 == 0 and bits[index] == 255 and unit + 8 <= self._units:
                unit += 8
            elif bits[index] >> (unit & 7) & 1:
                unit += 1
            else:
                break
        return unit

    def close(self) -> None:
        """Closes the file; nothing is synced."""
        with self._lock:
            file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _lost(error: OSError) -> LostWritesError:
    return LostWritesError(
        f"the node's disk has lost writes ({error.strerror}); what was fetched is not used, look after the disk"
    )


def _unwritable(error: OSError) -> DatasetError:
    return DatasetError(
        f"the dataset's state directory cannot be written: {error.strerror}; look after its disk"
    )
