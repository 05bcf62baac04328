# SPDX-License-Identifier: Apache-2.0
"""What to write so that the API server has the objects that it should: desired against stored objects. Pure.

Only what the controller sets itself is compared and written: labels, annotations and fields of others stay. Every
update and deletion carries the version that was read, so that a change by another writer in between is a conflict and
not a loss; the conflict ends in another pass over newer objects. An object without our label is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gigaslice.core.classes.resource_class import MANAGED_BY, MANAGER
from gigaslice.core.kube.fields import object_at

__all__ = [
    "DesiredObject",
    "ObjectWrite",
    "StoredObject",
    "WriteKind",
    "plan_object",
    "stored",
]

Document = Mapping[str, Any]


class WriteKind(Enum):
    """What a write does."""

    CREATE = "create"
    UPDATE = "update"
    STATUS = "status"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """One request to the API server. body: the object to create, a merge patch, or the options of a deletion."""

    kind: WriteKind
    name: str
    body: Document


@dataclass(frozen=True, slots=True)
class DesiredObject:
    """What the controller sets of an object. status: None where it sets none, and the present one stays."""

    owners: tuple[Document, ...] = ()
    spec: Document = field(default_factory=dict)
    status: Document | None = None


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as the API server has it, cut down to what is compared.

    Attributes:
        name: Its name.
        uid: Its UID: an object that was deleted and made again has another one.
        version: Its resourceVersion.
        generation: Grows with each change of its spec.
        labels: All of them.
        owners: Its ownerReferences.
        spec: Its spec.
        status: Its status; empty where it has none.
    """

    name: str
    uid: str
    version: str
    generation: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    owners: tuple[Document, ...] = ()
    spec: Document = field(default_factory=dict)
    status: Document = field(default_factory=dict)

    @property
    def managed(self) -> bool:
        """Whether the controller made it, and no user took it over by removing the label."""
        return self.labels.get(MANAGED_BY) == MANAGER


def stored(document: Document) -> StoredObject:
    """Reads an object of the API.

    Raises:
        ValueError: It has no name, UID or version.
    """
    metadata = object_at(document, "metadata")
    name, uid, version = (metadata.get(key) for key in ("name", "uid", "resourceVersion"))
    if not (isinstance(name, str) and isinstance(uid, str) and isinstance(version, str) and name):
        raise ValueError("an object without name, uid or resourceVersion")
    generation = metadata.get("generation")
    owners = metadata.get("ownerReferences")
    return StoredObject(
        name,
        uid,
        version,
        generation if isinstance(generation, int) else 0,
        object_at(metadata, "labels"),
        tuple(owners) if isinstance(owners, list) else (),
        object_at(document, "spec"),
        object_at(document, "status"),
    )


def plan_object(
    api_version: str, kind: str, name: str, desired: DesiredObject | None, present: StoredObject | None
) -> tuple[ObjectWrite, ...]:
    """Returns the writes that make PRESENT what is DESIRED; None of either means no object.

    A new object gets its status in a second write, since the API server takes none with the first.
    """
    if present is not None and not present.managed:
        return ()
    if desired is None:
        return (
            ()
            if present is None
            else (ObjectWrite(WriteKind.DELETE, name, {"preconditions": _read(present)}),)
        )
    if present is None:
        body = {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": name, **_metadata(desired)},
            "spec": desired.spec,
        }
        return (ObjectWrite(WriteKind.CREATE, name, body),)
    if desired.owners != present.owners or desired.spec != present.spec:
        metadata = {**_metadata(desired), **_read(present)}
        return (
            ObjectWrite(
                WriteKind.UPDATE, name, {"metadata": metadata, "spec": difference(present.spec, desired.spec)}
            ),
        )
    return plan_status(name, desired.status, present)


def plan_status(name: str, status: Document | None, present: StoredObject) -> tuple[ObjectWrite, ...]:
    """Returns the write, if any, that gives PRESENT this STATUS, of any author."""
    if status is None or status == present.status:
        return ()
    body = {"metadata": _read(present), "status": difference(present.status, status)}
    return (ObjectWrite(WriteKind.STATUS, name, body),)


def difference(present: Document, desired: Document) -> dict[str, Any]:
    """Returns the merge patch (RFC 7386) that makes PRESENT what is DESIRED."""
    patch: dict[str, Any] = {key: None for key in present if key not in desired}
    for key, value in desired.items():
        there = present.get(key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            if value != there:
                patch[key] = difference(there, value)
        elif value != there or key not in present:
            patch[key] = value
    return patch


def _read(present: StoredObject) -> dict[str, str]:
    return {"uid": present.uid, "resourceVersion": present.version}


def _metadata(desired: DesiredObject) -> dict[str, Any]:
    metadata: dict[str, Any] = {"labels": {MANAGED_BY: MANAGER}}
    if desired.owners:
        metadata["ownerReferences"] = list(desired.owners)
    return metadata
