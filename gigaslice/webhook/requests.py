"""What a pod's document asks of ours, container by container, as it stands in the document. Pure.

Admission sees pods before they have a UID, and often before they have a name, so these are not the pods of
`gigaslice.model.pod`. Every container counts, init containers and sidecars too: one that was left out would be bound to
any node, unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gigaslice.cluster.names import CLASS_PREFIX
from gigaslice.kube.quantity import whole
from gigaslice.model.pod import ContainerKind, Pod, PodContainer

__all__ = ["ContainerRequest", "annotations_of", "container_requests", "pod_of"]

_WORD = "gigaslice"


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container that asks for something of ours.

    Attributes:
        name: The container's.
        kind: When it runs.
        path: Of the container in the document, as JSON Patch writes it.
        counts: By resource name, of names with "gigaslice" in them; None where the value is no quantity.
        has_requests: Whether the container has a map of requests, which must then say the same as its limits.
    """

    name: str
    kind: ContainerKind
    path: str
    counts: Mapping[str, int | None]
    has_requests: bool

    @property
    def classes(self) -> dict[str, int | None]:
        """Counts by the name of a class."""
        return {
            name.removeprefix(CLASS_PREFIX): count
            for name, count in self.counts.items()
            if name.startswith(CLASS_PREFIX)
        }


def container_requests(pod: Mapping[str, Any]) -> tuple[ContainerRequest, ...]:
    """Returns the containers of a pod's document that ask for something of ours, in the order of admission."""
    return tuple(one for one in _containers(pod) if one.counts)


def annotations_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Returns the annotations of a pod's document."""
    found = (pod.get("metadata") or {}).get("annotations") or {}
    return {str(key): str(value) for key, value in found.items()}


def pod_of(pod: Mapping[str, Any]) -> Pod:
    """Returns the document as the value that the scheduler decides by, under stand-in names where it has none yet."""
    metadata = pod.get("metadata") or {}
    return Pod(
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name") or metadata.get("generateName") or "new"),
        uid=str(metadata.get("uid") or "new"),
        annotations=annotations_of(pod),
        containers=tuple(
            PodContainer(one.name, one.kind, {name: count for name, count in one.counts.items() if count})
            for one in _containers(pod)
        ),
    )


def _containers(pod: Mapping[str, Any]) -> Iterator[ContainerRequest]:
    spec = pod.get("spec") or {}
    for field in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(field) or ()):
            resources = container.get("resources") or {}
            asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
            yield ContainerRequest(
                str(container.get("name", "")),
                _kind(field, container),
                f"/spec/{field}/{number}",
                {name: _count(value) for name, value in asked.items() if _WORD in name},
                resources.get("requests") is not None,
            )


def _kind(field: str, container: Mapping[str, Any]) -> ContainerKind:
    if field == "containers":
        return ContainerKind.APP
    return ContainerKind.SIDECAR if container.get("restartPolicy") == "Always" else ContainerKind.INIT


def _count(value: object) -> int | None:
    try:
        return whole(value)
    except ValueError:
        return None
