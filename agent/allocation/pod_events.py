"""What a pod's events say of its allocations: what it got, what its annotations lack, and what it waits for.

Texts and where they are sent; nothing is decided here. Without access to the API server nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.allocation.assigned import NotExecutableError
from agent.allocation.choice import gpu_name
from agent.allocation.owner import Identification, Requester
from agent.allocation.service import AllocationService, to_correct
from agent.apiserver import Cluster
from agent.inventory.source import Inventory
from gigaslice import units
from gigaslice.allocation.table import Allocation
from gigaslice.model import Pod

__all__ = ["PodEvents", "remarks", "unaligned"]


class PodEvents:
    """Sends the events of allocations to their pods."""

    def __init__(self, service: AllocationService, cluster: Cluster) -> None:
        self._service = service
        self._cluster = cluster

    def allocated(self, identified: Identification | None, allocations: Sequence[Allocation]) -> None:
        """Sends what a container got, and what a person should know about its annotations."""
        requester = identified.requester if identified else None
        if requester is None:
            return
        for allocation in allocations:
            gpus = ", ".join(
                f"{units.format_bytes(size)} of {gpu}" for gpu, size in allocation.quota().items()
            )
            text = f"{gpus} for container {allocation.name}"
            self._event(requester, "Normal", "GPUAllocated", text)
            if away := unaligned(allocation, self._service.inventory):
                self._event(requester, "Normal", "GPUNotAligned", away)
        found = remarks(self._service, requester, next(iter(allocations), None))
        if found:  # in one event: a second of the same reason would only be counted
            self._event(requester, "Warning", "InvalidAnnotation", "; ".join(found))

    def impossible(self, identified: Identification | None, error: Exception) -> None:
        """Sends why this node can never serve the request, or cannot execute its assignment."""
        if identified is None or identified.requester is None:
            return
        if isinstance(error, NotExecutableError):
            self.not_executable(identified.requester, str(error))
        else:
            self._event(identified.requester, "Warning", "GPURequestInfeasible", str(error))

    def not_executable(self, requester: Requester, text: str) -> None:
        """Sends why the assignment of a pod cannot be executed."""
        self._event(requester, "Warning", "AssignmentNotExecutable", text)

    def not_recorded(self, identified: Identification | None, error: Exception) -> None:
        """Sends why the allocation could not be recorded."""
        if identified is not None and identified.requester is not None:
            text = f"the node cannot record an allocation: {error}"
            self._event(identified.requester, "Warning", "AllocationNotRecorded", text)

    def waiting(self, allocation: Allocation, text: str, *, dataset: bool = False) -> None:
        """Sends what the start of an allocation's container waits for: its GPUs, or a DATASET that it mounts."""
        ref = allocation.ref
        pod = self._cluster.pod(ref.namespace, ref.pod) if ref else None
        if ref is None or pod is None:
            return
        if dataset:  # nothing is wrong: the images are pulled while the data are fetched
            self._cluster.event(pod, "Normal", "WaitingForDataset", text, ref.container)
        else:
            self._cluster.event(pod, "Warning", "WaitingForGPU", text, ref.container)

    def evicting(self, pod: Pod, allocation: Allocation, reason: str) -> None:
        """Sends why a pod is about to be evicted."""
        container = allocation.ref.container if allocation.ref else ""
        self._cluster.event(pod, "Warning", "EvictionPending", reason, container)

    def _event(self, requester: Requester, kind: str, reason: str, text: str) -> None:
        self._cluster.event(requester.pod, kind, reason, text, requester.container.name)


def remarks(
    service: AllocationService, requester: Requester, allocation: Allocation | None = None
) -> tuple[str, ...]:
    """Returns what a person should know about a container's annotations.

    Mistakes come as one sentence; without mistakes, what has no effect on the allocation is named.
    """
    options = service.chooser.options(requester)
    mistakes = options.mistakes + options.contradictions(
        requester.container.requests.get(service.resource, 1)
    )
    if mistakes:
        return (to_correct(mistakes), *options.notes)
    given = [len(hold.device_ids) for hold in allocation.holds] if allocation else []
    lent = any(gpu.host_bytes for gpu in service.inventory.gpus)
    return (*options.notes, *options.idle(given, lent))


def unaligned(allocation: Allocation, inventory: Inventory) -> str | None:
    """Returns a sentence where the kubelet chose devices of one NUMA node and they are served from another.

    None where they agree, where the node of a GPU is not known, and where the devices are of several nodes: then the
    kubelet has aligned nothing.
    """
    node = {gpu.uuid: gpu.numa_node for gpu in inventory.gpus}
    named = {node.get(gpu_name(device_id)) for device_id in allocation.device_ids}
    away = [hold.gpu for hold in allocation.holds if node.get(hold.gpu) not in named]
    if len(named) != 1 or None in named or not away or any(node.get(gpu) is None for gpu in away):
        return None
    gpus = ", ".join(f"{gpu} is on NUMA node {node[gpu]}" for gpu in away)
    return (
        f"{gpus}, and the kubelet chose devices of node {named.pop()}: CPUs that it has aligned with them are not "
        "near this GPU; annotations ask for it, or the near ones have no room"
    )
