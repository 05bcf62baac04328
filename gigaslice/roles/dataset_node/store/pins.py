# SPDX-License-Identifier: Apache-2.0
"""What keeps a dataset in the cache beside volumes and mounts: tasks that wait for it, its fetch, and a check of it.

A fetch may go on when the last task that waited for it has gone. So it keeps its dataset itself, from the first byte
to the last. All of it is in memory: after a start nothing is being fetched, and tasks ask again. Not for several
threads at once; `DatasetStore` locks.
"""

from __future__ import annotations

from collections import Counter

from gigaslice.roles.dataset_node.store.documents import Volume

__all__ = ["Pins"]


class Pins:
    """The pins by key."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[str, tuple[Volume, int]]] = {}
        self._fetches: set[str] = set()
        self._checks: Counter[str] = Counter()

    def keys(self) -> frozenset[str]:
        """The datasets that are kept."""
        return frozenset(self._tasks.keys() | self._fetches | self._checks.keys())

    def add(self, volume: Volume, key: str, size: int) -> None:
        """Keeps a dataset of SIZE bytes for the task of a volume."""
        self._tasks.setdefault(key, {})[volume.id] = (volume, size)

    def remove(self, volume_id: str, key: str) -> None:
        """Ends what `add` began; there may be nothing to end."""
        waiting = self._tasks.get(key, {})
        waiting.pop(volume_id, None)
        if not waiting:
            self._tasks.pop(key, None)

    def waiting(self, key: str) -> tuple[Volume, ...]:
        """The volumes whose tasks wait for a dataset."""
        return tuple(volume for volume, _ in self._tasks.get(key, {}).values())

    def of(self, volume_id: str) -> tuple[str, ...]:
        """The datasets that the task of a volume waits for."""
        return tuple(key for key, waiting in self._tasks.items() if volume_id in waiting)

    def sizes(self, namespace: str) -> dict[str, int]:
        """The bytes of each dataset that tasks of a namespace wait for."""
        return {
            key: size
            for key, waiting in self._tasks.items()
            for volume, size in waiting.values()
            if volume.namespace == namespace
        }

    def fetching(self, key: str) -> bool:
        """Whether a dataset is being fetched."""
        return key in self._fetches

    def begin_fetch(self, key: str) -> None:
        """Keeps a dataset that is being fetched."""
        self._fetches.add(key)

    def end_fetch(self, key: str) -> None:
        """Ends what `begin_fetch` began; there may be nothing to end."""
        self._fetches.discard(key)

    def begin_check(self, key: str) -> None:
        """Keeps a dataset whose file is read without the lock."""
        self._checks[key] += 1

    def end_check(self, key: str) -> None:
        """Ends what `begin_check` began."""
        self._checks[key] -= 1
        if not self._checks[key]:
            del self._checks[key]
