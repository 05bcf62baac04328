# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes as people write and read them. Pure.

The library in a container parses the same texts in C (`native/base/text.c`), and prints sizes there. No text may be two
numbers and no number two texts, so parser and printer here do exactly what those do, bounds and rounding included;
tests put every form and random ones to both.
"""

from __future__ import annotations

import re

from gigaslice.core.errors import SizeError

__all__ = ["MAX_BYTES", "exact_size", "format_bytes", "parse_bytes"]

MAX_BYTES = (1 << 47) - 1
"""The largest size: what one word of a limits page can hold."""

_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]+))?([a-z]*)", re.ASCII)
_SHIFTS = {"b": 0} | {
    letter + rest: 10 * power for power, letter in enumerate("kmgt", start=1) for rest in ("", "i", "ib")
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_WORD = (1 << 64) - 1  # the C parser's arithmetic: what would not fit is refused
_MOST_DECIMALS = 7
_BARE_GIB, _BARE_BYTES = 9999, 1 << 20  # without a unit: GiB up to the first, bytes from the second on


def parse_bytes(text: str) -> int:
    """Bytes of "8GiB", "512MiB", "1.5G" (= 1.5 GiB), "8" (GiB up to 9999) or "1073741824" (bytes from 1048576 on).

    Raises:
        SizeError: for anything else: zero, negative numbers, fractions of a byte, more than MAX_BYTES, numbers without
            a unit that lie between GiB and bytes, and "8GB", which is 10^9 to some and 2^30 to others. It is a
            ValueError, and its text says what to write instead.
    """
    size = _parsed(text)
    if size is None:
        raise SizeError(text)
    return size


def _parsed(text: str) -> int | None:
    match = _SIZE.fullmatch(text.lower() if text.isascii() else "")
    if match is None:
        return None
    whole, decimals = match[1].lstrip("0") or "0", match[2] or ""
    if len(whole) > len(str(MAX_BYTES)) or int(whole[:-1] or "0") > MAX_BYTES // 10:
        return None
    if len(decimals) > _MOST_DECIMALS:
        return None
    digits = int(whole + decimals)
    if decimals and digits // 10 > _WORD // 100:
        return None
    shift = _SHIFTS.get(match[3]) if match[3] else _bare_shift(digits, 10 ** len(decimals))
    if shift is None or digits > _WORD >> shift:
        return None
    size, rest = divmod(digits << shift, 10 ** len(decimals))
    return size if rest == 0 and 0 < size <= MAX_BYTES else None


def _bare_shift(digits: int, scale: int) -> int | None:
    """Of a number without a unit: GiB as in a pod's limits, or bytes as a program writes them. None: neither."""
    if digits <= _BARE_GIB * scale:
        return 30
    return 0 if digits >= _BARE_BYTES * scale else None


def format_bytes(count: int) -> str:
    """COUNT bytes for people, in the largest unit of which they are one: "8 GiB", "7.6 GiB", "922 MiB", "0 B".

    One digit behind the point below 100, unless it is zero; rounded half up.
    """
    sign, count = ("-" if count < 0 else ""), abs(count)
    power = min(max(0, count.bit_length() - 1) // 10, len(_UNITS) - 1)
    unit = 1 << 10 * power
    tenths = (count * 10 + unit // 2) // unit
    if tenths >= 1000:
        tenths = (count + unit // 2) // unit * 10
    if tenths >= 10240 and power < len(_UNITS) - 1:
        tenths, power = 10, power + 1
    whole, tenth = divmod(tenths, 10)
    return f"{sign}{whole}{f'.{tenth}' if tenth else ''} {_UNITS[power]}"


def exact_size(count: int) -> str:
    """The shortest text from which parse_bytes gives exactly COUNT bytes, to be typed again: "8GiB", "1536MiB"."""
    power = 0
    while count and count % 1024 == 0 and power < len(_UNITS) - 1:
        count, power = count // 1024, power + 1
    return f"{count}{_UNITS[power]}"
