# SPDX-License-Identifier: Apache-2.0
"""Which part of a GPU's UUID people see. Pure.

Whole in sentences, documents, and whatever goes into a file or to a program; its beginning in tables on a terminal,
where it only tells GPUs apart. The table that lists the GPUs themselves has it whole there too, and commands that take
a GPU take the beginning as well (`matching`).
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["SHORT", "matching", "short_uuids"]

SHORT = 12
"""Characters of a short UUID, "GPU-6e1b0a2c", where those tell the GPUs apart."""
_FEWEST = 5  # "GPU-6": anything shorter names no GPU


def short_uuids(uuids: Iterable[str]) -> dict[str, str]:
    """The short form of each of UUIDS: SHORT characters of all, or as many more as it takes to tell them apart."""
    different = dict.fromkeys(uuids)
    length, longest = SHORT, max(map(len, different), default=0)
    while length < longest and len({uuid[:length] for uuid in different}) < len(different):
        length += 1
    return {uuid: uuid[:length] for uuid in different}


def matching(name: str, uuids: Iterable[str]) -> list[str]:
    """Those of UUIDS that NAME means: the one that it is, in any case, else all that begin so."""
    written = name.lower()
    all_uuids = [*uuids]
    same = [uuid for uuid in all_uuids if uuid.lower() == written]
    if same or len(written) < _FEWEST:
        return same
    return [uuid for uuid in all_uuids if uuid.lower().startswith(written)]
