# SPDX-License-Identifier: Apache-2.0
"""What values take of memory, for those who bound what they keep of what others wrote. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

__all__ = ["WeighedDict", "bytes_of"]

K = TypeVar("K")
V = TypeVar("V")


def bytes_of(value: object) -> int:
    """Returns the bytes of a value of dictionaries, tuples and classes with slots; what is shared counts each time."""
    if isinstance(value, str | bytes | int | None):
        inner: list[object] = []
    elif isinstance(value, dict):
        inner = [*value, *value.values()]
    elif isinstance(value, tuple):
        inner = [*value]
    else:
        inner = [getattr(value, name) for name in getattr(value, "__slots__", ())]
    return sys.getsizeof(value) + sum(map(bytes_of, inner))


class WeighedDict(dict[K, V]):
    """A dictionary that counts what its values weigh. Entries are set and deleted one by one, and in no other way."""

    def __init__(self, weigh: Callable[[V], int]) -> None:
        super().__init__()
        self.weight = 0
        self._weigh = weigh

    def weight_with(self, key: K, value: V) -> int:
        """Returns what all would weigh with this entry."""
        return self.weight + self._weigh(value) - (self._weigh(self[key]) if key in self else 0)

    def __setitem__(self, key: K, value: V) -> None:
        self.weight = self.weight_with(key, value)
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self.weight -= self._weigh(self[key])
        super().__delitem__(key)
