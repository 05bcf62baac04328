# SPDX-License-Identifier: Apache-2.0
"""Which Dataset objects pods have named for the copies of this node, and how pods have written their sources.

A Dataset's status may show only these uses. Whoever named the Dataset, or wrote it, has shown a right to the data;
other pods that have the same copy have not named it, and are not shown. The names are in memory only: a status goes on
showing what it has shown once, and a volume's record has the name that its pod wrote.

A pod writes `sftp://host/data`, and its Secret adds the user. The key of the copy is made of both. Datasets, and pods
that are to be scheduled, have the text without the user, so copies are published under such texts too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from gigaslice.core.dataset.objects import DatasetUse
from gigaslice.roles.dataset_node.store import VolumeRecord

__all__ = ["DatasetUses"]

_MOST = 64  # Datasets of one copy
_NAME = re.compile(r"[a-z0-9.-]+")


class DatasetUses:
    """The names, by the key of a copy. For one thread."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._texts: dict[str, set[str]] = {}

    def note(self, key: str, name: str, requested: str) -> None:
        """A pod may have the copy KEY, for which it, or the Dataset NAME ("namespace/name"), wrote REQUESTED."""
        if name:
            self._names.setdefault(key, set()).add(name)
        if len(texts := self._texts.setdefault(key, set())) < _MOST:
            texts.add(requested)

    def texts(self, key: str) -> frozenset[str]:
        """The canonical sources that pods have written for a copy."""
        return frozenset(self._texts.get(key, ()))

    def shown(
        self, records: Iterable[VolumeRecord], keys: Collection[str]
    ) -> dict[str, tuple[DatasetUse, ...]]:
        """The uses of copies by their keys. What is no longer among KEYS is forgotten."""
        self._names = {key: names for key, names in self._names.items() if key in keys}
        self._texts = {key: texts for key, texts in self._texts.items() if key in keys}
        pods = {key: {name: set[str]() for name in names} for key, names in self._names.items()}
        for record in records:
            volume = record.volume
            for volume_source in record.volume_sources:
                if volume_source.key in keys and (name := _full(volume_source.name, volume.namespace)):
                    holders = pods.setdefault(volume_source.key, {}).setdefault(name, set())
                    holders.add(f"{volume.namespace}/{volume.pod}")
        return {
            key: tuple(
                DatasetUse(name, tuple(sorted(holders_by_name[name])))
                for name in sorted(holders_by_name)[:_MOST]
            )
            for key, holders_by_name in pods.items()
        }


def _full(name: str, namespace: str) -> str:
    """The Dataset that a pod has named; empty for a source, which is no name."""
    home, slash, short = name.rpartition("/")
    parts = (home, short) if slash else (namespace, short)
    return "/".join(parts) if all(_NAME.fullmatch(part) for part in parts) else ""
