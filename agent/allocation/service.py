"""What the device plugin answers, without gRPC: which device IDs to prefer, where a container goes, whether it may
start.

The kubelet's choice of device IDs is advice. Device IDs whose names are a placement that fits are followed; any other
set is counted, and placement decides. What time can mend is never refused here but at the start gate: a refused
allocation fails its pod for good. That goes for annotations too, which a person can change while the pod waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.allocation.owner import Identification, Lifecycle, Requester, owner_of
from agent.inventory.lending_source import host_memory_left
from agent.inventory.source import Inventory
from agent.persistence.store import Store
from agent.providers.provider import RefusedError
from gigaslice import units
from gigaslice.allocation import host_memory, start_decision
from gigaslice.allocation.reconcile import Answered, from_answer
from gigaslice.allocation.table import (
    Allocation,
    AllocationOptions,
    AllocationTable,
    ContainerRef,
    assign_device_ids,
)
from gigaslice.errors import DeviceIdError
from gigaslice.model import (
    Infeasible,
    NodeState,
    Placement,
    Pod,
    Request,
    RequestOptions,
    SliceUnit,
    parse_device_id,
    parse_options,
)
from gigaslice.placement import Policy, place, place_waiting, preferred_device_ids
from gigaslice.placement.same_gpu import beside_own, on_same_gpus
from gigaslice.runtime.logs import get_logger

__all__ = ["AllocationService", "ImpossibleError", "Settled"]

_RESOURCE = "gigaslice.io/vgpu-memory"
_UNKNOWN = Lifecycle()
_ONE_POD_SECONDS = 30.0  # far more than a kubelet ever takes between two containers of a pod


class ImpossibleError(RefusedError):
    """A request that this node can never serve; the text reaches the pod's event."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of an allocation that was undecided. reason: why it cannot go on, None when it can. remake: only a
    new pod can get what is asked for.
    """

    reason: str | None = None
    remake: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a container asks for, ready for placement. mistakes: what of it makes no sense and was left out."""

    request: Request
    options: RequestOptions
    mistakes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Chosen:
    placement: Placement
    waiting: bool


class AllocationService:
    """Decides over STORE's allocation table and the present inventory.

    NOW gives Unix time in seconds, NEW_ID 32 hex digits. RESOURCE is what pods ask for, in slices of SLICE_BYTES.
    HOST_LEFT gives the bytes of memory that the host has left, None where it does not say.
    """

    def __init__(
        self,
        store: Store,
        inventory: Inventory,
        policy: Policy,
        now: Callable[[], float],
        new_id: Callable[[], str],
        *,
        resource: str = _RESOURCE,
        slice_bytes: int = 1 << 30,
        host_left: Callable[[], int | None] = host_memory_left,
    ) -> None:
        self.inventory = inventory
        self.resource = resource
        store.gpu_bytes = lambda: {gpu.uuid: gpu.bytes_of(gpu.slices) for gpu in self.inventory.gpus}
        self._store = store
        self._policy = policy
        self._now = now
        self._new_id = new_id
        self._unit = SliceUnit(slice_bytes, units.parse_bytes)
        self._host_left = host_left
        self._parsed: tuple[Requester, RequestOptions] | None = None
        self._log = get_logger("allocator")

    def prefer(
        self,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        requester: Requester | None = None,
        lifecycle: Lifecycle = _UNKNOWN,
    ) -> tuple[str, ...]:
        """SIZE device IDs named after the GPUs that placement would choose; fewer or none when in doubt.

        The call also tells which device IDs the kubelet holds free. ENDED tells which of their holders are gone; the
        others are forgotten by the kubelet, and count.
        """
        free = frozenset(available) - frozenset(must_include)
        table = self._store.table.counted_out(lifecycle.over).given_back(free, lifecycle.over)
        self._store.remember(table)
        uid = requester.pod.uid if requester else ""
        after, _ = self._taken_over(table, must_include, uid, lifecycle)
        node = self._node(after, uid, self._wants_host(requester), max(1, size))
        asked = self._asked(node, after, requester, max(1, size))
        if isinstance(asked, Infeasible):
            return ()
        return preferred_device_ids(
            node, available, must_include, size, request=asked.request, policy=self._policy
        )

    def allocate(
        self,
        requests: Sequence[Sequence[str]],
        identified: Identification | None = None,
        lifecycle: Lifecycle = _UNKNOWN,
    ) -> tuple[Allocation, ...]:
        """One allocation per request, recorded and with its directory made. All or none.

        VERDICT says for whom the only request is; None where nobody can know. ENDED: who is gone. Raises
        ImpossibleError for what can never fit, StorageError when nothing can be recorded.
        """
        wanted = frozenset(device_id for device_ids in requests for device_id in device_ids)
        table = self._store.table.counted_out(lifecycle.over - self._lenders(wanted, identified, lifecycle))
        fresh: list[Allocation] = []
        for device_ids in requests:
            table, allocation = self._add(table, frozenset(device_ids), identified, lifecycle)
            fresh.append(allocation)
        self._store.commit(table, fresh)
        for allocation in fresh:
            self._log.info(
                "allocated",
                allocation=allocation.id,
                container=allocation.name,
                slices=len(allocation.device_ids),
                bytes=allocation.quota(),
                supersedes=list(allocation.supersedes),
                waiting=allocation.waiting,
                undecided=allocation.undecided,
            )
        return tuple(fresh)

    def find(self, device_ids: Sequence[str]) -> tuple[Allocation, ...]:
        """The allocations that the kubelet can mean by DEVICE_IDS, newest first."""
        return self._store.table.all_of_device_ids(frozenset(device_ids))

    def may_start(self, allocation: Allocation) -> str | None:
        """None when the allocation's GPUs have room for it, else a sentence that says what is waited for.

        Reads the ledgers of its neighbours. A waiting allocation that passes waits no more.
        """
        table = self._store.table
        used = self._present(table, allocation)
        if lack := self.host_lacks(allocation):
            return f"waiting for {lack}; starts by itself once there is enough"
        node = NodeState.build(self.inventory.gpus, self.inventory.topology)
        for uuid in () if allocation.waiting else self.inventory.cordoned:
            node = node.with_health(uuid, True)  # a container that was there before the cordon may restart
        missing = start_decision.shortfall(table, allocation, node, used)
        if missing:
            return start_decision.describe(missing, table, allocation, used, self.inventory.unhealthy)
        if allocation.waiting:
            self._store.update(table.replaced([replace(allocation, waiting=False)]))
        return None

    def age(self, allocation: Allocation) -> float:
        """Seconds since ALLOCATION was made; infinite where that is in the future: the machine's time was set back."""
        since = self._now() - allocation.created
        return since if since >= 0 else math.inf

    def remarks(self, requester: Requester, allocation: Allocation | None = None) -> tuple[str, ...]:
        """What people should know about its annotations: mistakes in one sentence, and what has no effect on
        ALLOCATION.
        """
        options = self._options(requester)
        mistakes = options.mistakes + options.contradictions(
            requester.container.requests.get(self.resource, 1)
        )
        if mistakes:
            return (_to_correct(mistakes), *options.notes)
        given = [len(hold.device_ids) for hold in allocation.holds] if allocation else []
        return (*options.notes, *options.idle(given, any(gpu.host_bytes for gpu in self.inventory.gpus)))

    def unaligned(self, allocation: Allocation) -> str | None:
        """What people should know when the kubelet chose devices of one NUMA node and they are served from another.

        None where they agree, where a GPU's node is not known, and where the devices are of several nodes: then the
        kubelet has aligned nothing.
        """
        node = {gpu.uuid: gpu.numa_node for gpu in self.inventory.gpus}
        named = {node.get(_gpu_name(device_id)) for device_id in allocation.device_ids}
        away = [hold.gpu for hold in allocation.holds if node.get(hold.gpu) not in named]
        if len(named) != 1 or None in named or not away or any(node.get(gpu) is None for gpu in away):
            return None
        gpus = ", ".join(f"{gpu} is on NUMA node {node[gpu]}" for gpu in away)
        return (
            f"{gpus}, and the kubelet chose devices of node {named.pop()}: CPUs that it has aligned with them are not "
            "near this GPU; annotations ask for it, or the near ones have no room"
        )

    def settle(self, allocation: Allocation, requester: Requester | None) -> Settled:
        """Looks at an undecided allocation again, now that ADMITTED is whom it is for; None: nobody will ever know.

        Its GPUs stay what they are, since the runtime has been told; all else is brought into agreement with the
        options.
        """
        table = self._store.table
        if requester is None:
            self._store.update(table.replaced([replace(allocation, undecided=False)]))
            return Settled()
        options = self._options(requester)
        mistakes = options.mistakes + options.contradictions(len(allocation.device_ids))
        if mistakes:
            return Settled(_to_correct(mistakes))
        others = table.without([allocation.id])
        node = self._node(others, requester.pod.uid, options.oversubscribe, len(allocation.device_ids))
        placement = self._as_wished(node, others, allocation, requester)
        if placement is None:
            return Settled(
                "its GPUs were chosen before its annotations could be read or made sense, and these ask for others; "
                "delete the pod, so that it is allocated again",
                remake=True,
            )
        changed = replace(
            allocation,
            owner=requester.owner,
            policy=AllocationOptions.of(options),
            holds=assign_device_ids(allocation.device_ids, placement, self.inventory.gpus),
            undecided=False,
        )
        self._store.remake(host_memory.split(others, changed, self.inventory.gpus))
        return Settled()

    def restore(self, answer: Answered, pods: Mapping[tuple[str, str], Pod]) -> bool:
        """Takes up the allocation that ANSWER is of, which the allocation table has lost, under its old id and with its
        old GPUs.

        PODS: those of this node, as far as known. False where the answer does not say which GPU has how much.
        """
        pod = next((one for one in pods.values() if one.uid == answer.pod), None)
        ref = ContainerRef(pod.namespace, pod.name, answer.container) if pod else None
        gpus = self.inventory.gpus
        allocation = from_answer(answer, ref, gpus, self._store.library, round(self._now(), 3))
        if allocation is None:
            return False
        self._store.restore(allocation)
        return True

    def settle_known(self, allocation: Allocation, lookup: Callable[[str, str], Pod | None]) -> None:
        """Brings an allocation that was made up for a running container into agreement with its pod, where that is
        known.
        """
        if allocation.undecided and not allocation.foreign:
            requester = owner_of(allocation, lookup, self._store.table, self.resource)
            if requester is not None:
                self.settle(allocation, requester)

    def _lenders(
        self, device_ids: frozenset[str], identified: Identification | None, lifecycle: Lifecycle
    ) -> frozenset[str]:
        """Those who have DEVICE_IDS and may be init containers of the pod that gets them: they are never listed."""
        requester = identified.requester if identified else None
        since = self._now() - _ONE_POD_SECONDS
        return self._store.table.lenders(
            device_ids, requester.pod.uid if requester else "", lifecycle.started, since
        )

    def _taken_over(
        self, table: AllocationTable, device_ids: Iterable[str], uid: str, lifecycle: Lifecycle
    ) -> tuple[AllocationTable, tuple[str, ...]]:
        since = self._now() - _ONE_POD_SECONDS
        return table.taken_over(
            device_ids, pod=uid, over=lifecycle.over, started=lifecycle.started, since=since
        )

    def _add(
        self,
        table: AllocationTable,
        device_ids: frozenset[str],
        identified: Identification | None,
        lifecycle: Lifecycle,
    ) -> tuple[AllocationTable, Allocation]:
        if not device_ids:
            raise ImpossibleError(
                "the kubelet asked for a container without devices; report this with its version"
            )
        requester = identified.requester if identified else None
        uid = requester.pod.uid if requester else ""
        after, superseded = self._taken_over(table, device_ids, uid, lifecycle)
        host = self._wants_host(requester)
        node = self._node(after, uid, host, len(device_ids))
        asked = self._asked(node, after, requester, len(device_ids))
        if isinstance(asked, Infeasible):
            raise ImpossibleError(f"{asked.detail} ({len(device_ids)} slices in all)")
        chosen = self._choose(node, device_ids, asked.request)
        suspects = (str(requester.pod),) if requester else (identified.possible if identified else ())
        allocation = Allocation(
            id=self._new_id(),
            number=after.next_number,
            created=round(self._now(), 3),
            holds=assign_device_ids(device_ids, chosen.placement, self.inventory.gpus),
            library=self._store.library,
            supersedes=superseded,
            waiting=chosen.waiting,
            owner=requester.owner if requester else None,
            suspects=suspects or None,
            policy=AllocationOptions.of(asked.options),
            undecided=bool(asked.mistakes) or (identified is not None and requester is None),
        )
        allocation = host_memory.split(after, allocation, self.inventory.gpus)
        return after.with_allocation(allocation), allocation

    def _wants_host(self, requester: Requester | None) -> bool:
        return requester is not None and self._options(requester).oversubscribe

    def host_lacks(self, allocation: Allocation) -> str | None:
        """What the host's memory lacks for ALLOCATION to start, or to have its quota; None when nothing does."""
        table = self._store.table
        lent = {gpu.uuid for gpu in self.inventory.gpus if gpu.host_bytes}
        if not lent.intersection(allocation.promised):
            return None
        used = {
            other.id: self._store.reading(other.id).present()
            for other in table.allocations
            if lent.intersection(other.quota())
        }
        need = host_memory.host_need(table, allocation, used, self.inventory.gpus)
        if need == 0:
            return None
        left = self._host_left()
        if left is None:
            return "/proc/meminfo of the host, which does not say how much memory is left"
        if need <= left:
            return None
        have = f"{units.format_bytes(need)} of host memory, of which {units.format_bytes(left)} are left"
        return f"{have}: what all containers were promised beyond the GPUs' own memory and do not use yet"

    def _options(self, requester: Requester) -> RequestOptions:
        known = self._parsed
        if known is None or known[0] is not requester:  # one admission asks several times
            options = parse_options(requester.pod.annotations, requester.container.name, self._unit)
            known = self._parsed = (requester, options)
        return known[1]

    def _asked(
        self, node: NodeState, table: AllocationTable, requester: Requester | None, slices: int
    ) -> _Asked | Infeasible:
        """What is asked for, or why this node can never have it."""
        if requester is None:
            return _Asked(Request(total=slices), RequestOptions())
        options = self._options(requester)
        mistakes = options.mistakes
        if odd := options.contradictions(slices):
            mistakes += odd
            options = replace(options, gpus=None, parts=(), max_slices=None)
        allowed = options.allowed_gpus(node.gpus)
        if isinstance(allowed, Infeasible):
            return allowed
        only = allowed if len(allowed) < len(node.gpus) else frozenset[str]()
        request = options.request(slices, only)
        own = frozenset(gpu for allocation in table.of_pod(requester.pod.uid) for gpu in allocation.quota())
        if options.same_gpu:
            together = self._together(node, table, request, requester, slices)
            if isinstance(together, Infeasible):
                return together
            request = together
        if options.exclusive and own:
            beside = replace(request, exclusive=False, only=own & only if only else own)
            if beside.only and isinstance(place(node, beside, self._policy), Placement):
                request = beside
        return _Asked(request, options, mistakes)

    def _together(
        self, node: NodeState, table: AllocationTable, request: Request, requester: Requester, slices: int
    ) -> Request | Infeasible:
        """REQUEST on the GPUs that the pod has already, or on those that have room for all its containers."""
        request = replace(request, gpus=request.gpus if request.gpus or request.parts else 1)
        pod = table.of_pod(requester.pod.uid)
        if not pod:
            most = max(slices, requester.pod.most_at_once(self.resource))
            return on_same_gpus(node, request, most, self._policy)
        staying = {allocation.id for allocation in pod if not (allocation.owner and allocation.owner.init)}
        alone = self._node(
            table.without(
                [allocation.id for allocation in table.allocations if allocation.id not in staying]
            ),
            requester.pod.uid,
            self._wants_host(requester),
            slices,
        )
        own = frozenset(gpu for allocation in pod for gpu in allocation.quota())
        return beside_own(alone, request, own, slices, self._policy)

    def _choose(self, node: NodeState, device_ids: frozenset[str], request: Request) -> _Chosen:
        named = frozenset(uuid for device_id in device_ids if (uuid := _gpu_name(device_id)))
        followed = self._place_on(node, named, request)
        if isinstance(followed, Placement) and frozenset(followed.uuids) == named:
            return _Chosen(followed, waiting=False)
        for gpus in (self._same_numa_node(named), frozenset[str]()):
            placement = self._place_on(node, gpus, request)
            if isinstance(placement, Placement):
                return _Chosen(placement, waiting=False)
        waiting = place_waiting(node, request, self._policy)
        if isinstance(waiting, Infeasible):
            raise ImpossibleError(f"{waiting.detail} ({len(device_ids)} slices in all)")
        return _Chosen(waiting.placement, waiting=bool(waiting.missing))

    def _place_on(self, node: NodeState, gpus: frozenset[str], request: Request) -> Placement | None:
        """The placement on CARDS (empty: any) that REQUEST allows."""
        only = gpus & request.only if gpus and request.only else gpus or request.only
        if gpus and not only:
            return None
        placed = place(node, replace(request, only=only), self._policy)
        return placed if isinstance(placed, Placement) else None

    def _as_wished(
        self, node: NodeState, table: AllocationTable, allocation: Allocation, requester: Requester
    ) -> Placement | None:
        """How ADMITTED's options can be had on the very held_gpus that ALLOCATION has; None when it cannot."""
        slices, held_gpus = len(allocation.device_ids), frozenset(allocation.quota())
        asked = self._asked(node, table, requester, slices)
        if isinstance(asked, Infeasible) or (asked.request.only and not held_gpus <= asked.request.only):
            return None
        gpus = asked.request.gpus if asked.request.gpus or asked.request.parts else len(held_gpus)
        found = place_waiting(node, replace(asked.request, only=held_gpus, gpus=gpus), self._policy)
        if isinstance(found, Infeasible) or frozenset(found.placement.uuids) != held_gpus:
            return None
        return found.placement

    def _same_numa_node(self, named: frozenset[str]) -> frozenset[str]:
        """The GPUs of the NUMA node that all named GPUs share: the kubelet may have aligned CPUs with it."""
        nodes = {gpu.numa_node for gpu in self.inventory.gpus if gpu.uuid in named}
        if len(nodes) != 1 or None in nodes:
            return frozenset()
        return frozenset(gpu.uuid for gpu in self.inventory.gpus if gpu.numa_node in nodes)

    def _node(self, table: AllocationTable, pod: str, host: bool, slices: int) -> NodeState:
        """The node as a container of POD sees it that asks for SLICES and may use host memory (HOST) or not."""
        memory = slices * self._unit.size
        gpus, taken = host_memory.view(table, self.inventory.gpus, pod, host=host, memory_bytes=memory)
        return NodeState.build(gpus, self.inventory.topology, taken)

    def _present(self, table: AllocationTable, allocation: Allocation) -> Mapping[str, Mapping[str, int]]:
        gpus = set(allocation.quota())
        neighbours = (
            other for other in table.allocations if other.id != allocation.id and gpus & set(other.quota())
        )
        return {other.id: self._store.reading(other.id).present() for other in neighbours}


def _to_correct(mistakes: Sequence[str]) -> str:
    return f"annotations to be corrected: {'; '.join(mistakes)}; kubectl annotate --overwrite will do, the pod waits"


def _gpu_name(device_id: str) -> str:
    try:
        return parse_device_id(device_id).uuid
    except DeviceIdError:
        return ""
