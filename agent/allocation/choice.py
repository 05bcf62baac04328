# SPDX-License-Identifier: Apache-2.0
"""The choice of GPUs for one request: where it is placed, beside what counts already.

Works on values: an allocation table, the GPUs as they are now, and a request. It records nothing. The GPUs that a
request names as advice are taken where they are a placement that fits; otherwise placement decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.allocation.request import AllocationRequest, ImpossibleError
from agent.inventory.holder import GpusNow
from gigaslice.core.allocation import host_memory, whole_gpus
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.model import CORES_PER_GPU, Infeasible, NodeState, Placement, Request, Share
from gigaslice.core.placement import Policy, place, place_waiting
from gigaslice.core.placement.own_gpus import apart_from_own, beside_own, on_same_gpus

__all__ = ["Choice", "GpuChooser"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The GPUs of a request. waiting: some of them have no room for it yet."""

    placement: Placement
    waiting: bool


class GpuChooser:
    """Chooses among the node's present GPUs by a placement policy."""

    def __init__(self, gpus: GpusNow, policy: Policy, slice_bytes: int) -> None:
        """Args: gpus: The GPUs. policy: How they are chosen. slice_bytes: Memory of one slice of a request."""
        self.policy = policy
        self._gpus = gpus
        self._slice_bytes = slice_bytes

    def node(self, table: AllocationTable, request: AllocationRequest) -> NodeState:
        """Returns the node as a request sees it: with its pod's GPUs, and lent memory or not."""
        inventory, memory = self._gpus.now, request.amount * self._slice_bytes
        host = request.options.oversubscribe
        gpus, taken = host_memory.view(table, inventory.gpus, request.pod, host=host, memory_bytes=memory)
        return NodeState.build(gpus, inventory.topology, taken)

    def choose(self, table: AllocationTable, request: AllocationRequest) -> Choice:
        """Chooses the GPUs of a request.

        Raises:
            ImpossibleError: This node can never serve it.
        """
        if request.whole:
            return self._choose_whole(table, request)
        node = self.node(table, request)
        if request.assigned is not None:
            return _executed(node, request.assigned, exclusive=request.options.exclusive)
        wanted = self.placement_request(node, table, request)
        if isinstance(wanted, Infeasible):
            raise ImpossibleError(wanted.detail)
        return self._choose_advised(node, wanted, request.advised)

    def placement_request(
        self, node: NodeState, table: AllocationTable, request: AllocationRequest
    ) -> Request | Infeasible:
        """Returns what is placed for a request, or why this node can never have it."""
        options = request.options
        allowed = options.allowed_gpus(node.gpus)
        if isinstance(allowed, Infeasible):
            return allowed
        only = allowed if len(allowed) < len(node.gpus) else frozenset[str]()
        wanted = options.request(request.amount, only)
        if options.same_gpu:
            together = self._together(node, table, wanted, request)
            if isinstance(together, Infeasible):
                return together
            wanted = together
        if options.exclusive:
            return self._exclusive(node, table, wanted, request)
        return wanted

    def on_held_gpus(
        self, table: AllocationTable, allocation: Allocation, request: AllocationRequest
    ) -> Placement | None:
        """Returns how a request can be met on the very GPUs of an allocation; None when it cannot.

        Args:
            table: The allocation table without the allocation.
            allocation: The allocation, whose GPUs the container runtime has been told.
            request: What its consumer asks for.
        """
        gpus = frozenset(allocation.quota())
        if request.assigned is not None:
            same = gpus == {share.gpu for share in request.assigned}
            return Placement(request.assigned) if same else None
        node = self.node(table, request)
        wanted = self.placement_request(node, table, request)
        if isinstance(wanted, Infeasible) or (wanted.only and not gpus <= wanted.only):
            return None
        divided = wanted.gpus or wanted.parts or wanted.whole_first
        count = wanted.gpus if divided else len(gpus)
        placed = place_waiting(node, replace(wanted, only=gpus, gpus=count), self.policy)
        if isinstance(placed, Infeasible) or frozenset(placed.placement.uuids) != gpus:
            return None
        return placed.placement

    def _choose_whole(self, table: AllocationTable, request: AllocationRequest) -> Choice:
        gpus = self._gpus.now.gpus
        assigned = None if request.assigned is None else [share.gpu for share in request.assigned]
        choice = whole_gpus.choose(table, gpus, request.amount, request.advised, assigned)
        if choice is None:
            raise ImpossibleError(
                f"{request.amount} whole GPUs asked for, and this node has {len(gpus)}; ask for fewer"
            )
        return Choice(Placement(tuple(Share(gpu.uuid, 1) for gpu in choice.gpus)), choice.waiting)

    def _choose_advised(self, node: NodeState, request: Request, advised: frozenset[str]) -> Choice:
        """Tried in this order: the advised GPUs, the GPUs of their NUMA node, all GPUs, and last those that lack the
        least, where the container waits. The first two never lead to more GPUs than there would be without them.
        """
        on_advised = self._place_on(node, advised, request)
        if on_advised is None or frozenset(on_advised.uuids) != advised:
            near = self._same_numa_node(advised)
            on_advised = self._place_on(node, near, request) if near else None
        divided = request.gpus or request.parts  # then their number is the same everywhere
        if on_advised is not None and (divided or len(on_advised.shares) == 1):
            return Choice(on_advised, waiting=False)
        placement = self._place_on(node, frozenset(), request)
        if (
            on_advised is not None
            and placement is not None
            and len(on_advised.shares) <= len(placement.shares)
        ):
            placement = on_advised
        if placement is not None:
            return Choice(placement, waiting=False)
        waiting = place_waiting(node, request, self.policy)
        if isinstance(waiting, Infeasible):
            raise ImpossibleError(waiting.detail)
        return Choice(waiting.placement, waiting=bool(waiting.missing))

    def _together(
        self, node: NodeState, table: AllocationTable, wanted: Request, request: AllocationRequest
    ) -> Request | Infeasible:
        """Restricts a request to the GPUs that its pod has already, or to those with room for all its containers."""
        wanted = replace(wanted, gpus=wanted.gpus if wanted.gpus or wanted.parts else 1)
        pod = table.of_pod(request.pod)
        if not pod:
            return on_same_gpus(node, wanted, max(request.amount, request.pod_slices), self.policy)
        own = frozenset(gpu for allocation in pod for gpu in allocation.quota())
        return beside_own(self._pod_alone(table, request), wanted, own, request.amount, self.policy)

    def _exclusive(
        self, node: NodeState, table: AllocationTable, wanted: Request, request: AllocationRequest
    ) -> Request | Infeasible:
        """Restricts an exclusive request to GPUs that its pod has alone, or to those that it can wait for."""
        own = {gpu for allocation in table.of_pod(request.pod) for gpu in allocation.quota()}
        if not own:
            return wanted
        for allocation in table.allocations:
            if not allocation.is_of(request.pod):
                own.difference_update(allocation.promised)
        only = wanted.only.intersection(own) if wanted.only else frozenset(own)
        beside = replace(wanted, exclusive=False, only=only)
        if only and isinstance(place(node, beside, self.policy), Placement):
            return beside
        return apart_from_own(self._pod_alone(table, request), wanted)

    def _pod_alone(self, table: AllocationTable, request: AllocationRequest) -> NodeState:
        """Returns the node as the request sees it, with those containers of its pod alone that run beside it."""
        staying = {
            allocation.id
            for allocation in table.of_pod(request.pod)
            if not all(consumer.init for consumer in allocation.consumers)
        }
        return self.node(table.only(lambda allocation: allocation.id in staying), request)

    def _place_on(self, node: NodeState, gpus: frozenset[str], request: Request) -> Placement | None:
        """Returns the placement on the given GPUs (empty: any) that the request allows."""
        only = gpus & request.only if gpus and request.only else gpus or request.only
        if gpus and not only:
            return None
        placed = place(node, replace(request, only=only), self.policy)
        return placed if isinstance(placed, Placement) else None

    def _same_numa_node(self, advised: frozenset[str]) -> frozenset[str]:
        """Returns the GPUs of the NUMA node that all advised GPUs share: the kubelet may have aligned CPUs with it."""
        gpus = self._gpus.now.gpus
        nodes = {gpu.numa_node for gpu in gpus if gpu.uuid in advised}
        if len(nodes) != 1 or None in nodes:
            return frozenset()
        return frozenset(gpu.uuid for gpu in gpus if gpu.numa_node in nodes)


def _executed(node: NodeState, shares: tuple[Share, ...], *, exclusive: bool) -> Choice:
    """Returns an assignment's own GPUs as a choice: whatever time can mend is waited for at the start."""
    usage = node.usage()
    waiting = False
    for share in shares:
        at = node.position(share.gpu)
        room = share.slices <= node.gpus[at].slices - usage.slices[at]
        alone = not (exclusive and usage.holders[at])
        compute = share.cores <= CORES_PER_GPU - usage.cores[at]
        waiting = waiting or not (room and alone and compute and node.gpus[at].healthy)
    return Choice(Placement(shares), waiting)
