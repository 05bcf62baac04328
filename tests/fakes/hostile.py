# SPDX-License-Identifier: Apache-2.0
"""A container that writes what it likes into its ledger: UUIDs, sizes, times, locks.

Bytes are written by hand, since the C code would not. Offsets are those of native/shm/ledger_layout.h.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from vcuda import contract, sizes

__all__ = ["HostileLedger", "checksum"]

_LOCKS = 1 << 32
_SLOTS, _SLOT, _SPLIT, _TIME_SLICES = 4096, 320, 4096 + 1024 * 320, 4096 + 2 * 1024 * 320
_HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for slot in sys.argv[2:]:
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, (1 << 32) + int(slot))
print("held", flush=True)
sys.stdin.read()
"""


def checksum(data: bytes) -> int:
    """FNV-1a, as the header has it."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value


class HostileLedger:
    """The ledger in DIRECTORY. Processes that hold slots end with the `with` block."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / contract.LEDGER_FILE
        self._holders: list[subprocess.Popen[str]] = []

    def __enter__(self) -> HostileLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._holders:
            one.kill()
            one.communicate()

    def write(self, at: int, data: bytes) -> None:
        """DATA at the offset AT, whatever that means."""
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def hold(self, *slots: int) -> int:
        """A process of the container takes the locks of SLOTS; its PID."""
        process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(self.path), *map(str, slots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._holders.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process.pid

    def head(
        self, uuids: list[str] | None = None, *, identity: bytes | None = None, version: int = 0
    ) -> None:
        """A header that says so, under a checksum that is right."""
        with self.path.open("rb") as file:
            head = bytearray(file.read(304))
        if version:
            struct.pack_into("<II", head, 8, version, _SPLIT if version == 1 else _TIME_SLICES + 1024)
        if identity is not None:
            head[24:40] = identity
        if uuids is not None:
            struct.pack_into("<I", head, 16, len(uuids))
            head[40:296] = b"".join(sizes.parse_uuid(one)[0] for one in uuids).ljust(256, b"\0")
        struct.pack_into("<Q", head, 296, checksum(bytes(head[:296])))
        self.write(0, bytes(head))

    def slot(self, index: int, *used: int, peak: int = 0, refused: int = 0, flight: int = 0) -> None:
        """A slot of a process with PID 1 that says it has USED, by column."""
        self.write(304, struct.pack("<I", 1024))  # every slot was used once
        at = _SLOTS + index * _SLOT
        self.write(at, struct.pack("<IiQQ16s", 1, 1, 1, refused, b"\x1b[31mhostile"))
        self.write(at + 60, struct.pack("<I", flight))
        self.write(at + 64, b"".join(struct.pack("<Q", one) for one in used))
        self.write(at + 192, struct.pack("<Q", peak) * len(used))
        self.write(320, struct.pack("<Q", peak) * len(used))

    def split(self, index: int, real: int, managed: int, busy: int = 1) -> None:
        """How the bytes of a slot are split, in the first column."""
        at = _SPLIT + index * _SLOT
        self.write(at, struct.pack("<Q", real))
        self.write(at + 128, struct.pack("<Q", managed))
        self.write(at + 256, struct.pack("<I", busy))

    def garbage(self) -> None:
        """A header of noise; the locks stay."""
        self.write(0, os.urandom(4096))
