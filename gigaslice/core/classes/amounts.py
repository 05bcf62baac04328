# SPDX-License-Identifier: Apache-2.0
"""Amounts in properties and selectors: "11441MiB", "10Gi", "10GiB", "875". Pure.

Numbers, with an exponent or with a unit that means what it means everywhere else (`gigaslice.core.units`): K, Ki and
KiB to E, Ei and EiB are powers of 1024; KB to EB, which are two numbers to people, are none. The letters n, u and m are
those of Kubernetes' quantities. Compared exactly, as fractions. A text that is no amount is None: a property may be
anything.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

__all__ = ["amount_of"]

_LONGEST = 64  # characters; nothing longer can be meant
_GRAMMAR = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:(?P<suffix>[a-zA-Z]{1,3})|[eE](?P<power>[+-]?[0-9]{1,2}))?"
)
_SUFFIXES: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(1024),
}
_SUFFIXES |= {
    letter + rest: Fraction(1 << 10 * power)
    for power, letter in enumerate("KMGTPE", start=1)
    for rest in ("", "i", "iB")
}


@lru_cache(maxsize=4096)  # properties repeat over a cluster's GPUs
def amount_of(text: str) -> Fraction | None:
    """Returns the amount that a text stands for; None where it stands for none."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= _LONGEST and text.isascii() else None
    if match is None:
        return None
    number = Fraction(match["number"])
    if match["power"]:
        return number * Fraction(10) ** int(match["power"])
    suffix = match["suffix"]
    if suffix is None:
        return number
    scale = _SUFFIXES.get(suffix)
    return None if scale is None else number * scale
