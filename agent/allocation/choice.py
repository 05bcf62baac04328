"""The choice of GPUs for one request: what its annotations ask for, and where it is placed.

Works on values: an allocation table, the GPUs as they are now, and a requester. It records nothing. The device IDs of a
request are advice. Where the GPUs that they are named after are a placement that fits, it is taken; any other set is
counted, and placement decides. Mistakes in annotations are left out here and reported with the result, since a person
can correct them while the pod waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.allocation.assigned import assigned_to
from agent.allocation.owner import ImpossibleError, Requester
from agent.inventory.holder import GpusNow
from gigaslice.allocation import host_memory
from gigaslice.allocation.table import Allocation, AllocationTable
from gigaslice.errors import DeviceIdError
from gigaslice.model import (
    CORES_PER_GPU,
    AnnotationRights,
    Infeasible,
    NodeState,
    Placement,
    Request,
    RequestOptions,
    Share,
    SliceUnit,
    parse_device_id,
    parse_options,
)
from gigaslice.placement import Policy, place, place_waiting
from gigaslice.placement.own_gpus import apart_from_own, beside_own, on_same_gpus
from gigaslice.text import plural

__all__ = ["Choice", "Demand", "GpuChooser", "ImpossibleError", "gpu_name"]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a container asks for, ready for placement.

    Attributes:
        request: What is placed.
        options: What its annotations ask for.
        mistakes: Annotations that make no sense and were left out.
        assigned: The shares that its assignment names, in the order of the GPUs; then nothing is placed.
    """

    request: Request
    options: RequestOptions
    mistakes: tuple[str, ...] = ()
    assigned: tuple[Share, ...] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The GPUs of a request. waiting: some of them have no room for it yet."""

    placement: Placement
    waiting: bool


class GpuChooser:
    """Chooses among the node's present GPUs by a placement policy."""

    def __init__(
        self,
        gpus: GpusNow,
        policy: Policy,
        resource: str,
        unit: SliceUnit,
        *,
        whole_resource: str = "",
        slice_resources: tuple[str, ...] = (),
        rights: AnnotationRights = AnnotationRights.REFUSE,
    ) -> None:
        self.resource = resource
        self.whole_resource = whole_resource
        self.slice_resources = slice_resources or (resource,)
        self.policy = policy
        self._gpus = gpus
        self._unit = unit
        self._rights = rights
        self._parsed: tuple[Requester, RequestOptions] | None = None

    def options(self, requester: Requester) -> RequestOptions:
        """Returns what the annotations of a container's pod ask for."""
        known = self._parsed
        if known is None or known[0] is not requester:  # one admission needs them several times
            annotations, container = requester.pod.annotations, requester.container.name
            options = parse_options(annotations, container, self._unit, self._rights)
            known = self._parsed = (requester, options)
        return known[1]

    def node(self, table: AllocationTable, requester: Requester | None, slices: int) -> NodeState:
        """Returns the node as the requester of so many slices sees it: with its pod's GPUs, and lent memory or not."""
        host = requester is not None and self.options(requester).oversubscribe
        pod = requester.pod.uid if requester else ""
        inventory, memory = self._gpus.now, slices * self._unit.size
        gpus, taken = host_memory.view(table, inventory.gpus, pod, host=host, memory_bytes=memory)
        return NodeState.build(gpus, inventory.topology, taken)

    def assigned(self, requester: Requester | None, slices: int) -> tuple[Share, ...] | None:
        """Returns the shares that the requester of so many slices was assigned; None where it was not.

        Raises:
            NotExecutableError: The assignment of its pod cannot be executed here, or is missing.
        """
        if requester is None:
            return None
        asked = [one for one in self.slice_resources if requester.container.requests.get(one)]
        if len(asked) > 1:
            raise ImpossibleError(
                f"container {requester.container.name} asks for {' and '.join(asked)}; a container has slices of one "
                "type of GPU: write one of them"
            )
        options, gpus = self.options(requester), self._gpus.now.gpus
        found = assigned_to(
            requester,
            gpus,
            slices=slices,
            whole=requester.container.requests.get(self.whole_resource, 0),
            most={gpu.uuid: gpu.slices if options.oversubscribe else gpu.own_slices for gpu in gpus},
        )
        if found is None:
            return None
        if not options.exclusive:
            return found.shares
        # all of the compute of a GPU that no other pod has limits nothing, where it stands beside what is asked for
        return tuple(
            replace(share, cores=options.cores) if share.cores == CORES_PER_GPU else share
            for share in found.shares
        )

    def assigned_whole(self, requester: Requester, count: int) -> tuple[str, ...] | None:
        """Returns the whole GPUs that the requester of so many was assigned; otherwise as `assigned`."""
        slices = sum(requester.container.requests.get(one, 0) for one in self.slice_resources)
        found = assigned_to(requester, self._gpus.now.gpus, slices=slices, whole=count)
        return None if found is None else found.whole

    def demand(
        self, node: NodeState, table: AllocationTable, requester: Requester | None, slices: int
    ) -> Demand | Infeasible:
        """Returns what is asked for, or why this node can never have it.

        Raises:
            NotExecutableError: The assignment of its pod cannot be executed here, or is missing.
        """
        if requester is None:
            return Demand(Request(total=slices), RequestOptions())
        options = self.options(requester)
        mistakes = options.mistakes
        if odd := options.contradictions(slices):
            mistakes += odd
            options = replace(options, gpus=None, parts=(), max_slices=None)
        assigned = self.assigned(requester, slices)
        if assigned is not None:
            return Demand(Request(total=slices), options, mistakes, assigned)
        allowed = options.allowed_gpus(node.gpus)
        if isinstance(allowed, Infeasible):
            return allowed
        only = allowed if len(allowed) < len(node.gpus) else frozenset[str]()
        request = options.request(slices, only)
        if options.same_gpu:
            together = self._together(node, table, request, requester, slices)
            if isinstance(together, Infeasible):
                return together
            request = together
        if options.exclusive:
            alone = self._exclusive(node, table, request, requester, slices)
            if isinstance(alone, Infeasible):
                return alone
            request = alone
        return Demand(request, options, mistakes)

    def execute(self, node: NodeState, shares: tuple[Share, ...], *, exclusive: bool) -> Choice:
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

    def choose(self, node: NodeState, device_ids: frozenset[str], request: Request) -> Choice:
        """Chooses the GPUs of a request.

        Tried in this order: the GPUs that the device IDs name, the GPUs of their NUMA node, all GPUs, and last those
        that lack the least, where the container waits. The first two are advice, and never lead to more GPUs than there
        would be without it.

        Raises:
            ImpossibleError: This node can never serve it.
        """
        named = frozenset(uuid for device_id in device_ids if (uuid := gpu_name(device_id)))
        advised = self._place_on(node, named, request)
        if advised is None or frozenset(advised.uuids) != named:
            near = self._same_numa_node(named)
            advised = self._place_on(node, near, request) if near else None
        divided = request.gpus or request.parts  # then their number is the same everywhere
        if advised is not None and (divided or len(advised.shares) == 1):
            return Choice(advised, waiting=False)
        placement = self._place_on(node, frozenset(), request)
        if advised is not None and placement is not None and len(advised.shares) <= len(placement.shares):
            placement = advised
        if placement is not None:
            return Choice(placement, waiting=False)
        waiting = place_waiting(node, request, self.policy)
        if isinstance(waiting, Infeasible):
            raise ImpossibleError(f"{waiting.detail} ({plural(len(device_ids), 'slice')} in all)")
        return Choice(waiting.placement, waiting=bool(waiting.missing))

    def on_held_gpus(
        self, table: AllocationTable, allocation: Allocation, requester: Requester
    ) -> Placement | None:
        """Returns how a requester's options can be met on the very GPUs of its allocation; None when they cannot.

        Args:
            table: The allocation table without the allocation.
            allocation: The allocation, whose GPUs the container runtime has been told.
            requester: The container that it is for.

        Raises:
            NotExecutableError: The assignment of its pod cannot be executed here, or is missing.
        """
        slices, held = len(allocation.device_ids), frozenset(allocation.quota())
        node = self.node(table, requester, slices)
        demand = self.demand(node, table, requester, slices)
        if isinstance(demand, Demand) and demand.assigned is not None:
            return Placement(demand.assigned) if held == {one.gpu for one in demand.assigned} else None
        if isinstance(demand, Infeasible) or (demand.request.only and not held <= demand.request.only):
            return None
        divided = demand.request.gpus or demand.request.parts or demand.request.whole_first
        gpus = demand.request.gpus if divided else len(held)
        found = place_waiting(node, replace(demand.request, only=held, gpus=gpus), self.policy)
        if isinstance(found, Infeasible) or frozenset(found.placement.uuids) != held:
            return None
        return found.placement

    def _together(
        self, node: NodeState, table: AllocationTable, request: Request, requester: Requester, slices: int
    ) -> Request | Infeasible:
        """Restricts a request to the GPUs that its pod has already, or to those with room for all its containers."""
        request = replace(request, gpus=request.gpus if request.gpus or request.parts else 1)
        pod = table.of_pod(requester.pod.uid)
        if not pod:
            most = max(slices, requester.pod.most_at_once(self.resource))
            return on_same_gpus(node, request, most, self.policy)
        own = frozenset(gpu for allocation in pod for gpu in allocation.quota())
        return beside_own(self._pod_alone(table, requester, slices), request, own, slices, self.policy)

    def _exclusive(
        self, node: NodeState, table: AllocationTable, request: Request, requester: Requester, slices: int
    ) -> Request | Infeasible:
        """Restricts an exclusive request to GPUs that its pod has alone, or to those that it can wait for."""
        own = {gpu for allocation in table.of_pod(requester.pod.uid) for gpu in allocation.quota()}
        if not own:
            return request
        for allocation in table.allocations:
            if not allocation.is_of(requester.pod.uid):
                own.difference_update(allocation.promised)
        only = request.only.intersection(own) if request.only else frozenset(own)
        beside = replace(request, exclusive=False, only=only)
        if only and isinstance(place(node, beside, self.policy), Placement):
            return beside
        return apart_from_own(self._pod_alone(table, requester, slices), request)

    def _pod_alone(self, table: AllocationTable, requester: Requester, slices: int) -> NodeState:
        """Returns the node as the requester sees it, with those containers of its pod alone that run beside it."""
        pod = table.of_pod(requester.pod.uid)
        staying = {allocation.id for allocation in pod if not (allocation.owner and allocation.owner.init)}
        others = [allocation.id for allocation in table.allocations if allocation.id not in staying]
        return self.node(table.without(others), requester, slices)

    def _place_on(self, node: NodeState, gpus: frozenset[str], request: Request) -> Placement | None:
        """Returns the placement on the given GPUs (empty: any) that the request allows."""
        only = gpus & request.only if gpus and request.only else gpus or request.only
        if gpus and not only:
            return None
        placed = place(node, replace(request, only=only), self.policy)
        return placed if isinstance(placed, Placement) else None

    def _same_numa_node(self, named: frozenset[str]) -> frozenset[str]:
        """Returns the GPUs of the NUMA node that all named GPUs share: the kubelet may have aligned CPUs with it."""
        gpus = self._gpus.now.gpus
        nodes = {gpu.numa_node for gpu in gpus if gpu.uuid in named}
        if len(nodes) != 1 or None in nodes:
            return frozenset()
        return frozenset(gpu.uuid for gpu in gpus if gpu.numa_node in nodes)


def gpu_name(device_id: str) -> str:
    """Returns the UUID of the GPU that a device ID is named after; empty where it is none of this agent's."""
    try:
        return parse_device_id(device_id).uuid
    except DeviceIdError:
        return ""
