# SPDX-License-Identifier: Apache-2.0
"""The fields of a pod's document, each of the type that the API server sends; another type is refused. Pure.

Both readers of pods stand on this: `gigaslice.core.kube.decode`, whose pods are the API server's, and
`gigaslice.roles.webhook.admission_pod`, whose pods are not stored yet. What they make of a field differs, what is a
field does not. Documents in which a field of another type must hide nothing are read by `gigaslice.core.kube.fields`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gigaslice.core.errors import InputError
from gigaslice.core.kube.quantity import parse_quantity
from gigaslice.core.model.pod import ContainerKind

__all__ = ["ContainerFields", "FieldError", "containers_in", "count_of", "object_in", "objects_in", "text_in"]


class FieldError(InputError, ValueError):
    """A field has a type that no API server sends; the text names the field and what belongs there."""

    def __init__(self, path: str, expected: str) -> None:
        super().__init__(f"{path} must be {expected}")


class ContainerFields(NamedTuple):
    """One container of a pod. A tuple, which takes a third of the time: lists have tens of thousands of pods.

    Attributes:
        document: The container's own.
        kind: When it runs.
        list_name: The field of the spec that it stands in.
        position: In that list.
        has_requests: Whether there is a map of requests, be it an empty one.
        requests, limits: Quantities by the resource's name, as they were sent.
    """

    document: Mapping[str, Any]
    kind: ContainerKind
    list_name: str
    position: int
    has_requests: bool
    requests: Mapping[str, Any]
    limits: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Where the container stands, as sentences name it."""
        return f"spec.{self.list_name}[{self.position}]"


def containers_in(spec: Mapping[str, Any]) -> Iterator[ContainerFields]:
    """Yields a pod's containers in the order in which the kubelet admits them, init containers first.

    Raises:
        FieldError: A container, or what it asks for, is of another type.
    """
    for list_name in ("initContainers", "containers"):
        for position, document in enumerate(objects_in(spec, list_name, "spec.")):
            parent = f"spec.{list_name}[{position}]."
            resources = object_in(document, "resources", parent)
            parent = f"{parent}resources."
            yield ContainerFields(
                document=document,
                kind=_kind(list_name, document),
                list_name=list_name,
                position=position,
                has_requests=resources.get("requests") is not None,
                requests=object_in(resources, "requests", parent),
                limits=object_in(resources, "limits", parent),
            )


def object_in(document: Mapping[str, Any], key: str, parent: str = "") -> dict[str, Any]:
    """Returns the object at KEY; one that is missing or null is empty, as Go's decoders have it.

    Raises:
        FieldError: It is no object. PARENT is what stands before KEY in the sentence, "spec." for example.
    """
    field = document.get(key)
    if field is None:
        return {}
    if not isinstance(field, dict):
        raise FieldError(parent + key, "an object")
    return field


def objects_in(document: Mapping[str, Any], key: str, parent: str = "") -> list[dict[str, Any]]:
    """Returns the list of objects at KEY; one that is missing or null is empty.

    Raises:
        FieldError: It is no list, or something in it is no object.
    """
    field = document.get(key)
    if field is None:
        return []
    if not isinstance(field, list):
        raise FieldError(parent + key, "a list")
    for position, element in enumerate(field):
        if not isinstance(element, dict):
            raise FieldError(f"{parent}{key}[{position}]", "an object")
    return field


def text_in(document: Mapping[str, Any], key: str, parent: str = "") -> str:
    """Returns the text at KEY, empty where there is none.

    Raises:
        FieldError: It is no text.
    """
    field = document.get(key)
    if field is None:
        return ""
    if not isinstance(field, str):
        raise FieldError(parent + key, "a text")
    return field


def count_of(quantity: object) -> int | None:
    """Returns a quantity as a whole number; None for what is no quantity."""
    try:
        return parse_quantity(quantity)
    except ValueError:
        return None


def _kind(list_name: str, document: Mapping[str, Any]) -> ContainerKind:
    if list_name == "containers":
        return ContainerKind.APP
    return ContainerKind.SIDECAR if document.get("restartPolicy") == "Always" else ContainerKind.INIT
