# SPDX-License-Identifier: Apache-2.0
"""What a pod's events say of its allocations: what it got, what its annotations lack, and what it waits for.

Texts and where they are sent; nothing is decided here. Without access to the API server nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.allocation.request import NotExecutableError
from agent.apiserver import Cluster
from agent.apiserver.consumer_pods import ConsumerPods
from agent.deviceplugin.container_requests import to_correct
from agent.deviceplugin.device_allocator import DeviceAllocator
from agent.deviceplugin.requester import ContainerMatch, Requester
from agent.inventory.source import Inventory
from gigaslice.core import units
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.deviceplugin.device_id import gpu_name
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.model import Pod

__all__ = ["PodEvents", "remarks", "unaligned"]


class PodEvents:
    """Sends the events of allocations to their pods."""

    def __init__(self, allocator: DeviceAllocator, cluster: Cluster) -> None:
        self._allocator = allocator
        self._cluster = cluster
        self._pods = ConsumerPods(cluster)

    def allocated(self, match: ContainerMatch | None, allocations: Sequence[Allocation]) -> None:
        """Sends what a container got, and what a person should know about its annotations."""
        requester = match.requester if match else None
        if requester is None:
            return
        for allocation in allocations:
            gpus = ", ".join(
                f"{units.format_bytes(size)} of {gpu}" for gpu, size in allocation.quota().items()
            )
            text = f"{gpus} for container {allocation.name}"
            self._event(requester, "Normal", "GPUAllocated", text)
            if away := unaligned(allocation, self._allocator.service.inventory):
                self._event(requester, "Normal", "GPUNotAligned", away)
        sentences = remarks(self._allocator, requester, next(iter(allocations), None))
        if sentences:  # in one event: a second of the same reason would only be counted
            self._event(requester, "Warning", "InvalidAnnotation", "; ".join(sentences))

    def impossible(self, match: ContainerMatch | None, error: Exception) -> None:
        """Sends why this node can never serve the request, or cannot execute its assignment."""
        if match is None or match.requester is None:
            return
        if isinstance(error, NotExecutableError):
            self.not_executable(match.requester, str(error))
        else:
            self._event(match.requester, "Warning", "GPURequestInfeasible", str(error))

    def not_executable(self, requester: Requester, text: str) -> None:
        """Sends why the assignment of a pod cannot be executed."""
        self._event(requester, "Warning", "AssignmentNotExecutable", text)

    def not_recorded(self, match: ContainerMatch | None, error: Exception) -> None:
        """Sends why the allocation could not be recorded."""
        if match is not None and match.requester is not None:
            text = f"the node cannot record an allocation: {error}"
            self._event(match.requester, "Warning", "AllocationNotRecorded", text)

    def waiting(self, allocation: Allocation, text: str, *, dataset: bool = False) -> None:
        """Sends what the start of an allocation's container waits for: its GPUs, or a DATASET that it mounts."""
        if dataset:  # nothing is wrong: the images are pulled while the data are fetched
            self._pods.event(allocation, "Normal", "WaitingForDataset", text)
        else:
            self._pods.event(allocation, "Warning", "WaitingForGPU", text)

    def evicting(self, pod: Pod, allocation: Allocation, reason: str) -> None:
        """Sends why a pod is about to be evicted."""
        ref = plugin(allocation).ref
        self._cluster.event(pod, "Warning", "EvictionPending", reason, ref.container if ref else "")

    def _event(self, requester: Requester, kind: str, reason: str, text: str) -> None:
        self._cluster.event(requester.pod, kind, reason, text, requester.container.name)


def remarks(
    allocator: DeviceAllocator, requester: Requester, allocation: Allocation | None = None
) -> tuple[str, ...]:
    """Returns what a person should know about a container's annotations.

    Mistakes come as one sentence; without mistakes, what has no effect on the allocation is named.
    """
    container_requests = allocator.container_requests
    options = container_requests.options(requester)
    mistakes = container_requests.mistakes(requester, requester.container.requests.get(allocator.resource, 1))
    if mistakes:
        return (to_correct(mistakes), *options.notes)
    given = [hold.memory_bytes // hold.slice_bytes for hold in allocation.holds] if allocation else []
    lent = any(gpu.host_bytes for gpu in allocator.service.inventory.gpus)
    return (*options.notes, *options.idle(given, lent))


def unaligned(allocation: Allocation, inventory: Inventory) -> str | None:
    """Returns a sentence where the kubelet chose devices of one NUMA node and they are served from another.

    None where they agree, where the node of a GPU is not known, and where the devices are of several nodes: then the
    kubelet has aligned nothing.
    """
    node = {gpu.uuid: gpu.numa_node for gpu in inventory.gpus}
    named = {node.get(gpu_name(device_id)) for device_id in plugin(allocation).device_ids}
    away = [hold.gpu for hold in allocation.holds if node.get(hold.gpu) not in named]
    if len(named) != 1 or None in named or not away or any(node.get(gpu) is None for gpu in away):
        return None
    gpus = ", ".join(f"{gpu} is on NUMA node {node[gpu]}" for gpu in away)
    return (
        f"{gpus}, and the kubelet chose devices of node {named.pop()}: CPUs that it has aligned with them are not "
        "near this GPU; annotations ask for it, or the near ones have no room"
    )
