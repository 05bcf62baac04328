# SPDX-License-Identifier: Apache-2.0
"""Which container an Allocate is for: the kubelet's list, the watched pods and the allocation table together. Pure.

The kubelet admits one pod at a time, container by container, init containers first. At each Allocate its pod-resources
list already shows the pod that is being admitted, without devices for the container in question. So the call is for the
one pod whose next container, in the order of admission, asks for just as many devices and has none yet. Plain init
containers are never listed; the allocation table shows that they have theirs.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.deviceplugin.requester import ContainerMatch, Lookup, Requester, next_container
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.deviceplugin.lifetime import ListedPod
from gigaslice.core.model import ContainerKind

__all__ = ["identify"]


def identify(
    listed: Iterable[ListedPod],
    lookup: Lookup,
    table: AllocationTable,
    resource: str,
    size: int,
    *,
    whole: bool = False,
) -> ContainerMatch:
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
    for entry in listed:
        if not entry.bare:
            continue
        pod = lookup(entry.namespace, entry.name)
        if pod is None:
            unseen.append(str(entry))
            continue
        asking = pod.asking(resource)
        following = next_container(asking, table, pod, entry.holding, whole=whole)
        if following is not None:
            if following.requests[resource] == size:
                candidates.append(Requester(pod, following))
        elif bare := [c for c in asking if c.name in entry.bare and c.kind is not ContainerKind.INIT]:
            # By the allocation table it has devices, and the kubelet does not list them: a later pod of the same name
            # that the watch has not shown yet, or devices that the kubelet has forgotten.
            unseen.append(str(entry))
            again += [Requester(pod, c) for c in bare if c.requests[resource] == size][:1]
    if len(candidates) > 1:
        candidates = [candidate for candidate in candidates if candidate.pod.phase == "Pending"]
    if len(candidates) == 1:
        return ContainerMatch(candidates[0], (), (str(candidates[0].pod),))
    possible = (*unseen, *(str(candidate.pod) for candidate in candidates))
    # The assignment of the pod that had the name before is not this one's.
    if not candidates and len(again) == 1 and len(unseen) == 1 and ASSIGNMENT not in again[0].pod.annotations:
        return ContainerMatch(again[0], tuple(unseen), possible)
    return ContainerMatch(None, tuple(unseen), possible)
