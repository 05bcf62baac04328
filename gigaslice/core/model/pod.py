# SPDX-License-Identifier: Apache-2.0
"""A pod of a node as the API server describes it: its names, its annotations, and what it asks for.

A value, cut down to what decisions need. `gigaslice.core.kube.decode` makes it from the API server's JSON.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from gigaslice.core.model.csi_volume import CsiVolume

_MIRROR = "kubernetes.io/config.mirror"
_FILE_HASH = "kubernetes.io/config.hash"
_HASH = re.compile(r"[0-9a-f]{32}")


def is_of(resource: str, name: str) -> bool:
    """Whether a resource is the one of that name, or counts its GPUs of one type: "NAME.TYPE"."""
    return resource == name or resource.startswith(f"{name}.")


class ContainerKind(Enum):
    """When a container of a pod runs."""

    INIT = "init"
    """Before all that follow, and alone but for sidecars: it lends its devices to later ones."""
    SIDECAR = "sidecar"
    """An init container that goes on running beside the others."""
    APP = "app"


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """What a container has of its pod's claims to devices. name: as the pod calls the claim. request: the only request
    of the claim that it has; empty where it has all of them.
    """

    name: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim to devices. name: as the pod calls it. claim: the ResourceClaim; empty until it has been made. template:
    what it is made from; empty where the pod names the claim itself.
    """

    name: str
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class PodContainer:
    """One container. requests: counts by name, of resources that are counted (those with a domain). claims: what it has
    of its pod's claims to devices.
    """

    name: str
    kind: ContainerKind = ContainerKind.APP
    requests: Mapping[str, int] = field(default_factory=dict)
    claims: tuple[ClaimUse, ...] = ()

    def asks_for(self, names: Collection[str]) -> bool:
        """Whether it asks for one of these resources, or for GPUs of one type of them."""
        return any(is_of(resource, name) for resource in self.requests for name in names)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. containers: in the order in which the kubelet admits them, init containers first.

    phase: "Pending", "Running", "Succeeded", "Failed" or "Unknown". controlled: something makes it again when it is
    gone. ending: its deletion has been asked for. node: empty while it is unbound. scheduler: the name of the one that
    binds it. created: as the API server writes times. volumes: its inline CSI volumes. nominated: the node on which
    others were evicted for it, while it is unbound. awaits_provisioning: whether volumes or devices of
    others have to be provided before it can be bound. readable: False where all but its names and its node could not be
    understood: it may hold GPUs that nothing tells. claims: its claims to devices. sandboxed: whether the kubelet has
    made its sandbox, which it does when all of its claims are prepared; a running pod loses it in a reboot. version:
    its resourceVersion, which is no part of what it is.
    """

    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[PodContainer, ...] = ()
    phase: str = "Pending"
    controlled: bool = False
    ending: bool = False
    node: str = ""
    scheduler: str = ""
    priority: int = 0
    created: str = ""
    volumes: tuple[CsiVolume, ...] = ()
    nominated: str = ""
    awaits_provisioning: bool = False
    readable: bool = True
    claims: tuple[PodClaim, ...] = ()
    sandboxed: bool = False
    version: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def terminal(self) -> bool:
        """Whether its containers have ended and none of them starts again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def mirror(self) -> bool:
        """Whether it only shows a static pod of the node: deleted and made anew it has another UID, and the same
        containers run on.
        """
        return _MIRROR in self.annotations

    @property
    def cgroup_uid(self) -> str:
        """The UID that its cgroup is named after: that of a static pod is a hash of its file on the node."""
        digest = self.annotations.get(_FILE_HASH, "") if self.mirror else ""
        return digest if _HASH.fullmatch(digest) else self.uid

    def asking(self, resource: str) -> tuple[PodContainer, ...]:
        """Its containers that ask for RESOURCE, in the order of admission."""
        return tuple(container for container in self.containers if container.requests.get(resource, 0) > 0)

    def users_of(self, claim: str) -> tuple[tuple[PodContainer, frozenset[str]], ...]:
        """Its containers that use the ResourceClaim of that name, each with the requests of it that it has; an empty
        set stands for all of them.
        """
        names = {own.name for own in self.claims if own.claim == claim}
        users = []
        for container in self.containers:
            requests = [use.request for use in container.claims if use.name in names]
            if requests:
                users.append((container, frozenset(requests) if all(requests) else frozenset[str]()))
        return tuple(users)

    def volumes_of(self, driver: str) -> tuple[CsiVolume, ...]:
        """Its inline volumes of the CSI driver of that name."""
        return tuple(volume for volume in self.volumes if volume.driver == driver)

    def most_at_once(self, resource: str) -> int:
        """The most of RESOURCE that its containers hold at the same time, as the kubelet hands it out."""
        beside, peak = 0, 0
        for container in self.asking(resource):
            count = container.requests[resource]
            if container.kind is ContainerKind.INIT:
                peak = max(peak, beside + count)
            else:
                beside += count
        return max(peak, beside)
