"""By the names of which Dataset objects, and by which texts, pods have got the copies of this node.

It is what a Dataset's status may tell: its author, or a pod that named it, has shown the right to the data. In memory
only: what a status has told once it goes on telling, and a volume's record has the name that its pod wrote.

A pod writes `sftp://host/data`, and its Secret adds whose files those are: the copy is one of the whole. Datasets and
pods that are to be scheduled have the text alone, so copies are published under the texts as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from gigaslice.dataset.objects import DatasetUse
from gigaslice.dataset_node.store import VolumeRecord

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
