# SPDX-License-Identifier: Apache-2.0
"""The objects of one kind as the API server has them after the controller's writes."""

from __future__ import annotations

from gigaslice.core.cluster.names import GROUP, VERSION
from gigaslice.roles.controller.object_plan import ObjectWrite, StoredObject, WriteKind, stored
from tests.fakes.kubeapi.answers import Answers, Request
from tests.fakes.kubeapi.store import ObjectStore

_METHODS = {
    WriteKind.CREATE: "POST",
    WriteKind.UPDATE: "PATCH",
    WriteKind.STATUS: "PATCH",
    WriteKind.DELETE: "DELETE",
}


class Conflict(Exception):  # noqa: N818
    """The object is not what the writer has read."""


class WrittenObjects:
    """The objects of a kind, by its plural. `writes`: what was applied."""

    def __init__(self, plural: str, *there: StoredObject) -> None:
        self.writes: list[ObjectWrite] = []
        self._plural = plural
        self._answers = Answers(ObjectStore())
        for one in there:
            metadata = {"name": one.name, "uid": one.uid, "generation": one.generation, "labels": one.labels}
            document = {"metadata": metadata, "spec": one.spec, "status": one.status}
            self._answers.store.create(plural, document)

    @property
    def objects(self) -> dict[str, StoredObject]:
        """What there is, by name, as the controller reads it."""
        return {one.name: one for one in map(stored, self._answers.store.all(self._plural))}

    def apply(self, write: ObjectWrite) -> None:
        """Does a write of the controller."""
        self.writes.append(write)
        path = f"/apis/{GROUP}/{VERSION}/{self._plural}"
        if write.kind is not WriteKind.CREATE:
            path += f"/{write.name}" + ("/status" if write.kind is WriteKind.STATUS else "")
        headers = {"content-type": "application/merge-patch+json"}
        request = Request(_METHODS[write.kind], path, path, {}, headers, write.body)
        status, answer = self._answers.answer(request)
        if status == 409:
            raise Conflict(write.name)
        assert status < 300, answer
