# SPDX-License-Identifier: Apache-2.0
"""Has a loaded library connect to checked addresses only: its own connect(2) becomes one of ours.

obstore resolves names and follows redirections by itself, and has no way to be told which addresses it may connect to.
A proxy in between (`checked_proxy`) would more than double what a small object costs. So the one pointer by which the
library calls connect(2) is set to a function here, which checks the address that the kernel is about to be given, and
then calls the kernel: what is checked is what is connected to, and nothing else of the library is touched.

It is ELF's own table of such pointers that is changed (the relocations of the name "connect"). Whether it worked is not
taken for granted: who uses this makes the library connect once, and sees that the function was called.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

__all__ = ["CheckedConnects"]

_PT_DYNAMIC = 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 2, 5, 6, 7, 8, 23
_READ, _WRITE, _EXECUTE = 1, 2, 4
_SYMBOL, _RELOCATION, _PROGRAM_HEADER = 24, "<QQq", "<IIQQQQQQ"
_FAMILY = struct.Struct("=H")

_libc = ctypes.CDLL(None, use_errno=True)
_CONNECT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True
)  # as <sys/socket.h> declares it
_connect = _CONNECT(("connect", _libc))


class _Library(ctypes.Structure):
    """The first members of struct dl_phdr_info, as <link.h> declares it."""

    _fields_ = (("base", ctypes.c_void_p), ("path", ctypes.c_char_p))


_NOTE_LIBRARY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)
_called_for_ever: list[
    object
] = []  # functions that a library has pointers to, which live as long as the process


class CheckedConnects:
    """The function in place of connect(2) of one library.

    Args:
        may_connect: Whether an address, as text, may be connected to. Called by any thread.

    Attributes:
        calls: How often the library has connected.
    """

    def __init__(self, may_connect: Callable[[str], bool]) -> None:
        self.calls = 0
        self._may_connect = may_connect
        self._replaced: list[tuple[int, int | None]] = []
        self._function = _CONNECT(self._called)

    def replace_in(self, library: Path) -> None:
        """Puts the function into LIBRARY, which is loaded.

        Raises:
            OSError: It is not loaded, or its memory cannot be written.
            ValueError: It is no such library, or calls no connect(2).
        """
        slots = _slots(library, b"connect")
        if not slots:
            raise ValueError(f"{library} calls no connect(2)")
        _called_for_ever.append(self._function)
        pointer = ctypes.cast(self._function, ctypes.c_void_p).value
        for slot in slots:
            self._replaced.append((slot, _set(slot, pointer)))
        # A thread of the library's that calls into an interpreter which is ending would abort the process. Nothing that
        # is answered then is read any more.
        atexit.register(self.put_back)

    def put_back(self) -> None:
        """Has the library call connect(2) by itself again. Raises OSError."""
        while self._replaced:
            _set(*self._replaced.pop())

    def _called(self, descriptor: int, address: int, length: int) -> int:
        self.calls += 1
        try:
            text = _address(ctypes.string_at(address, length))
            allowed = text is None or self._may_connect(text)
        except Exception:  # noqa: BLE001  (nothing may be raised into the library, and what is not known is refused)
            allowed = False
        if not allowed:
            ctypes.set_errno(errno.EACCES)
            return -1
        return int(_connect(descriptor, address, length))


def _address(sockaddr: bytes) -> str | None:
    """The address in a struct sockaddr; None of what is none of IP. Raises ValueError, struct.error."""
    (family,) = _FAMILY.unpack_from(sockaddr)
    if family == socket.AF_INET:
        return str(IPv4Address(sockaddr[4:8]))
    if family == socket.AF_INET6:
        return str(IPv6Address(sockaddr[8:24]))
    return None


def _mappings() -> Iterator[tuple[int, int, str]]:
    """Start, end and rights of what is in this process's memory, as the kernel lists it."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, rights, _ = line.split(maxsplit=2)
            start, _, end = span.partition("-")
            yield int(start, 16), int(end, 16), rights


def _protection(page: int) -> int:
    for start, end, rights in _mappings():
        if start <= page < end:
            return sum(
                value for letter, value in (("r", _READ), ("w", _WRITE), ("x", _EXECUTE)) if letter in rights
            )
    raise OSError(errno.EFAULT, "the library's pointers are not in memory")


def _set(slot: int, pointer: int | None) -> int | None:
    """Writes the pointer at SLOT, whose page is written by nobody else; what was there. Raises OSError."""
    page = slot & ~(mmap.PAGESIZE - 1)
    rights = _protection(page)
    _protect(page, rights | _WRITE)
    cell = ctypes.c_void_p.from_address(slot)
    before, cell.value = cell.value, pointer
    _protect(page, rights)
    return before


def _protect(page: int, how: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), how) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _slots(library: Path, name: bytes) -> list[int]:
    """Where in memory the pointers are by which LIBRARY calls the function NAME."""
    base, dynamic = _loaded(library)

    def memory(offset: int, size: int) -> bytes:
        return ctypes.string_at(base + offset, size)

    relocations = memory(dynamic.get(_DT_RELA, 0), dynamic.get(_DT_RELASZ, 0))
    relocations += memory(dynamic.get(_DT_JMPREL, 0), dynamic.get(_DT_PLTRELSZ, 0))
    addresses = []
    for offset, info, _ in struct.iter_unpack(_RELOCATION, relocations):
        if symbol := info >> 32:
            (at,) = struct.unpack("<I", memory(dynamic[_DT_SYMTAB] + symbol * _SYMBOL, 4))
            if memory(dynamic[_DT_STRTAB] + at, len(name) + 1) == name + b"\0":
                addresses.append(base + offset)
    return addresses


def _loaded(library: Path) -> tuple[int, dict[int, int]]:
    """Where LIBRARY is in memory, and its dynamic section, with addresses as from there."""
    with library.open("rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{library} is no ELF file of 64 bits")
        (start,), (size, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
        file.seek(start)
        segments = [struct.unpack(_PROGRAM_HEADER, file.read(size)[:56]) for _ in range(count)]
        dynamic: dict[int, int] = {}
        for kind, _, offset, *_, stored, _, _ in segments:
            if kind == _PT_DYNAMIC:
                file.seek(offset)
                dynamic = dict(struct.iter_unpack("<QQ", file.read(stored)))
    real = os.path.realpath(library)
    for base, path in _libraries():
        if os.path.realpath(path) == real:
            return base, dynamic
    raise FileNotFoundError(errno.ENOENT, f"{library} is not loaded")


def _libraries() -> list[tuple[int, str]]:
    """Where each loaded library is in memory, and its path, as the dynamic linker lists them (dl_iterate_phdr(3)).

    The kernel's list of mappings would not do: a library in Rust that panics maps its own file a second time, to print
    names of functions.
    """
    libraries: list[tuple[int, str]] = []

    def note(entry: Any, _size: int, _data: int | None) -> int:
        libraries.append((entry.contents.base or 0, os.fsdecode(entry.contents.path or b"")))
        return 0

    _libc.dl_iterate_phdr(_NOTE_LIBRARY(note), None)
    return libraries
