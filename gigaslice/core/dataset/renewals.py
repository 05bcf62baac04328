# SPDX-License-Identifier: Apache-2.0
"""Which DatasetNodes are kept up to date. Pure: time is an argument.

A dataset service writes the time into its object every few minutes. When it is switched off and its node stays, nothing
takes the object away; what it says becomes wrong as soon as the cache is deleted or another one is filled. So an object
whose time does not change any more is stale: it does not count, and in the end the controller deletes it.

Clocks of machines differ. So the time is compared with itself, and the reader's own steady clock measures for how long
it has been the same. Only what a reader sees for the first time is judged by the difference of the clocks, and then an
hour counts for nothing. A service of an older version writes no time, and is never stale.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DELETE_SECONDS", "RENEW_SECONDS", "STALE_SECONDS", "Renewals", "is_stale"]

RENEW_SECONDS = 300.0
"""A service writes at least so often, where the API server answers."""

STALE_SECONDS = 3 * RENEW_SECONDS
"""Of a time that does not change, before what was written with it does not count any more."""

DELETE_SECONDS = 86400.0
"""The same before the object is deleted. A node may be off over night; its cache is there again with it."""

_CLOCKS_DIFFER = 3600.0


def _age(renewed: float, unix: float) -> float:
    """The seconds for which a time has been there at the least."""
    return max(0.0, unix - renewed - _CLOCKS_DIFFER) if renewed else 0.0


def is_stale(renewed: float, unix: float) -> bool:
    """Whether an object is stale for who reads it once. RENEWED, UNIX: its time, and the reader's."""
    return _age(renewed, unix) > STALE_SECONDS


class _Renewal(NamedTuple):
    renewed: float
    since: float


class Renewals:
    """What a reader that watches the objects knows of their times. NOW is of a clock that nobody sets."""

    def __init__(self) -> None:
        self._seen: dict[str, _Renewal] = {}

    def note(self, node: str, renewed: float, now: float, unix: float) -> None:
        """Takes the time of an object, which may be the same as before. RENEWED: 0 where it has none."""
        renewal = self._seen.get(node)
        if renewal is None:
            self._seen[node] = _Renewal(renewed, now - _age(renewed, unix))
        elif renewal.renewed != renewed:
            self._seen[node] = _Renewal(renewed, now)

    def drop(self, node: str) -> None:
        """Forgets an object that is gone."""
        self._seen.pop(node, None)

    def unchanged(self, node: str, now: float) -> float:
        """Returns for how many seconds the time of an object has been the same; 0 where it has none."""
        renewal = self._seen.get(node)
        return now - renewal.since if renewal is not None and renewal.renewed else 0.0

    def stale(self, node: str, now: float) -> bool:
        """Whether what an object says does not count any more."""
        return self.unchanged(node, now) > STALE_SECONDS

    def all_stale(self, now: float) -> list[str]:
        """Returns the nodes whose objects are stale."""
        before = now - STALE_SECONDS
        return [node for node, renewal in self._seen.items() if renewal.since < before and renewal.renewed]
