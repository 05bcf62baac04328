"""A pod as admission sees it: what of its document admission decides by, each part of its own type. Pure.

Admission sees pods before they have a UID, and often before they have a name, so these are not the pods of
`gigaslice.model.pod`. Every container counts, init containers and sidecars too: one that was left out would be bound to
any node, unchecked. An API server sends every field as its own type, or leaves it out; a field of another type is sent
by something else, and is refused here, once, so that nothing behind this has to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gigaslice.cluster.names import CLASS_PREFIX
from gigaslice.errors import InputError
from gigaslice.kube.quantity import whole
from gigaslice.model.pod import ContainerKind, Pod, PodContainer

__all__ = ["ContainerRequest", "PodShape", "ShapeError", "pod_shape"]

_WORD = "gigaslice"


class ShapeError(InputError):
    """The document is no pod; the text names the field and what belongs there."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container that asks for something of ours.

    Attributes:
        name: The container's.
        kind: When it runs.
        path: Of the container in the document, as JSON Patch writes it.
        counts: By resource name, of names with "gigaslice" in them; None where the value is no quantity.
        has_requests: Whether the container has a map of requests, which must then say the same as its limits.
        only_requested: Names of `counts` that stand under requests alone, which Kubernetes takes for none of ours.
    """

    name: str
    kind: ContainerKind
    path: str
    counts: Mapping[str, int | None]
    has_requests: bool
    only_requested: frozenset[str] = frozenset()

    @property
    def classes(self) -> dict[str, int | None]:
        """Counts by the name of a class."""
        return {
            name.removeprefix(CLASS_PREFIX): count
            for name, count in self.counts.items()
            if name.startswith(CLASS_PREFIX)
        }


@dataclass(frozen=True, slots=True)
class PodShape:
    """What admission decides by.

    Attributes:
        asking: The containers that ask for something of ours, in the order of admission.
        container_names: Of all containers.
        annotations: All of them.
        scheduler: spec.schedulerName, empty where there is none.
        node: spec.nodeName, empty where there is none.
        pod: The value that the scheduler decides by, under stand-in names where the pod has none yet.
    """

    asking: tuple[ContainerRequest, ...]
    container_names: frozenset[str]
    annotations: Mapping[str, str]
    scheduler: str
    node: str
    pod: Pod


def pod_shape(document: object) -> PodShape:
    """Reads a pod's document.

    Raises:
        ShapeError: A field has a type that no API server sends.
    """
    pod = _object(document, "the pod")
    metadata, spec = _object(pod.get("metadata"), "metadata"), _object(pod.get("spec"), "spec")
    containers = tuple(_containers(spec))
    annotations = {
        key: _text(value, f"metadata.annotations[{key[:100]}]")
        for key, value in _object(metadata.get("annotations"), "metadata.annotations").items()
    }
    name, generated = (_text(metadata.get(key), f"metadata.{key}") for key in ("name", "generateName"))
    return PodShape(
        asking=tuple(container for container in containers if container.counts),
        container_names=frozenset(container.name for container in containers),
        annotations=annotations,
        scheduler=_text(spec.get("schedulerName"), "spec.schedulerName"),
        node=_text(spec.get("nodeName"), "spec.nodeName"),
        pod=Pod(
            namespace=_text(metadata.get("namespace"), "metadata.namespace") or "default",
            name=name or generated or "new",
            uid=_text(metadata.get("uid"), "metadata.uid") or "new",
            annotations=annotations,
            containers=tuple(
                PodContainer(
                    container.name,
                    container.kind,
                    {name: count for name, count in container.counts.items() if count},
                )
                for container in containers
            ),
        ),
    )


def _containers(spec: Mapping[str, Any]) -> Iterator[ContainerRequest]:
    for field in ("initContainers", "containers"):
        listed = spec.get(field)
        if not isinstance(listed, list | None):
            raise ShapeError(f"spec.{field} must be a list")
        for number, one in enumerate(listed or ()):
            place = f"spec.{field}[{number}]"
            container = _object(one, place)
            resources = _object(container.get("resources"), f"{place}.resources")
            requests, limits = (
                _object(resources.get(key), f"{place}.resources.{key}") for key in ("requests", "limits")
            )
            counts = {name: _count(value) for name, value in {**requests, **limits}.items() if _WORD in name}
            yield ContainerRequest(
                _text(container.get("name"), f"{place}.name"),
                _kind(field, _text(container.get("restartPolicy"), f"{place}.restartPolicy")),
                f"/spec/{field}/{number}",
                counts,
                resources.get("requests") is not None,
                frozenset(counts.keys() - limits.keys()),
            )


def _object(value: object, place: str) -> dict[str, Any]:
    """The object at PLACE; one that is missing or null is empty, as Go's decoders have it."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ShapeError(f"{place} must be an object")
    return value


def _text(value: object, place: str) -> str:
    """The text at PLACE, empty where there is none."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ShapeError(f"{place} must be a text")
    return value


def _kind(field: str, restart: str) -> ContainerKind:
    if field == "containers":
        return ContainerKind.APP
    return ContainerKind.SIDECAR if restart == "Always" else ContainerKind.INIT


def _count(value: object) -> int | None:
    try:
        return whole(value)
    except ValueError:
        return None
