# SPDX-License-Identifier: Apache-2.0
"""Which datasets of a node's cache are deleted to make room for a new one. Pure.

Datasets are deleted only when a new one needs the room, never in use, and the least recently used first. A new one of N
bytes has room when 1.2 × N bytes are free; where deleting everything that may be deleted does not reach that, nothing
is deleted. (Inspur, Computer Systems & Applications 31(9), section 3.3: "the space to clear is 1.2 times the dataset",
read as free space afterwards.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

__all__ = ["EvictionCandidate", "idle_since", "room_for", "to_evict"]


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """One dataset of the cache.

    size: bytes that deleting it gives back. last_used: seconds; the end of its last use. in_use: it is mounted, or a
    task waits for it.
    """

    name: str
    size: int
    last_used: float
    in_use: bool = False


def room_for(size: int) -> int:
    """The free bytes that a dataset of so many bytes needs: 1.2 times as many, rounded up."""
    return (6 * size + 4) // 5


def to_evict(free: int, cached: Iterable[EvictionCandidate], size: int) -> tuple[str, ...] | None:
    """Chooses what is deleted for a new dataset.

    Args:
        free: Bytes that are free now.
        cached: What is there.
        size: Bytes of the new dataset.

    Returns:
        Names in the order of deletion, none where there is room already; None where there can be no room.
    """
    missing = room_for(size) - free
    chosen: list[str] = []
    for dataset in sorted(
        (dataset for dataset in cached if not dataset.in_use),
        key=lambda dataset: (dataset.last_used, dataset.name),
    ):
        if missing <= 0:
            break
        chosen.append(dataset.name)
        missing -= dataset.size
    return None if missing > 0 else tuple(chosen)


def idle_since(cached: Collection[EvictionCandidate], before: float) -> tuple[str, ...]:
    """Names of what is not in use and was last used before that time, the longest unused first."""
    idle = [dataset for dataset in cached if not dataset.in_use and dataset.last_used < before]
    return tuple(
        dataset.name for dataset in sorted(idle, key=lambda dataset: (dataset.last_used, dataset.name))
    )
