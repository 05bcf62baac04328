# SPDX-License-Identifier: Apache-2.0
"""Text forms of sizes and GPU UUIDs, parsed by the same C code as the library's own environment variables.

One parser, so that ``8GB`` cannot mean one number on the command line and another inside a container. Sizes are printed
by ``gigaslice.core.units``, which does what the library does too. Does no I/O.
"""

from __future__ import annotations

from vcuda import errors
from vcuda._bridge import checked, ffi, lib

__all__ = ["format_uuid", "parse_size", "parse_uuid"]


def parse_size(text: str) -> int:
    """Bytes of "8GiB", "512MiB", "1.5G" (G is GiB), "8" (GiB up to 9999), "1073741824" (bytes from 1048576 on).

    Raises BadSizeError for anything else: zero, negative numbers, fractions of a byte, more than 2^47 - 1 bytes,
    numbers between the two that have no unit, and "8GB", which is 10^9 to some and 2^30 to others.
    """
    result, raw = ffi.new("uint64_t *"), text.encode("utf-8", "replace")
    if "\0" in text or lib.size_parse(raw, result) < 0:
        usage: bytes = ffi.string(lib.size_usage(raw.replace(b"\0", b"?")))
        raise errors.BadSizeError(f"not a size: {text!r}", "", usage.decode("ascii"))
    return int(result[0])


def parse_uuid(text: str) -> tuple[bytes, int]:
    """The 16 raw bytes and the flags (1: MIG) of "GPU-…" or "MIG-…". Raises BadUuidError."""
    raw, flags = ffi.new("uint8_t[16]"), ffi.new("uint32_t *")
    if "\0" in text or lib.uuid_parse(text.encode("utf-8", "replace"), raw, flags) < 0:
        raise errors.BadUuidError(f"not a GPU UUID: {text!r}")
    return bytes(ffi.buffer(raw)), int(flags[0])


def format_uuid(raw: bytes, flags: int = 0) -> str:
    """Text form of 16 raw bytes, in lower case as the driver prints it."""
    if len(raw) != lib.VC_UUID_BYTES:
        raise errors.BadUuidError(f"not a GPU UUID: {len(raw)} bytes instead of {lib.VC_UUID_BYTES}")
    out = ffi.new("char[48]")
    checked(lib.uuid_format(raw, flags, out, len(out)), "cannot format a GPU UUID")
    text: bytes = ffi.string(out)
    return text.decode("ascii")
