# SPDX-License-Identifier: Apache-2.0
"""JSON that others wrote, as values that every part of the program can use. Pure.

Python's decoder takes more than JSON is: NaN, numbers without end, halves of surrogate pairs, which no encoding takes
and which end whoever writes them out later. What is read here has none of them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from gigaslice.core.text import whole_characters

__all__ = ["read_first", "read_json"]

_MAX_DIGITS = 20  # of a 64-bit number with its sign
_MAY_BE_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def read_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    A half of a surrogate pair, and bytes that are no UTF-8, read as U+FFFD. A number beyond 64 bits or the range of
    floats reads as None: none can be meant.

    Raises:
        ValueError: It is no JSON, is nested deeper than Python goes, or has a number that JSON does not know.
    """
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else whole_characters(text)
    if _MAY_BE_HALF.search(whole):
        whole = _ESCAPE.sub(lambda escape: r"\ufffd" if escape["half"] else escape[0], whole)
    try:
        return _DECODER.decode(whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_first(text: bytes) -> tuple[Any, int] | None:
    """Returns the object or list that a text begins with, and its length; None where that takes another reader."""
    if not text.isascii() or _MAY_BE_HALF.search(whole := text.decode("ascii")):
        return None
    try:
        return _DECODER.raw_decode(whole)
    except (ValueError, RecursionError):
        return None


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= _MAX_DIGITS else None


def _float(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"it has {text} in it, which JSON does not know")


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_float, parse_constant=_no_number)
