# SPDX-License-Identifier: Apache-2.0
"""Whether the dynamic loader will preload a library into a program, according to the program's file.

LD_PRELOAD has no effect on a statically linked program, one of another C library or word size, and one that changes its
user; a limit would silently not hold. For a script its interpreter counts. Programs that it starts later are not
checked, nor is the one that the dynamic loader is told to run when it is the program itself.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import struct
from pathlib import Path

__all__ = ["MUSL", "find_program", "preload_obstacle"]

MUSL = "it uses the musl C library instead of glibc"
"""The reason for a program that would not start at all with the library preloaded."""

_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of the ELF specification
_PT_INTERP = 3
_HEADER_BYTES = 64 * 1024  # program headers and the interpreter's name lie at the beginning
_STATIC = "it is statically linked, so there is no loader that could load a library into it"
_LOADERS = ("ld-linux", "ld-2.")  # glibc's, which needs none; the second is its file before 2.34
_MUSL_LOADER = "ld-musl"
_INTERPRETERS = 5  # the kernel follows no more (fs/exec.c)


def find_program(command: str, search_path: str) -> Path | None:
    """The file that COMMAND would run, or None when there is none or it may not be executed."""
    path = shutil.which(command, path=search_path)
    return Path(path) if path else None


def preload_obstacle(program: Path) -> str:
    """The reason why no library can be preloaded into PROGRAM; "" when one can."""
    return _obstacle(program, _INTERPRETERS)


def _obstacle(program: Path, interpreters: int) -> str:
    try:
        with program.open("rb") as file:
            head = file.read(_HEADER_BYTES)
        mode = program.stat().st_mode
    except OSError:
        return ""  # executable but not readable: unknown
    if head.startswith(b"#!"):
        interpreter = head[2:].split(b"\n", 1)[0].split()
        if not interpreter or not interpreters:
            return ""  # it does not run at all
        return _obstacle(Path(os.fsdecode(interpreter[0])), interpreters - 1)
    if not head.startswith(b"\x7fELF"):
        return ""
    if mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != 0:
        return "it changes its user or group, so the loader ignores LD_PRELOAD"
    reason = _elf_obstacle(head)
    return reason if reason != _STATIC else _static_obstacle(program)


def _static_obstacle(program: Path) -> str:
    """For a program that asks for no loader: it may be one."""
    names = {program.name, program.resolve().name}
    if any(name.startswith(_MUSL_LOADER) for name in names):
        return MUSL
    return "" if any(name.startswith(_LOADERS) for name in names) else _STATIC


def _elf_obstacle(head: bytes) -> str:
    try:
        if head[4] != 2 or head[5] != 1:
            return "it is not a 64-bit little-endian program"
        (machine,) = struct.unpack_from("<H", head, 18)
        if machine != _MACHINES.get(platform.machine(), machine):
            return "it is built for another processor"
        (table,) = struct.unpack_from("<Q", head, 32)
        entry_bytes, entries = struct.unpack_from("<HH", head, 54)
        for i in range(entries):
            at = table + i * entry_bytes
            if struct.unpack_from("<I", head, at)[0] == _PT_INTERP:
                offset, size = struct.unpack_from("<Q16xQ", head, at + 8)
                loader = head[offset : offset + size].rstrip(b"\0")
                return MUSL if b"musl" in loader else ""
    except (IndexError, struct.error):
        return "its ELF headers are damaged"
    return _STATIC
