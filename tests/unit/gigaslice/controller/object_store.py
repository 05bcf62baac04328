"""A store of objects that takes the controller's writes as an API server does: versions, conflicts, merge patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gigaslice.controller.object_plan import ObjectWrite, StoredObject, WriteKind


class Conflict(Exception):  # noqa: N818
    """The object is not what the writer has read."""


class ObjectStore:
    def __init__(self, *objects: StoredObject) -> None:
        self.objects = {one.name: one for one in objects}
        self.count = 100
        self.writes: list[ObjectWrite] = []

    def apply(self, write: ObjectWrite) -> None:
        self.writes.append(write)
        self.count += 1
        version = str(self.count)
        present = self.objects.get(write.name)
        if write.kind is WriteKind.CREATE:
            if present is not None:
                raise Conflict(write.name)
            metadata = write.body["metadata"]
            self.objects[write.name] = StoredObject(
                write.name,
                f"uid-{version}",
                version,
                1,
                metadata["labels"],
                tuple(metadata.get("ownerReferences", ())),
                write.body["spec"],
            )
            return
        read = write.body["preconditions"] if write.kind is WriteKind.DELETE else write.body["metadata"]
        if present is None or (read["uid"], read["resourceVersion"]) != (present.uid, present.version):
            raise Conflict(write.name)
        if write.kind is WriteKind.DELETE:
            del self.objects[write.name]
        elif write.kind is WriteKind.STATUS:
            assert set(write.body) == {"metadata", "status"}
            status = merged(present.status, write.body["status"])
            self.objects[write.name] = replace(present, version=version, status=status)
        else:
            metadata = write.body["metadata"]
            self.objects[write.name] = replace(
                present,
                version=version,
                generation=present.generation + 1,
                labels=merged(present.labels, metadata["labels"]),
                owners=tuple(metadata.get("ownerReferences", present.owners)),
                spec=merged(present.spec, write.body["spec"]),
            )


def merged(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7386."""
    found = dict(target)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            there = found.get(key)
            found[key] = merged(there if isinstance(there, Mapping) else {}, value)
        else:
            found[key] = value
    return found
