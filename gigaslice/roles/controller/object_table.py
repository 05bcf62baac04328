# SPDX-License-Identifier: Apache-2.0
"""The stored objects of one kind: as the watch shows them and as the answers to our own writes do, whichever is newer.

A cluster of 5,000 nodes has 40,000 objects of GPUs. Each is kept as a few hundred bytes of JSON, and read again only
when its node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from gigaslice.core.cluster.names import GROUP, VERSION
from gigaslice.kubeapi.client import MERGE_PATCH, NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.roles.controller.object_plan import ObjectWrite, StoredObject, WriteKind, stored
from gigaslice.roles.controller.work_queue import RateLimit

__all__ = ["ObjectTable", "PackedObject"]


class PackedObject(NamedTuple):
    """A stored object. group: what it is found by, such as its node's name."""

    name: str
    uid: str
    version: str
    group: str
    text: bytes

    def unpack(self) -> StoredObject:
        """Returns the object."""
        return stored(orjson.loads(self.text))


class ObjectTable:
    """The objects of one kind.

    Args:
        plural: The kind as paths have it.
        group: Finds the group of an object.
        on_write: Called for each write with its kind and whether it succeeded.
    """

    def __init__(
        self,
        plural: str,
        group: Callable[[StoredObject], str] = lambda stored_object: "",
        on_write: Callable[[WriteKind, bool], None] = lambda kind, done: None,
    ) -> None:
        self.path = object_path("apis", GROUP, VERSION, plural)
        self._group = group
        self._on_write = on_write
        self._objects: dict[str, PackedObject] = {}
        self._groups: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[StoredObject]:
        for packed in list(self._objects.values()):
            yield packed.unpack()

    @property
    def groups(self) -> list[str]:
        """Every group that has an object."""
        return list(self._groups)

    def get(self, name: str) -> StoredObject | None:
        """Returns the object of a name."""
        packed = self._objects.get(name)
        return None if packed is None else packed.unpack()

    def of_group(self, group: str) -> dict[str, StoredObject]:
        """Returns the objects of a group by name."""
        return {name: self._objects[name].unpack() for name in self._groups.get(group, ())}

    def parse(self, document: Mapping[str, Any]) -> PackedObject:
        """Packs an object of the API. Raises ValueError for a document that is no object."""
        unpacked = stored(document)
        metadata = {
            "name": unpacked.name,
            "uid": unpacked.uid,
            "resourceVersion": unpacked.version,
            "generation": unpacked.generation,
            "labels": unpacked.labels,
            "ownerReferences": unpacked.owners,
        }
        text = orjson.dumps({"metadata": metadata, "spec": unpacked.spec, "status": unpacked.status})
        return PackedObject(unpacked.name, unpacked.uid, unpacked.version, self._group(unpacked), text)

    def put(self, packed: PackedObject) -> None:
        """Stores an object that was seen, unless a newer state of it is stored already."""
        present = self._objects.get(packed.name)
        if present is not None and present.uid == packed.uid and _older(packed.version, present.version):
            return
        if present is not None and present.group != packed.group:
            self._leave(present)
        self._objects[packed.name] = packed
        self._groups.setdefault(packed.group, set()).add(packed.name)

    def drop(self, packed: PackedObject) -> None:
        """Forgets an object that is gone, unless another one has its name by now."""
        present = self._objects.get(packed.name)
        if present is not None and present.uid == packed.uid:
            del self._objects[packed.name]
            self._leave(present)

    async def write(self, client: KubeClient, limit: RateLimit, write: ObjectWrite) -> None:
        """Sends one write, and takes what the API server answers.

        Raises:
            ApiFailure: The write was not done, or it is not known whether it was.
        """
        await limit.take()
        path = self.path + object_path(write.name)
        try:
            if write.kind is WriteKind.CREATE:
                document = await client.post(self.path, write.body)
            elif write.kind is WriteKind.DELETE:
                document = await self._deleted(client, path, write)
            else:
                below = "/status" if write.kind is WriteKind.STATUS else ""
                document = await client.patch(path + below, write.body, MERGE_PATCH)
        except ApiFailure:
            self._on_write(write.kind, False)
            raise
        self._on_write(write.kind, True)
        present = self._objects.get(write.name)
        if write.kind is not WriteKind.DELETE:
            self.put(self.parse(document))
        elif present is not None:
            self.drop(present)

    @staticmethod
    async def _deleted(client: KubeClient, path: str, write: ObjectWrite) -> dict[str, Any]:
        try:
            return await client.delete(path, write.body)
        except ApiFailure as failure:
            if failure.status != NOT_FOUND:
                raise
            return {}

    def _leave(self, packed: PackedObject) -> None:
        names = self._groups[packed.group]
        names.discard(packed.name)
        if not names:
            del self._groups[packed.group]


def _older(version: str, than: str) -> bool:
    """Whether a version comes before another one; versions that are no numbers cannot be compared."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)
