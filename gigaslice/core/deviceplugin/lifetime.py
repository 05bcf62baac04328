# SPDX-License-Identifier: Apache-2.0
"""Whether the containers of the allocations still live, by all evidence together. Pure.

The kubelet does not report that a pod has ended; it only stops listing it. It also stops listing pods that live: after
its start it lists none for seconds, and a kubelet that has lost its checkpoint lists running containers without their
devices and counts these as free. So absence from one source proves nothing while another shows life. A living process
counts before everything else, then the API server's record of the pod, then the kubelet's list. An allocation that no
source decides is in doubt, and stays in the allocation table until it has been in doubt for long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.deviceplugin.origin import DevicePluginOrigin, container_ref, kept, plugin
from gigaslice.core.model import Pod

__all__ = [
    "Evidence",
    "Listed",
    "ListedAllocations",
    "ListedPod",
    "Liveness",
    "PodListing",
    "allocations_of_listed",
    "is_bare",
    "liveness",
]

_ONE_POD_SECONDS = 30.0  # far more than a kubelet ever takes between two containers of a pod


@dataclass(frozen=True, slots=True)
class Listed:
    """A container that the kubelet lists with devices of our resource."""

    container: ContainerRef
    device_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod of the kubelet's list: its listed containers that hold devices of ours, and those that do not.

    devices: what the former hold, whole GPUs included.
    """

    namespace: str
    name: str
    holding: frozenset[str]
    bare: frozenset[str]
    devices: tuple[Listed, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodListing:
    """One answer of the kubelet: containers with devices of ours, and all its pods as "namespace/name".

    settled: what is missing means something: this kubelet has been listing its pods for a while.
    """

    containers: tuple[Listed, ...] = ()
    pods: frozenset[str] = frozenset()
    settled: bool = True


@dataclass(frozen=True, slots=True)
class ListedAllocations:
    """Which allocations the listed containers have.

    Attributes:
        own: The allocation of each container, where that is certain.
        shared: Ids of allocations that one of several containers may have, or that a container has in the place of the
            one in `own`, with nothing to tell.
        unrecorded: The containers that there is no record of.
    """

    own: Mapping[Listed, Allocation]
    shared: frozenset[str]
    unrecorded: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the sources say.

    Attributes:
        listing: The kubelet's list; None where it gave no answer.
        pods: This node's as the API server has them now; None where that is not known.
        running: Ids of allocations that a living process uses or has mounted.
        attached: Those of which a living process has a slot.
        watched: Other pods' processes can be seen, so that it means something if there is none.
        answered: Ids of the allocations whose answers the kubelet keeps; None where that was not read.
    """

    listing: PodListing | None = None
    pods: Mapping[tuple[str, str], Pod] | None = None
    running: frozenset[str] = frozenset()
    attached: frozenset[str] = frozenset()
    watched: bool = False
    answered: frozenset[str] | None = None


class Liveness(Enum):
    """What the evidence says of an allocation's container."""

    ALIVE = "alive"
    DOUBTFUL = "doubtful"
    EXPIRED = "expired"


def liveness(table: AllocationTable, evidence: Evidence, asked_at: int) -> dict[str, Liveness]:
    """The liveness of every allocation of TABLE, by id. Allocations numbered ASKED_AT or later are younger than the
    evidence.
    """
    listing = evidence.listing or PodListing(settled=False)
    of_pod: dict[tuple[str, str], list[Allocation]] = {}
    for allocation in reversed(table.allocations):
        if (ref := container_ref(allocation)) is not None:
            of_pod.setdefault((ref.namespace, ref.pod), []).append(allocation)
    matched = allocations_of_listed(table, listing, evidence.answered)
    listed_as = {allocation.id: listed for listed, allocation in matched.own.items()}
    alive = {
        allocation.id
        for allocation in table.allocations
        if allocation.number >= asked_at
        or allocation.id in evidence.running
        or allocation.id in listed_as
        or allocation.id in matched.shared
    }
    states = dict.fromkeys(alive, Liveness.ALIVE)
    for allocation in table.allocations:
        ref = container_ref(allocation)
        if allocation.id not in states and allocation.ended:
            states[allocation.id] = Liveness.EXPIRED
        elif allocation.id not in states and ref is not None:
            of_same = of_pod[ref.namespace, ref.pod]
            states[allocation.id] = _named(of_same, allocation, evidence, listed_as)
    living = {key for key, state in states.items() if state is Liveness.ALIVE}
    # those that took device IDs over come before those that lent them
    for allocation in reversed(table.allocations):
        if allocation.id not in states:
            lives = _nameless(table, allocation, listing.pods, living)
            states[allocation.id] = Liveness.ALIVE if lives else Liveness.DOUBTFUL
            living |= {allocation.id} if lives else set()
    return states


def allocations_of_listed(
    table: AllocationTable, listing: PodListing, answered: frozenset[str] | None = None
) -> ListedAllocations:
    """Finds the allocations of the listed containers by their device IDs.

    Two living pods can have the same ones: the kubelet gives devices out again that it has lost count of. So the
    containers with the same device IDs share out the allocations that were made for exactly these. A container has the
    allocation that is known to be for it, and never one that is for another of them. One container that is left over
    has the newest allocation that is left over.

    A container that was known by name may be of another pod by now, and have a newer allocation. ANSWERED tells, the
    ids of the allocations whose answers the kubelet keeps: of those with the same device IDs no other counts.
    """
    exact: dict[frozenset[str], list[Allocation]] = {}
    for allocation in reversed(table.allocations):
        exact.setdefault(plugin(allocation).device_ids, []).append(allocation)
    alike: dict[frozenset[str], list[Listed]] = {}
    for listed in listing.containers:
        alike.setdefault(listed.device_ids, []).append(listed)
    own: dict[Listed, Allocation] = {}
    shared: set[str] = set()
    unrecorded: list[Listed] = []
    for device_ids, containers in alike.items():
        candidates = exact.get(device_ids, [])
        if answered and any(allocation.id in answered for allocation in candidates):
            candidates = [allocation for allocation in candidates if allocation.id in answered]
        names = {listed.container for listed in containers}
        by_name = {
            ref: allocation
            for allocation in reversed(candidates)
            if (ref := container_ref(allocation)) in names and ref is not None
        }
        own.update(
            (listed, by_name[listed.container]) for listed in containers if listed.container in by_name
        )
        rest = [listed for listed in containers if listed.container not in by_name]
        left = sorted(
            (allocation for allocation in candidates if container_ref(allocation) not in by_name),
            key=_unlikely,
        )
        if not candidates:  # the record is lost: one of other devices may be what is left of it
            left = [
                allocation
                for allocation in reversed(table.allocations)
                if plugin(allocation).device_ids & device_ids
            ][:1]
        if not left:
            unrecorded += rest
        elif len(rest) == 1:
            own[rest[0]] = left[0]
        else:
            oldest = 0 if rest else min(allocation.number for allocation in by_name.values())
            likely = sum(not _unlikely(allocation) for allocation in left)
            shared.update(
                allocation.id for allocation in left[: max(likely, len(rest))] if allocation.number > oldest
            )
    return ListedAllocations(own, frozenset(shared), tuple(unrecorded))


def _unlikely(allocation: Allocation) -> int:
    """Orders allocations by how little speaks for a listed container whose own is not known."""
    if container_ref(allocation) is not None:
        return 2  # it is for another container
    # one without any is over, or of an init container, which is not listed
    return 0 if kept(allocation) else 1


def is_bare(allocation: Allocation, listing: PodListing) -> bool:
    """Whether the kubelet lists the container of ALLOCATION, which it has listed with devices before, without any."""
    ref = plugin(allocation).container
    if ref is None or f"{ref.namespace}/{ref.pod}" not in listing.pods:
        return False
    return not any(listed.container == ref for listed in listing.containers)


def _named(
    of_pod: Sequence[Allocation],
    allocation: Allocation,
    evidence: Evidence,
    listed_as: Mapping[str, Listed],
) -> Liveness:
    """For an allocation whose container is known by name.

    Args:
        of_pod: All allocations of pods with its pod's name.
        allocation: The allocation.
        evidence: What the sources say.
        listed_as: The containers that the kubelet lists with their devices, by allocation.
    """
    origin = plugin(allocation)
    ref = origin.ref
    assert ref is not None
    if _followed(of_pod, allocation, listed_as, evidence.running):
        return Liveness.EXPIRED
    listing = evidence.listing or PodListing(settled=False)
    listed = f"{ref.namespace}/{ref.pod}" in listing.pods
    missing = listing.settled and not listed
    if evidence.pods is None:
        # Kubelets before 1.34 go on listing a pod that has completed, without devices; nothing of it runs.
        completed = evidence.watched and listing.settled and is_bare(allocation, listing)
        return Liveness.ALIVE if listed and not completed else Liveness.DOUBTFUL
    pod = evidence.pods.get((ref.namespace, ref.pod))
    if pod is None:  # a static pod may be listed without being known to the API server
        unknown = Liveness.EXPIRED if missing else Liveness.DOUBTFUL
        return Liveness.ALIVE if listed else unknown
    if not _same_pod(origin, pod):
        # the first answer of an API server may be an old one, and show the pod that had the name before
        return Liveness.EXPIRED if listing.settled else Liveness.DOUBTFUL
    return Liveness.EXPIRED if pod.terminal or (pod.ending and missing) else Liveness.ALIVE


def _same_pod(origin: DevicePluginOrigin, pod: Pod) -> bool:
    return origin.owner is None or origin.owner.uid == pod.uid or pod.mirror


def _followed(
    of_pod: Sequence[Allocation],
    allocation: Allocation,
    listed_as: Mapping[str, Listed],
    running: frozenset[str],
) -> bool:
    """Whether a later allocation shows that this one's container is no more: the kubelet lists the container with the
    later allocation's devices, or it was allocated anew, or a later pod has the name.
    """
    origin = plugin(allocation)
    for later in of_pod:
        if later.number <= allocation.number or later.whole != allocation.whole:
            continue
        listed, owner = listed_as.get(later.id), plugin(later).owner
        if listed is not None and listed.container == origin.ref:
            return True
        if origin.owner is None or owner is None:
            continue
        if owner == origin.owner:
            return True
        if owner.uid != origin.owner.uid and (listed is not None or later.id in running):
            return True
    return False


def _nameless(table: AllocationTable, allocation: Allocation, pods: frozenset[str], living: set[str]) -> bool:
    """Whether the pod of an allocation that no container is known for may live: an init container, which is never
    listed.

    One that has lent all its device IDs lives as long as a container that has them; any other as long as a container
    that took some of them right after it, or a pod of its suspects that `_cleared` does not rule out. The kubelet's
    list has no UIDs, so a pod whose name was there before is no suspect.
    """
    suspects = plugin(allocation).suspects
    if suspects is None:
        return True
    takers = [other for other in table.allocations if allocation.id in plugin(other).supersedes]
    if takers and not kept(allocation):
        return any(other.id in living for other in takers)
    if any(other.id in living and _one_pod(allocation, other) for other in takers):
        return True
    return bool(pods.intersection(suspects) - _cleared(table, allocation))


def _cleared(table: AllocationTable, allocation: Allocation) -> frozenset[str]:
    """The pods that ALLOCATION, which is not listed and still has device IDs, cannot be for.

    The kubelet allocates the containers of a pod one after the other without a pause, init containers before others
    (sidecars apart), and gives the device IDs of an init container to the next containers of its pod first. So it is
    none of the pods that are known to have other allocations, but for one with a later allocation that took device IDs
    over, and the one allocated just before.
    """
    named = [
        (other, f"{ref.namespace}/{ref.pod}")
        for other in table.allocations
        if (ref := plugin(other).container) and other.whole == allocation.whole
    ]
    takers = {pod for other, pod in named if allocation.id in plugin(other).supersedes}
    before: Sequence[tuple[Allocation, str]] = [
        (other, pod) for other, pod in named if other.number < allocation.number
    ][-1:]
    just_before = {pod for other, pod in before if _one_pod(other, allocation)}
    return frozenset(pod for _, pod in named) - takers - just_before


def _one_pod(earlier: Allocation, later: Allocation) -> bool:
    """Whether the two were allocated so soon after each other that they may be of one pod."""
    return later.created - earlier.created < _ONE_POD_SECONDS
