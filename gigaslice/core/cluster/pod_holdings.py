# SPDX-License-Identifier: Apache-2.0
"""What a pod holds of GPUs, from its assignment: the most that its containers have at a time, per GPU. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import PodDemand
from gigaslice.core.cluster.holding import HeldShare, Holding, PodConsumer
from gigaslice.core.model import (
    AnnotationRights,
    ContainerKind,
    Pod,
    SliceUnit,
    annotations_by_container,
    parse_options,
)
from gigaslice.core.model.options import PREFIX

__all__ = [
    "EXCLUSIVE",
    "OVERSUBSCRIBE",
    "ContainerTraits",
    "pod_holding",
    "shares_of",
    "traits_of_demand",
    "traits_of_pod",
]


class ContainerTraits(NamedTuple):
    """What matters of a container beside its shares."""

    name: str
    kind: ContainerKind
    exclusive: bool
    host: bool


EXCLUSIVE, OVERSUBSCRIBE = f"{PREFIX}exclusive", f"{PREFIX}oversubscribe"
"""What the keys begin with that say how GPUs are held; those for one container have its name after them."""
_NO_SIZES = SliceUnit(1, int)


def traits_of_pod(pod: Pod, rights: AnnotationRights) -> tuple[ContainerTraits, ...]:
    """Returns the containers of a pod in the order of admission, with the annotations that count."""
    flagged = any(key.startswith((EXCLUSIVE, OVERSUBSCRIBE)) for key in pod.annotations)
    meant = annotations_by_container(pod.annotations) if flagged else None
    traits = []
    for container in pod.containers:
        exclusive = host = False
        if meant is not None:
            options = parse_options(meant(container.name), container.name, _NO_SIZES, rights)
            exclusive, host = options.exclusive, options.oversubscribe
        traits.append(ContainerTraits(container.name, container.kind, exclusive, host))
    return tuple(traits)


def traits_of_demand(demand: PodDemand) -> tuple[ContainerTraits, ...]:
    """Returns the containers of a demand in the order of admission."""
    return tuple(
        ContainerTraits(
            container.name, container.kind, container.options.exclusive, container.options.oversubscribe
        )
        for container in demand.containers
    )


def pod_holding(pod: Pod, shares: tuple[HeldShare, ...]) -> Holding:
    """Returns the holding of a bound pod that asks for GPUs by itself: nobody else uses it."""
    return Holding(pod.uid, shares, (PodConsumer(pod.uid, pod.namespace, pod.name, pod.priority),))


def shares_of(assignment: Assignment, traits: tuple[ContainerTraits, ...]) -> tuple[HeldShare, ...]:
    """Returns the most that the containers of a pod hold of each GPU at a time.

    Init containers count beside the sidecars before them; a container that the pod does not name counts as one that
    runs on.
    """
    names = {container.name for container in traits}
    strangers = tuple(
        ContainerTraits(name, ContainerKind.APP, exclusive=False, host=False)
        for name in assignment.containers
        if name not in names
    )
    beside: dict[str, tuple[int, int]] = {}
    peak: dict[str, tuple[int, int]] = {}
    exclusive: set[str] = set()
    host: dict[str, bool] = {}
    for container in (*traits, *strangers):
        for share in assignment.containers.get(container.name, ()):
            slices, cores = beside.get(share.gpu, (0, 0))
            now = (slices + share.slices, min(100, cores + share.cores))
            most = peak.get(share.gpu, (0, 0))
            peak[share.gpu] = (max(most[0], now[0]), max(most[1], now[1]))
            if container.kind is not ContainerKind.INIT:
                beside[share.gpu] = now
            if container.exclusive:
                exclusive.add(share.gpu)
            host[share.gpu] = host.get(share.gpu, True) and container.host
    return tuple(
        HeldShare(gpu, slices, cores, gpu in exclusive, host[gpu])
        for gpu, (slices, cores) in sorted(peak.items())
    )
