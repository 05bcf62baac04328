# SPDX-License-Identifier: Apache-2.0
"""A pod as admission sees it: what of its document admission decides by, each part of its own type. Pure.

Admission sees pods before they have a UID, and often before they have a name, so these are not the pods that
`gigaslice.core.kube.decode` reads; the fields of the document are read by the same functions. Every container counts,
init containers and sidecars too: one that was left out would be bound to any node, unchecked. An API server sends every
field as its own type, or leaves it out. A field of another type is sent by something else and is refused here, once, so
that nothing behind this has to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gigaslice.core.cluster.names import CLASS_PREFIX
from gigaslice.core.kube.pod_fields import (
    ContainerFields,
    FieldError,
    containers_in,
    count_of,
    object_in,
    objects_in,
    text_in,
)
from gigaslice.core.model.pod import ClaimUse, ContainerKind, Pod, PodContainer

__all__ = ["AdmissionPod", "ContainerRequest", "NamedClaim", "read_admission_pod"]

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
        only_requested: Names of `counts` that stand under requests alone, which Kubernetes takes for none of ours.
        requested: Names of `counts` that stand under requests.
        has_claims: Whether the container has a list of claims, be it an empty one.
        claims: What it has of the pod's claims to devices.
    """

    name: str
    kind: ContainerKind
    path: str
    counts: Mapping[str, int | None]
    has_requests: bool
    only_requested: frozenset[str] = frozenset()
    requested: frozenset[str] = frozenset()
    has_claims: bool = False
    claims: tuple[ClaimUse, ...] = ()

    @property
    def classes(self) -> dict[str, int | None]:
        """Counts by the name of a class."""
        return {
            name.removeprefix(CLASS_PREFIX): count
            for name, count in self.counts.items()
            if name.startswith(CLASS_PREFIX)
        }


@dataclass(frozen=True, slots=True)
class NamedClaim:
    """One claim to devices of a pod. claim, template: the object that it is, or is made from; the other is empty."""

    name: str
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class AdmissionPod:
    """What admission decides by.

    Attributes:
        pod: The value that the scheduler decides by, under stand-in names where the pod has none yet. Of what the
            containers ask for it has the counts of ours that can be read.
        asking: The containers that ask for something of ours, in the order of admission.
        environments: Of every container, ephemeral ones too, the names of the variables under env.
        claims: The claims to devices that the pod has.
        has_claims: Whether it has a list of them, be it an empty one.
        has_annotations: Whether it has a map of annotations, be it an empty one.
        ephemeral: Names of ephemeral containers that ask for something of ours.
    """

    pod: Pod
    asking: tuple[ContainerRequest, ...]
    environments: tuple[tuple[str, ...], ...] = ()
    claims: tuple[NamedClaim, ...] = ()
    has_claims: bool = False
    has_annotations: bool = False
    ephemeral: tuple[str, ...] = ()

    @property
    def container_names(self) -> frozenset[str]:
        """The names of all containers."""
        return frozenset(container.name for container in self.pod.containers)


def read_admission_pod(document: object) -> AdmissionPod:
    """Reads a pod's document.

    Raises:
        FieldError: A field has a type that no API server sends.
    """
    if not isinstance(document, dict | None):
        raise FieldError("the pod", "an object")
    document = document or {}
    metadata, spec = object_in(document, "metadata"), object_in(document, "spec")
    containers = tuple(map(_container, containers_in(spec)))
    name, generated = (text_in(metadata, key, "metadata.") for key in ("name", "generateName"))
    return AdmissionPod(
        pod=Pod(
            namespace=text_in(metadata, "namespace", "metadata.") or "default",
            name=name or generated or "new",
            uid=text_in(metadata, "uid", "metadata.") or "new",
            annotations=_annotations(metadata),
            containers=tuple(map(_pod_container, containers)),
            node=text_in(spec, "nodeName", "spec."),
            scheduler=text_in(spec, "schedulerName", "spec."),
        ),
        asking=tuple(container for container in containers if container.counts),
        environments=tuple(_environments(spec)),
        claims=tuple(_claims(spec)),
        has_claims=spec.get("resourceClaims") is not None,
        has_annotations=metadata.get("annotations") is not None,
        ephemeral=tuple(_ephemeral(spec)),
    )


def _environments(spec: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for list_name in ("initContainers", "containers", "ephemeralContainers"):
        for position, container in enumerate(objects_in(spec, list_name, "spec.")):
            parent = f"spec.{list_name}[{position}]."
            yield tuple(
                text_in(variable, "name", f"{parent}env[{number}].")
                for number, variable in enumerate(objects_in(container, "env", parent))
            )


def _claims(spec: Mapping[str, Any]) -> Iterator[NamedClaim]:
    for position, claim in enumerate(objects_in(spec, "resourceClaims", "spec.")):
        parent = f"spec.resourceClaims[{position}]."
        names = ("name", "resourceClaimName", "resourceClaimTemplateName")
        yield NamedClaim(*(text_in(claim, name, parent) for name in names))


def _ephemeral(spec: Mapping[str, Any]) -> Iterator[str]:
    for position, container in enumerate(objects_in(spec, "ephemeralContainers", "spec.")):
        parent = f"spec.ephemeralContainers[{position}]."
        resources = object_in(container, "resources", parent)
        for field in ("limits", "requests"):
            if any(_WORD in name for name in object_in(resources, field, f"{parent}resources.")):
                yield text_in(container, "name", parent)
                break


def _annotations(metadata: Mapping[str, Any]) -> dict[str, str]:
    annotations = object_in(metadata, "annotations", "metadata.")
    for key, value in annotations.items():
        if not isinstance(value, str | None):
            raise FieldError(f"metadata.annotations[{key[:100]}]", "a text")
    return {key: value or "" for key, value in annotations.items()}


def _container(fields: ContainerFields) -> ContainerRequest:
    asked = {**fields.requests, **fields.limits}
    counts = {name: count_of(quantity) for name, quantity in asked.items() if _WORD in name}
    text_in(fields.document, "restartPolicy", f"{fields.path}.")
    resources, parent = object_in(fields.document, "resources"), f"{fields.path}.resources."
    return ContainerRequest(
        name=text_in(fields.document, "name", f"{fields.path}."),
        kind=fields.kind,
        path=f"/spec/{fields.list_name}/{fields.position}",
        counts=counts,
        has_requests=fields.has_requests,
        only_requested=frozenset(counts.keys() - fields.limits.keys()),
        requested=frozenset(counts.keys() & fields.requests.keys()),
        has_claims=resources.get("claims") is not None,
        claims=tuple(
            ClaimUse(*(text_in(use, key, f"{parent}claims[{number}].") for key in ("name", "request")))
            for number, use in enumerate(objects_in(resources, "claims", parent))
        ),
    )


def _pod_container(container: ContainerRequest) -> PodContainer:
    readable = {name: count for name, count in container.counts.items() if count}
    return PodContainer(container.name, container.kind, readable, container.claims)
