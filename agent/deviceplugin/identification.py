"""Which container an Allocate is for: the kubelet's list, the watched pods and the allocation table together. Pure.

The kubelet admits one pod at a time, container by container, init containers first. At each Allocate its pod-resources
list already shows the pod that is being admitted, without devices for the container in question. So the call is for the
one pod whose next container, in the order of admission, asks for just as many devices and has none yet. Plain init
containers are never listed; the allocation table shows that they have theirs.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.allocation.owner import Identification, Lookup, Requester, next_container
from gigaslice.allocation.lifetime import ListedPod
from gigaslice.allocation.table import AllocationTable
from gigaslice.cluster.names import ASSIGNMENT
from gigaslice.model import ContainerKind

__all__ = ["identify"]


def identify(
    listed: Iterable[ListedPod],
    lookup: Lookup,
    table: AllocationTable,
    resource: str,
    size: int,
    *,
    whole: bool = False,
) -> Identification:
    """Finds the container that an Allocate is for.

    Args:
        listed: The kubelet's pods, from one list.
        lookup: The pods as the watch of the API server shows them.
        table: The allocation table.
        resource: The resource of the Allocate.
        size: The number of its devices.
        whole: They are whole GPUs.
    """
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
        following = next_container(asking, table, pod, one.holding, whole=whole)
        if following is not None:
            if following.requests[resource] == size:
                candidates.append(Requester(pod, following))
        elif bare := [c for c in asking if c.name in one.bare and c.kind is not ContainerKind.INIT]:
            # By the allocation table it has devices, and the kubelet does not list them: a later pod of the same name
            # that the watch has not shown yet, or devices that the kubelet has forgotten.
            unseen.append(str(one))
            again += [Requester(pod, c) for c in bare if c.requests[resource] == size][:1]
    if len(candidates) > 1:
        candidates = [one for one in candidates if one.pod.phase == "Pending"]
    if len(candidates) == 1:
        return Identification(candidates[0], (), (str(candidates[0].pod),))
    possible = (*unseen, *(str(one.pod) for one in candidates))
    # The assignment of the pod that had the name before is not this one's.
    if not candidates and len(again) == 1 and len(unseen) == 1 and ASSIGNMENT not in again[0].pod.annotations:
        return Identification(again[0], tuple(unseen), possible)
    return Identification(None, tuple(unseen), possible)
