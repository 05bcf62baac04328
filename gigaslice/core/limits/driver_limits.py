# SPDX-License-Identifier: Apache-2.0
"""Which limits the NVIDIA driver is to keep for the cgroups of pods. Pure.

From branch 615 on the driver bounds the device memory of a cgroup itself, whatever program takes it. The library bounds
each container, and shows and counts; the driver's limit stands behind it for the programs that the library is not in.
It is set on the pod's cgroup, which exists before any process of its containers, and is the pod's promised memory of
the GPU with a margin: the driver counts a little more than NVML shows, and the library is to refuse first. A pod gets 0
on the GPUs of which it was promised nothing, since it may see them all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gigaslice.core.allocation.host_memory import real_part
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.limits.live_limits import Present, limits_now, physical_now
from gigaslice.core.model import Gpu

__all__ = ["NodePods", "container_limit", "excess_bytes", "limits_of_node", "page_room", "pod_limits"]

Limits = Mapping[str, Mapping[str, int]]
"""Bytes by pod UID and GPU."""


@dataclass(frozen=True, slots=True)
class NodePods:
    """What is known of the pods of a node, by their UIDs as cgroups name them.

    Attributes:
        present: Those that have a cgroup.
        users: The pods of each allocation's containers, by allocation ID. One that is missing has unknown pods.
        known: Those that the API server shows; None where it is not asked or does not answer.
        exempt: Those that may use GPUs without having asked for them, such as monitoring.
        closed: Those that had nothing of any GPU when the pods of all allocations were known. A pod gets its share
            before its cgroup is made, so these have nothing for good.
    """

    present: frozenset[str] = frozenset()
    users: Mapping[str, frozenset[str]] | None = None
    known: frozenset[str] | None = None
    exempt: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()

    def users_of(self, allocation: Allocation) -> frozenset[str]:
        """Returns the pods of an allocation, as far as they are known."""
        return (self.users or {}).get(allocation.id, frozenset())


def pod_limits(
    table: AllocationTable, pods: NodePods, gpus: Sequence[Gpu], present: Present, margin: int
) -> dict[str, dict[str, int]]:
    """Returns the limits of all pods that use an allocation, in bytes by pod and GPU; 0 of GPUs that they have none of.

    An allocation that several pods share counts in full for each of them: the library alone holds their sum.

    Args:
        table: The allocation table.
        pods: Whose the allocations are.
        gpus: The node's GPUs. No limit is larger than what programs can have of one.
        present: Bytes that living processes hold, by allocation and GPU.
        margin: Bytes that a limit is larger than what was promised.
    """
    usable = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
    pages = limits_now(table, gpus, present)
    promised: dict[str, dict[str, int]] = {}
    largest: dict[str, dict[str, int]] = {}
    for allocation in table.allocations:
        own = _own_memory(allocation, gpus, {gpu: count for gpu, (count, _) in pages[allocation.id].items()})
        for uid in pods.users_of(allocation):
            sums, most = promised.setdefault(uid, {}), largest.setdefault(uid, {})
            for gpu, (counted, limit) in own.items():
                sums[gpu] = sums.get(gpu, 0) + counted
                most[gpu] = max(most.get(gpu, 0), limit)
    return {
        uid: {
            gpu: min(size, max(sums[gpu], largest[uid][gpu]) + margin)
            if sums.get(gpu) or largest[uid].get(gpu)
            else 0
            for gpu, size in usable.items()
        }
        for uid, sums in promised.items()
    }


def limits_of_node(
    limits: Limits, pods: NodePods, totals: Mapping[str, int], *, identified: bool
) -> dict[str, dict[str, int]]:
    """Returns LIMITS with those of the pods that use no allocation. A pod that is left out keeps what it has.

    A pod that is exempt, or may be one whose allocation is not known to be its own, gets all of every GPU: where the
    driver keeps limits by the address of a cgroup, a new one could have inherited the limit of one that is gone.

    Args:
        limits: The limits of the pods that use one.
        pods: The pods.
        totals: The whole memory of each GPU.
        identified: Whether the pods of every allocation are known.
    """
    everything, nothing = dict(totals), dict.fromkeys(totals, 0)
    answer = {uid: dict(by_gpu) for uid, by_gpu in limits.items()}
    for uid in pods.present - limits.keys():
        if uid in pods.exempt or pods.known is None:
            answer[uid] = everything
        elif uid in pods.closed or (identified and uid in pods.known):
            answer[uid] = nothing
        elif not identified:
            answer[uid] = everything
    return answer


def excess_bytes(limits: Limits, gpus: Collection[Gpu]) -> dict[str, int]:
    """Returns by how many bytes the limits of all pods exceed each GPU's usable memory; only GPUs where they do."""
    sums = {gpu.uuid: sum(by_gpu.get(gpu.uuid, 0) for by_gpu in limits.values()) for gpu in gpus}
    return {gpu.uuid: sums[gpu.uuid] - gpu.memory_bytes for gpu in gpus if sums[gpu.uuid] > gpu.memory_bytes}


def container_limit(
    allocation: Allocation, gpus: Sequence[Gpu], page: Mapping[str, int], gpu: str, margin: int
) -> int | None:
    """Returns the limit of one container by itself, where its own cgroup needs one; None where it has none of GPU.

    PAGE: the bytes of its limits page by GPU.
    """
    usable = next((device.memory_bytes for device in gpus if device.uuid == gpu), None)
    own = _own_memory(allocation, gpus, page).get(gpu)
    return None if own is None or usable is None else min(usable, own[1] + margin)


def page_room(
    table: AllocationTable,
    allocation: Allocation,
    users: Mapping[str, frozenset[str]],
    hard: Mapping[str, Mapping[str, int | None]],
    *,
    gpu: Gpu,
    margin: int,
) -> int | None:
    """Returns the bytes that the limits page of ALLOCATION may allow on a GPU, as the driver's limits are now.

    A limits page that grows before its pod's limit does would promise what the driver refuses.

    Args:
        table: The allocation table.
        allocation: The allocation.
        users: The pods of each allocation, by its ID.
        hard: The limits that the driver keeps now, by pod and GPU; None for none.
        gpu: The GPU.
        margin: Bytes that a limit is larger than what was promised.

    Returns:
        None where no limit of the driver bounds it.
    """
    rooms = []
    for uid in users.get(allocation.id, frozenset()):
        limit = hard.get(uid, {}).get(gpu.uuid)
        if limit is None:
            continue
        beside = sum(
            real_part(other, gpu.uuid, other.promised.get(gpu.uuid, 0))
            for other in table.allocations
            if other.id != allocation.id and uid in users.get(other.id, frozenset())
        )
        rooms.append(limit - beside - (margin if limit < gpu.memory_bytes else 0))
    return min(rooms) if rooms else None


def _own_memory(
    allocation: Allocation, gpus: Sequence[Gpu], page: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """What ALLOCATION has of each GPU's own memory: what counts of it beside others, and what its page allows now.

    PAGE: the bytes of its limits page. Of an init container, whose memory later containers of its pod take over, only
    what those do not have counts (`gigaslice.core.deviceplugin.pod_peak`): its pod never has the sum.
    """
    if allocation.ended:
        return {}
    if allocation.whole:
        whole = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
        return {
            hold.gpu: (whole[hold.gpu], whole[hold.gpu]) for hold in allocation.holds if hold.gpu in whole
        }
    quota, physical = allocation.quota(), physical_now(allocation, gpus, page)
    own = {}
    for gpu, count in page.items():
        more = max(0, count - quota[gpu])  # of an elastic container that is alone on the GPU
        limit = physical.get(gpu, count)
        own[gpu] = (min(limit, real_part(allocation, gpu, allocation.promised.get(gpu, 0)) + more), limit)
    return own
