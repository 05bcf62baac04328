# SPDX-License-Identifier: Apache-2.0
"""Who uses an allocation, and what an API that hands allocations out says of them. Pure.

An allocation is a share of some GPUs. Which API it was handed out by, and for how many containers, is its origin's
matter: the kubelet's device-plugin API hands one to one container and names it by device IDs, and others may hand one
to several containers of several pods. The core asks an origin only what stands in `Origin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from gigaslice.core.model import Pod

__all__ = ["OBJECT_LABELS", "Consumer", "ContainerRef", "ObjectPart", "Origin", "common_names", "labels_of"]

OBJECT_LABELS = ("namespace", "pod", "container", "claim", "request")
"""The labels that tell the allocations of a node apart, in the order of `labels_of`."""


@dataclass(frozen=True, slots=True, order=True)
class ContainerRef:
    """A container by its names in the cluster."""

    namespace: str
    pod: str
    container: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


@dataclass(frozen=True, slots=True)
class Consumer:
    """A container that uses an allocation.

    Attributes:
        ref: Its names.
        uid: The UID of its pod; empty where only the names are known.
        init: It is a plain init container, which ends before the other containers of its pod start.
        confirmed: The kubelet has it. One that is not confirmed was only found out to ask for the allocation.
    """

    ref: ContainerRef
    uid: str = ""
    init: bool = False
    confirmed: bool = True

    def may_be_of(self, pod: Pod) -> bool:
        """Whether it can be a container of a pod: another pod of the same name has another UID."""
        same_name = (self.ref.namespace, self.ref.pod) == (pod.namespace, pod.name)
        return same_name and self.uid in ("", pod.uid)


def common_names(consumers: Iterable[Consumer]) -> tuple[str, str, str]:
    """Namespace, pod and container of all consumers, for labels: empty where they differ or there is none."""
    refs = [consumer.ref for consumer in consumers]
    names = ({ref.namespace for ref in refs}, {ref.pod for ref in refs}, {ref.container for ref in refs})
    namespace, pod, container = (next(iter(name)) if len(name) == 1 else "" for name in names)
    return namespace, pod, container


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """What an allocation was asked for by, where that is an object of the cluster beside its containers.

    Attributes:
        namespace: The namespace of the object.
        name: The name of the object: of a claim.
        parts: The names of those of its parts that the allocation is for: requests of the claim.
    """

    namespace: str
    name: str
    parts: tuple[str, ...]


class Origin(Protocol):
    """What an allocation was made for, and what the core may ask about that."""

    @property
    def consumers(self) -> Iterable[Consumer]:
        """The containers that use the allocation, as far as they are known; in the order of their names."""
        ...

    @property
    def asked_by(self) -> ObjectPart | None:
        """The object that it was asked for by; None where that is the container itself."""
        ...

    @property
    def key(self) -> str:
        """Names the request that the allocation is the answer to: the same request is not answered twice. Empty where
        requests cannot be told apart.
        """
        ...

    @property
    def undecided(self) -> bool:
        """Whether the options are a guess, to be decided before the first start."""
        ...

    @property
    def follows_annotations(self) -> bool:
        """Whether the annotations of the consumers' pods change the options while it runs."""
        ...

    @property
    def may_grow(self) -> bool:
        """Whether it may have more than it was given: the API's own count of what is free follows the node's."""
        ...

    @property
    def supersedes(self) -> Iterable[str]:
        """Ids of the allocations whose place it has taken: as long as one of them counts, it does not stand in that
        one's way.
        """
        ...


def labels_of(origin: Origin) -> tuple[str, ...]:
    """The values of `OBJECT_LABELS`. Those of two claims differ, also before consumers are known.

    A label that the consumers do not have in common is empty. So of a claim, which containers of several pods can
    share, namespace, name and requests are labels, too.
    """
    namespace, pod, container = common_names(origin.consumers)
    asked_by = origin.asked_by
    if asked_by is None:
        return namespace, pod, container, "", ""
    return asked_by.namespace, pod, container, asked_by.name, "+".join(asked_by.parts)
