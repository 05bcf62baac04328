# SPDX-License-Identifier: Apache-2.0
"""A ResourceSlice as the API server has it, cut down to what is compared with what it should be. Pure.

A server of a version without a feature takes a slice and drops the fields of that feature without a word, so every
answer to a write is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gigaslice.core.claims.names import CORES, MEMORY
from gigaslice.core.kube.fields import object_at, objects_at, text_at
from gigaslice.core.kube.object_reader import ANY, PRESENCE, ObjectReader, Outline

__all__ = ["StoredSlice", "keeps_sharing", "keeps_taints", "slice_change_reader", "slice_list_reader"]

_KEPT = ("name", "uid", "resourceVersion", "labels", "annotations", "ownerReferences", "finalizers")
_MOST_BYTES = 1 << 20

_POLICY: Outline = {"default": PRESENCE, "validValues": PRESENCE, "validRange": {ANY: PRESENCE}}
_SLICE: Outline = {
    "metadata": {
        **dict.fromkeys(("name", "uid", "resourceVersion", "finalizers"), PRESENCE),
        "labels": {ANY: PRESENCE},
        "annotations": {ANY: PRESENCE},
        "ownerReferences": {ANY: PRESENCE},
    },
    "spec": {
        "driver": PRESENCE,
        "nodeName": PRESENCE,
        "pool": {ANY: PRESENCE},
        "devices": {
            "name": PRESENCE,
            "allowMultipleAllocations": PRESENCE,
            "attributes": {ANY: {ANY: PRESENCE}},
            "capacity": {ANY: {"value": PRESENCE, "requestPolicy": _POLICY}},
            "taints": {ANY: PRESENCE},
        },
    },
}
_NAMES: Outline = {"metadata": dict.fromkeys(("name", "uid", "resourceVersion"), PRESENCE)}
_EVENT: Outline = {**_SLICE, "metadata": {**_SLICE["metadata"]}, "code": PRESENCE, "message": PRESENCE}
_LIST: Outline = {"metadata": {"resourceVersion": PRESENCE, "continue": PRESENCE}}


def slice_list_reader() -> ObjectReader:
    """Returns a reader of the slices of a list."""
    return ObjectReader(_SLICE, _NAMES, items="items", envelope=_LIST, most=_MOST_BYTES)


def slice_change_reader() -> ObjectReader:
    """Returns a reader of the events of a watch of slices."""
    return ObjectReader(
        {"type": PRESENCE, "object": _EVENT}, {"type": PRESENCE, "object": _NAMES}, most=_MOST_BYTES
    )


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """One slice.

    Attributes:
        name: Its name.
        uid: Its UID.
        version: The version of it that was read.
        generation: The generation of its pool.
        spec: What it says, without that and without what the server adds.
        metadata: What an update has to write back.
    """

    name: str
    uid: str
    version: str
    generation: int
    spec: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> StoredSlice:
        """Reads a slice. Raises ValueError for what is none."""
        metadata, spec = object_at(document, "metadata"), object_at(document, "spec")
        if not text_at(metadata, "name"):
            raise ValueError("a slice without a name")
        generation = object_at(spec, "pool").get("generation")
        return cls(
            text_at(metadata, "name"),
            text_at(metadata, "uid"),
            text_at(metadata, "resourceVersion"),
            generation if isinstance(generation, int) else 0,
            content_of(spec),
            {key: metadata[key] for key in _KEPT if metadata.get(key)},
        )

    @property
    def devices(self) -> list[Mapping[str, Any]]:
        """Its devices."""
        return objects_at(self.spec, "devices")

    def newer_than(self, other: StoredSlice) -> bool:
        """Whether it is a later state of the same slice."""
        if self.uid != other.uid or not (self.version.isdecimal() and other.version.isdecimal()):
            return False
        return int(self.version) > int(other.version)


def content_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the spec of a slice without its generation, and without the times that a server adds to taints."""
    pool = {key: value for key, value in object_at(spec, "pool").items() if key != "generation"}
    return {
        **spec,
        "pool": pool,
        "devices": [_without_times(device) for device in objects_at(spec, "devices")],
    }


def keeps_sharing(devices: Iterable[Mapping[str, Any]]) -> bool:
    """Whether devices that were written as shared are."""
    return all(
        device.get("allowMultipleAllocations") is True
        and all(
            object_at(object_at(object_at(device, "capacity"), name), "requestPolicy")
            for name in (MEMORY, CORES)
        )
        for device in devices
    )


def keeps_taints(written: Iterable[Mapping[str, Any]], devices: Iterable[Mapping[str, Any]]) -> bool:
    """Whether devices have the taints that were written."""
    tainted = {device.get("name") for device in devices if device.get("taints")}
    return all(device.get("name") in tainted for device in written if device.get("taints"))


def _without_times(device: Mapping[str, Any]) -> Mapping[str, Any]:
    taints = objects_at(device, "taints")
    if not any("timeAdded" in taint for taint in taints):
        return device
    bare = [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in taints]
    return {**device, "taints": bare}
