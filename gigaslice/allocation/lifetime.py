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

from gigaslice.allocation.table import Allocation, AllocationTable, ContainerRef
from gigaslice.model import Pod

__all__ = [
    "Claims",
    "Evidence",
    "Listed",
    "ListedPod",
    "PodListing",
    "Standing",
    "claims",
    "is_bare",
    "standings",
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
class Claims:
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
    """What is known. listing: None where the kubelet gave no answer. pods: this node's as the API server has them now,
    None where that is not known. running: ids of allocations that a living process uses or has mounted. attached: those
    of which a living process has a slot. watched: other pods' processes can be seen, so that it means something if
    there is none. kept: ids of the allocations whose answers the kubelet keeps; None where that was not read.
    """

    listing: PodListing | None = None
    pods: Mapping[tuple[str, str], Pod] | None = None
    running: frozenset[str] = frozenset()
    attached: frozenset[str] = frozenset()
    watched: bool = False
    kept: frozenset[str] | None = None


class Standing(Enum):
    """What the evidence says of an allocation's container."""

    ALIVE = "alive"
    DOUBTFUL = "doubtful"
    OVER = "over"


def standings(table: AllocationTable, evidence: Evidence, asked_at: int) -> dict[str, Standing]:
    """The standing of every allocation of TABLE, by id. Allocations numbered ASKED_AT or later are younger than the
    evidence.
    """
    listing = evidence.listing or PodListing(settled=False)
    of_pod: dict[tuple[str, str], list[Allocation]] = {}
    for allocation in reversed(table.allocations):
        if allocation.ref is not None:
            of_pod.setdefault((allocation.ref.namespace, allocation.ref.pod), []).append(allocation)
    claimed = claims(table, listing, evidence.kept)
    meant = {allocation.id: one for one, allocation in claimed.own.items()}
    alive = {
        allocation.id
        for allocation in table.allocations
        if allocation.number >= asked_at
        or allocation.id in evidence.running
        or allocation.id in meant
        or allocation.id in claimed.shared
    }
    found = dict.fromkeys(alive, Standing.ALIVE)
    for allocation in table.allocations:
        if allocation.id not in found and allocation.gone:
            found[allocation.id] = Standing.OVER
        elif allocation.id not in found and allocation.ref is not None:
            of_same = of_pod[allocation.ref.namespace, allocation.ref.pod]
            found[allocation.id] = _named(of_same, allocation, evidence, meant)
    living = {key for key, standing in found.items() if standing is Standing.ALIVE}
    for allocation in reversed(
        table.allocations
    ):  # those that took device IDs over come before those that lent them
        if allocation.id not in found:
            lives = _nameless(table, allocation, listing.pods, living)
            found[allocation.id] = Standing.ALIVE if lives else Standing.DOUBTFUL
            living |= {allocation.id} if lives else set()
    return found


def claims(table: AllocationTable, listing: PodListing, kept: frozenset[str] | None = None) -> Claims:
    """Finds the allocations of the listed containers by their device IDs.

    Two living pods can have the same ones: the kubelet gives devices out again that it has lost count of. So the
    containers with the same device IDs share out the allocations that were made for exactly these. A container has the
    allocation that is known to be for it, and never one that is for another of them. One container that is left over
    has the newest allocation that is left over.

    A container that was known by name may be of another pod by now, and have a newer allocation. KEPT tells, the ids of
    the allocations whose answers the kubelet keeps: of those with the same device IDs no other counts.
    """
    exact: dict[frozenset[str], list[Allocation]] = {}
    for allocation in reversed(table.allocations):
        exact.setdefault(allocation.device_ids, []).append(allocation)
    alike: dict[frozenset[str], list[Listed]] = {}
    for one in listing.containers:
        alike.setdefault(one.device_ids, []).append(one)
    own: dict[Listed, Allocation] = {}
    shared: set[str] = set()
    unrecorded: list[Listed] = []
    for device_ids, containers in alike.items():
        made = exact.get(device_ids, [])
        if kept and any(one.id in kept for one in made):
            made = [one for one in made if one.id in kept]
        names = {one.container for one in containers}
        known = {one.ref: one for one in reversed(made) if one.ref in names}
        own.update((one, known[one.container]) for one in containers if one.container in known)
        rest = [one for one in containers if one.container not in known]
        left = sorted((one for one in made if one.ref not in known), key=_unlikely)
        if not made:  # the record is lost: one of other devices may be what is left of it
            left = [one for one in reversed(table.allocations) if one.device_ids & device_ids][:1]
        if not left:
            unrecorded += rest
        elif len(rest) == 1:
            own[rest[0]] = left[0]
        else:
            oldest = 0 if rest else min(one.number for one in known.values())
            likely = sum(not _unlikely(one) for one in left)
            shared.update(one.id for one in left[: max(likely, len(rest))] if one.number > oldest)
    return Claims(own, frozenset(shared), tuple(unrecorded))


def _unlikely(allocation: Allocation) -> int:
    """Orders allocations by how little speaks for a listed container whose own is not known."""
    if allocation.ref is not None:
        return 2  # it is for another container
    return (
        0 if allocation.kept else 1
    )  # one without any is over, or of an init container, which is not listed


def is_bare(allocation: Allocation, listing: PodListing) -> bool:
    """Whether the kubelet lists the container of ALLOCATION, which it has listed with devices before, without any."""
    ref = allocation.container
    if ref is None or f"{ref.namespace}/{ref.pod}" not in listing.pods:
        return False
    return not any(one.container == ref for one in listing.containers)


def _named(
    of_pod: Sequence[Allocation], allocation: Allocation, evidence: Evidence, meant: Mapping[str, Listed]
) -> Standing:
    """For an allocation whose container is known by name. OF_POD: all allocations of pods with its pod's name. MEANT:
    allocations that the kubelet lists with their devices.
    """
    assert allocation.ref is not None
    if _followed(of_pod, allocation, meant, evidence.running):
        return Standing.OVER
    listing = evidence.listing or PodListing(settled=False)
    listed = f"{allocation.ref.namespace}/{allocation.ref.pod}" in listing.pods
    missing = listing.settled and not listed
    if evidence.pods is None:
        # Kubelets before 1.34 go on listing a pod that has completed, without devices; nothing of it runs.
        completed = evidence.watched and listing.settled and is_bare(allocation, listing)
        return Standing.ALIVE if listed and not completed else Standing.DOUBTFUL
    pod = evidence.pods.get((allocation.ref.namespace, allocation.ref.pod))
    if pod is None:  # a static pod may be listed without being known to the API server
        unknown = Standing.OVER if missing else Standing.DOUBTFUL
        return Standing.ALIVE if listed else unknown
    same = allocation.owner is None or allocation.owner.uid == pod.uid or pod.mirror
    if (
        not same
    ):  # the first answer of an API server may be an old one, and show the pod that had the name before
        return Standing.OVER if listing.settled else Standing.DOUBTFUL
    return Standing.OVER if pod.terminal or (pod.ending and missing) else Standing.ALIVE


def _followed(
    of_pod: Sequence[Allocation], allocation: Allocation, meant: Mapping[str, Listed], running: frozenset[str]
) -> bool:
    """Whether a later allocation shows that this one's container is no more: the kubelet lists the container with the
    later allocation's devices, or it was allocated anew, or a later pod has the name.
    """
    for later in of_pod:
        if later.number <= allocation.number or later.whole != allocation.whole:
            continue
        one = meant.get(later.id)
        if one is not None and one.container == allocation.ref:
            return True
        if allocation.owner is None or later.owner is None:
            continue
        if later.owner == allocation.owner:
            return True
        if later.owner.uid != allocation.owner.uid and (one is not None or later.id in running):
            return True
    return False


def _nameless(table: AllocationTable, allocation: Allocation, pods: frozenset[str], living: set[str]) -> bool:
    """Whether the pod of an allocation that no container is known for may live: an init container, which is never
    listed.

    One that has lent all its device IDs lives as long as a container that has them; any other as long as a container
    that took some of them right after it, or a pod of its suspects that `_cleared` does not rule out. The kubelet's
    list has no UIDs, so a pod whose name was there before is no suspect.
    """
    if allocation.suspects is None:
        return True
    takers = [other for other in table.allocations if allocation.id in other.supersedes]
    if takers and not allocation.kept:
        return any(other.id in living for other in takers)
    if any(other.id in living and _one_pod(allocation, other) for other in takers):
        return True
    return bool(pods.intersection(allocation.suspects) - _cleared(table, allocation))


def _cleared(table: AllocationTable, allocation: Allocation) -> frozenset[str]:
    """The pods that ALLOCATION, which is not listed and still has device IDs, cannot be for.

    The kubelet allocates the containers of a pod one after the other without a pause, init containers before others
    (sidecars apart), and gives the device IDs of an init container to the next containers of its pod first. So it is
    none of the pods that are known to have other allocations, but for one with a later allocation that took device IDs
    over, and the one allocated just before.
    """
    named = [
        (other, f"{other.container.namespace}/{other.container.pod}")
        for other in table.allocations
        if other.container and other.whole == allocation.whole
    ]
    takers = {pod for other, pod in named if allocation.id in other.supersedes}
    before: Sequence[tuple[Allocation, str]] = [
        (other, pod) for other, pod in named if other.number < allocation.number
    ][-1:]
    just_before = {pod for other, pod in before if _one_pod(other, allocation)}
    return frozenset(pod for _, pod in named) - takers - just_before


def _one_pod(earlier: Allocation, later: Allocation) -> bool:
    """Whether the two were allocated so soon after each other that they may be of one pod."""
    return later.created - earlier.created < _ONE_POD_SECONDS
