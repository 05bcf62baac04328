# SPDX-License-Identifier: Apache-2.0
"""Whom an Allocate is for: the container that asks, as far as it is known, and what became of the ones before. Pure.

The containers of a pod are allocated one after the other, init containers first, so the next one follows from the pod
and the allocation table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.deviceplugin.origin import Owner, plugin
from gigaslice.core.model import ContainerKind, Pod, PodContainer

__all__ = [
    "ContainerMatch",
    "Lookup",
    "PreviousHolders",
    "Requester",
    "next_container",
    "owner_of",
]

Lookup = Callable[[str, str], "Pod | None"]
"""Returns the pod of a namespace and a name, None where it is not known."""


@dataclass(frozen=True, slots=True)
class Requester:
    """A container that devices are requested for, with its pod's annotations."""

    pod: Pod
    container: PodContainer

    @property
    def owner(self) -> Owner:
        """The container as the allocation table records it."""
        init = self.container.kind is ContainerKind.INIT
        return Owner(self.pod.uid, self.pod.namespace, self.pod.name, self.container.name, init)


@dataclass(frozen=True, slots=True)
class ContainerMatch:
    """Which container a request is for.

    Attributes:
        requester: The container; None while it is not certain.
        unseen: Pods that it may be for and that the watch of the API server has not shown yet, as "namespace/name".
        possible: All pods that it may be for, as "namespace/name".
    """

    requester: Requester | None = None
    unseen: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PreviousHolders:
    """How far allocations have come whose device IDs are handed out again.

    Attributes:
        expired: Allocations whose pods have ended.
        started: Allocations that lend nothing any more. Processes have used them, so that all containers of their pods
            have been allocated; or the kubelet lists their containers, so that these are no plain init containers.
        named: Containers that became known just now, by allocation.
    """

    expired: frozenset[str] = frozenset()
    started: frozenset[str] = frozenset()
    named: Mapping[str, ContainerRef] = field(default_factory=dict)


def next_container(
    asking: Sequence[PodContainer],
    table: AllocationTable,
    pod: Pod,
    holding: frozenset[str],
    *,
    whole: bool = False,
) -> PodContainer | None:
    """Returns the container of a pod that is allocated next: the one after the last that is known to have devices.

    Args:
        asking: The pod's containers that ask for devices, in the order of their allocation.
        table: The allocation table.
        pod: The pod.
        holding: Names of containers that hold devices by another record.
        whole: The devices are whole GPUs.
    """
    done = holding | {
        owner.container
        for allocation in table.of_pod(pod.uid)
        if (owner := plugin(allocation).owner) and allocation.whole == whole
    }
    last = max((number for number, container in enumerate(asking) if container.name in done), default=-1)
    return asking[last + 1] if last + 1 < len(asking) else None


def owner_of(
    allocation: Allocation, lookup: Lookup, table: AllocationTable, resource: str
) -> Requester | None:
    """Returns the container of an allocation that was made before its container was known; None while it is unknown."""
    origin = plugin(allocation)
    if (ref := origin.ref) is not None:
        pod = lookup(ref.namespace, ref.pod)
        named = [container for container in pod.containers if container.name == ref.container] if pod else []
        return Requester(pod, named[0]) if pod and named else None
    requesters = []
    others = table.without([allocation.id])
    for name in origin.suspects or ():
        namespace, _, pod_name = name.partition("/")
        pod = lookup(namespace, pod_name)
        following = (
            next_container(pod.asking(resource), others, pod, frozenset(), whole=allocation.whole)
            if pod
            else None
        )
        if (
            pod is not None
            and following is not None
            and following.requests[resource] == len(origin.device_ids)
        ):
            requesters.append(Requester(pod, following))
    return requesters[0] if len(requesters) == 1 else None
