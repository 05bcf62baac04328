# SPDX-License-Identifier: Apache-2.0
"""Quantities as Kubernetes writes them (resource.Quantity), as whole numbers. Pure.

The grammar is that of k8s.io/apimachinery: a decimal number with a sign and a fraction, then one suffix: binary (Ki to
Ei), decimal (n, u, m, none, k to E) or an exponent (e3, E-2). "12E" is 12 exa and "12E0" is 12. As there, a fraction is
rounded away from 0, and what is larger than 64 bits counts as the largest such number.
"""

from __future__ import annotations

import re

__all__ = ["MOST", "parse_quantity"]

MOST = (1 << 63) - 1
_LONGEST = 100  # characters; the API server takes longer ones, and none can be meant
_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<digits>[0-9]+)(?:\.(?P<fraction>[0-9]*))?|\.(?P<only>[0-9]+))"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_FARTHEST = 2 * _LONGEST  # beyond such powers of ten every number of so few digits is 0, or more than MOST


def parse_quantity(quantity: object) -> int:
    """QUANTITY, a text or a number of JSON, as a whole number. Raises ValueError for what is none."""
    is_scalar = isinstance(quantity, str | int | float) and not isinstance(quantity, bool)
    text = str(quantity) if is_scalar else ""
    number = _GRAMMAR.fullmatch(text) if len(text) <= _LONGEST else None
    if number is None:
        raise ValueError(f"{str(quantity)[:40]!r} is no quantity")
    fraction = number["only"] or number["fraction"] or ""
    digits = int((number["digits"] or "") + fraction)
    power = _DECIMAL.get(number["decimal"] or "", 0) + int(number["exponent"] or 0)
    scale = max(-_FARTHEST, min(power - len(fraction), _FARTHEST))
    digits <<= _BINARY.get(number["binary"] or "", 0)
    value: int = digits * 10**scale if scale >= 0 else -(-digits // 10**-scale)
    return -min(value, MOST) if number["sign"] == "-" else min(value, MOST)
