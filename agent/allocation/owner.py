"""Which container an Allocate is for: the kubelet's list, the watched pods and the allocation table, put together.
Pure.

The kubelet admits one pod at a time, container by container, init containers first. At each Allocate its pod-resources
list already shows the pod that is being requester, without devices for the container in question. So it is the one pod
whose next container, in the order of admission, asks for just as many devices and has none yet. Plain init containers
are never listed; that they have theirs is known from the allocation table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gigaslice.allocation.lifetime import ListedPod
from gigaslice.allocation.table import Allocation, AllocationTable, Owner
from gigaslice.model import ContainerKind, Pod, PodContainer

__all__ = ["Identification", "Lifecycle", "Requester", "identify", "owner_of"]

Lookup = Callable[[str, str], "Pod | None"]


@dataclass(frozen=True, slots=True)
class Requester:
    """A container that is being requester."""

    pod: Pod
    container: PodContainer

    @property
    def owner(self) -> Owner:
        """As the allocation table names it."""
        init = self.container.kind is ContainerKind.INIT
        return Owner(self.pod.uid, self.pod.namespace, self.pod.name, self.container.name, init)


@dataclass(frozen=True, slots=True)
class Identification:
    """Whom an Allocate is for. requester: None while that is not certain. unseen: pods that it can be for and that the
    watch has not shown yet. possible: all pods that it can be for. Both as "namespace/name".
    """

    requester: Requester | None = None
    unseen: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """What is known of those in the allocation table while the kubelet hands out devices. over: allocations whose pods
    have ended. started: allocations that processes have used, so that no container of theirs is still to be allocated.
    """

    over: frozenset[str] = frozenset()
    started: frozenset[str] = frozenset()


def identify(
    listed: Iterable[ListedPod], lookup: Lookup, table: AllocationTable, resource: str, size: int
) -> Identification:
    """Judges one list of the kubelet for an Allocate of SIZE devices of RESOURCE."""
    candidates: list[Requester] = []
    again: list[Requester] = []
    unseen: list[str] = []
    for one in listed:
        if not one.bare:
            continue
        pod = lookup(one.namespace, one.name)
        if pod is None:
            unseen.append(str(one))
            continue
        asking = pod.asking(resource)
        following = _following(asking, table, pod, one.holding)
        if following is not None:
            if following.requests[resource] == size:
                candidates.append(Requester(pod, following))
        elif bare := [c for c in asking if c.name in one.bare and c.kind is not ContainerKind.INIT]:
            # The allocation table has given it devices and the kubelet does not list them: a later pod of the same name
            # that the watch has not shown yet, or devices that the kubelet has forgotten.
            unseen.append(str(one))
            again += [Requester(pod, c) for c in bare if c.requests[resource] == size][:1]
    if len(candidates) > 1:
        candidates = [one for one in candidates if one.pod.phase == "Pending"]
    if len(candidates) == 1:
        return Identification(candidates[0], (), (str(candidates[0].pod),))
    possible = (*unseen, *(str(one.pod) for one in candidates))
    if not candidates and len(again) == 1 and len(unseen) == 1:
        return Identification(again[0], tuple(unseen), possible)
    return Identification(None, tuple(unseen), possible)


def owner_of(
    allocation: Allocation, lookup: Lookup, table: AllocationTable, resource: str
) -> Requester | None:
    """Whom an allocation was made for that nobody could tell during its Allocate; None while that is still so."""
    if allocation.ref is not None:
        pod = lookup(allocation.ref.namespace, allocation.ref.pod)
        named = [c for c in pod.containers if c.name == allocation.ref.container] if pod else []
        return Requester(pod, named[0]) if pod and named else None
    found = []
    others = table.without([allocation.id])
    for name in allocation.suspects or ():
        namespace, _, pod_name = name.partition("/")
        pod = lookup(namespace, pod_name)
        following = _following(pod.asking(resource), others, pod, frozenset()) if pod else None
        if (
            pod is not None
            and following is not None
            and following.requests[resource] == len(allocation.device_ids)
        ):
            found.append(Requester(pod, following))
    return found[0] if len(found) == 1 else None


def _following(
    asking: Sequence[PodContainer], table: AllocationTable, pod: Pod, holding: frozenset[str]
) -> PodContainer | None:
    """The container that is requester next: the one after the last that is known to have been."""
    done = {allocation.owner.container for allocation in table.of_pod(pod.uid) if allocation.owner} | holding
    last = max((number for number, container in enumerate(asking) if container.name in done), default=-1)
    return asking[last + 1] if last + 1 < len(asking) else None
