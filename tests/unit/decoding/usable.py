# SPDX-License-Identifier: Apache-2.0
"""Whether a decoded value can be used wherever it goes: written as JSON, shown, hashed where it is a key."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Set
from enum import Enum
from fractions import Fraction
from typing import Any

__all__ = ["usable"]


def usable(value: Any) -> None:
    """Raises what whoever uses the value would: a half of a surrogate pair, a number that is none, a strange type."""
    json.dumps(_plain(value), allow_nan=False, ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, Mapping):
        assert all(isinstance(hash(key), int) for key in value)
        return [[_plain(key), _plain(one)] for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Set):
        return [_plain(one) for one in value]
    assert dataclasses.is_dataclass(value), f"{type(value).__name__} is no value"
    return [_plain(getattr(value, one.name)) for one in dataclasses.fields(value)]
