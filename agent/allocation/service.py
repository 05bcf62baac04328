"""The allocation service: gives a requested number of device IDs their GPUs, records that, and answers from the record.

It takes values (an owner as far as it is known, device IDs, what became of earlier holders) and returns an allocation,
or raises ImpossibleError as its refusal. It knows neither protocol messages nor who calls it. What time can mend is
never refused here: such an allocation is made and waits, since a refused one fails its pod for good (see `start`).

Every change is on disk before it is returned.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.allocation.assigned import NotExecutableError, named_for, with_assignment
from agent.allocation.choice import GpuChooser
from agent.allocation.owner import (
    Identification,
    ImpossibleError,
    Lifecycle,
    Lookup,
    Requester,
    owner_of,
)
from agent.inventory.holder import GpusNow
from agent.inventory.lending_source import host_memory_left
from agent.inventory.source import Inventory
from agent.persistence.store import Store
from gigaslice import units
from gigaslice.allocation import host_memory, start_decision
from gigaslice.allocation.lending_by_gpu import served_by_gpu
from gigaslice.allocation.pod_peak import with_peak, without_peak
from gigaslice.allocation.reconcile import Answered, Review, from_answer
from gigaslice.allocation.table import (
    Allocation,
    AllocationOptions,
    AllocationTable,
    ContainerRef,
    Hold,
    assign_device_ids,
)
from gigaslice.errors import StorageError
from gigaslice.model import (
    AnnotationRights,
    Infeasible,
    NodeState,
    Placement,
    Pod,
    RequestOptions,
    Share,
    SliceUnit,
)
from gigaslice.placement import Policy, preferred_device_ids
from gigaslice.runtime.logs import get_logger
from gigaslice.text import plural

__all__ = ["AllocationService", "ImpossibleError", "NotExecutableError", "Settled", "to_correct"]

_RESOURCE = "gigaslice.io/vgpu-memory"
_UNKNOWN = Lifecycle()
_ONE_POD_SECONDS = 30.0  # far more than a kubelet ever takes between two containers of a pod
_ROUNDED = 0.002  # the time of an allocation is kept in milliseconds


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of an undecided allocation.

    Attributes:
        reason: Why it cannot go on; None when it can.
        remake: Only a new pod can get what is asked for.
        refused: An assignment cannot be executed, and its pod never starts here.
    """

    reason: str | None = None
    remake: bool = False
    refused: bool = False


class AllocationService:
    """Decides over the allocation table of a store and the node's present GPUs."""

    def __init__(
        self,
        store: Store,
        gpus: GpusNow,
        policy: Policy,
        now: Callable[[], float],
        new_id: Callable[[], str],
        *,
        resource: str = _RESOURCE,
        whole_resource: str = "",
        slice_resources: tuple[str, ...] = (),
        slice_bytes: int = 1 << 30,
        rights: AnnotationRights = AnnotationRights.REFUSE,
        host_left: Callable[[], int | None] = host_memory_left,
    ) -> None:
        """Initializes the service.

        Args:
            store: Where allocations are recorded.
            gpus: The node's GPUs.
            policy: How GPUs are chosen.
            now: Returns Unix time in seconds.
            new_id: Returns 32 hex digits.
            resource: The resource that pods request.
            whole_resource: The resource of whole GPUs, empty where none is offered.
            slice_resources: All resources of slices on this node, where there are several.
            slice_bytes: Memory of one device ID.
            rights: Which annotations count.
            host_left: Returns how many bytes of memory the host has left, None where it does not say.
        """
        self.resource = resource
        unit = SliceUnit(slice_bytes, units.parse_bytes)
        self.chooser = GpuChooser(
            gpus,
            policy,
            resource,
            unit,
            whole_resource=whole_resource,
            slice_resources=slice_resources,
            rights=rights,
        )
        self._store = store
        self._gpus = gpus
        self._policy = policy
        self._now = now
        self._new_id = new_id
        self._host_left = host_left
        self._log = get_logger("allocator")

    @property
    def inventory(self) -> Inventory:
        """The node's GPUs as they are now."""
        return self._gpus.now

    @property
    def executes_assignments(self) -> bool:
        """Whether a scheduler chooses GPUs of this node: then a pod that is not known may have been assigned some."""
        return any(allocation.assigned for allocation in self._store.table.allocations)

    # --- allocating ------------------------------------------------------------------------------------------

    def prefer(
        self,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        requester: Requester | None = None,
        lifecycle: Lifecycle = _UNKNOWN,
    ) -> tuple[str, ...]:
        """Returns device IDs named after the GPUs that placement would choose; fewer or none when in doubt.

        Args:
            available: Device IDs that may be chosen. Those not in must_include are free by the caller's count.
            must_include: Device IDs of the container's pod that have to be among them.
            size: How many are needed.
            requester: The container; None where it is not known.
            lifecycle: Which holders of the free device IDs are over. The others are forgotten, and count.
        """
        free = frozenset(available) - frozenset(must_include)
        self._name(lifecycle)
        table = self._store.table.counted_out(lifecycle.over).given_back(free, lifecycle.over)
        self._store.remember(table)
        slices = max(1, size)
        try:
            assigned = self.chooser.assigned(requester, slices)
        except ImpossibleError:
            return ()  # Allocate follows, and says why
        if assigned is not None:
            return named_for(assigned, available, must_include, size)
        table = without_peak(table, requester.pod.uid if requester else "")
        after, _ = self._taken_over(table, must_include, requester, lifecycle)
        node = self.chooser.node(after, requester, slices)
        demand = self.chooser.demand(node, after, requester, slices)
        if isinstance(demand, Infeasible):
            return ()
        return preferred_device_ids(
            node, available, must_include, size, request=demand.request, policy=self._policy
        )

    def allocate(
        self,
        requests: Sequence[Collection[str]],
        identified: Identification | None = None,
        lifecycle: Lifecycle = _UNKNOWN,
    ) -> tuple[Allocation, ...]:
        """Makes and records one allocation per request, each with its directory. All or none.

        Args:
            requests: The device IDs of each container.
            identified: Whom the only request is for; None where that can never be known.
            lifecycle: How far the holders of the device IDs have come.

        Raises:
            ImpossibleError: This node can never serve a request.
            StorageError: The allocations cannot be recorded.
        """
        self._name(lifecycle)
        requester = identified.requester if identified else None
        handed_out = frozenset(device_id for device_ids in requests for device_id in device_ids)
        lenders = self._lenders(handed_out, requester, lifecycle)
        table = self._store.table.counted_out(lifecycle.over - lenders)
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

    def made_during(self, requests: Sequence[Collection[str]], age: float) -> Allocation | None:
        """Returns the allocation that was recorded for a call which is repeated, with its files in order.

        Args:
            requests: The device IDs of the call.
            age: Seconds since the call first came. An allocation from before it is another container's.
        """
        newest = max(self._store.table.allocations, key=lambda allocation: allocation.number, default=None)
        asked = [frozenset(device_ids) for device_ids in requests]
        if newest is None or asked != [newest.device_ids] or self.age(newest) > age + _ROUNDED:
            return None
        self._store.ensure(newest)
        self._log.info("allocation found", allocation=newest.id, container=newest.name)
        return newest

    def find(self, device_ids: Sequence[str]) -> tuple[Allocation, ...]:
        """Returns the allocations of exactly these device IDs, newest first."""
        return self._store.table.all_of_device_ids(frozenset(device_ids))

    def age(self, allocation: Allocation) -> float:
        """Returns the seconds since an allocation was made; infinite where that is in the future: the clock was set
        back.
        """
        since = self._now() - allocation.created
        return since if since >= 0 else math.inf

    # --- starting --------------------------------------------------------------------------------------------

    def start_blocker(self, allocation: Allocation) -> str | None:
        """Returns what the start of an allocation's container waits for, in a sentence; None when it may start.

        Reads the ledgers of its neighbours. A waiting allocation that may start is recorded as waiting no more.
        """
        table = self._store.table
        used = self._present(table, allocation)
        if lack := self.host_lacks(allocation):
            return f"waiting for {lack}; starts by itself once there is enough"
        inventory = self.inventory
        node = NodeState.build(inventory.gpus, inventory.topology)
        for uuid in () if allocation.waiting else inventory.cordoned:
            node = node.with_health(uuid, True)  # a container that was there before the cordon may restart
        missing = start_decision.shortfall(table, allocation, node, used)
        if missing:
            return start_decision.describe(missing, table, allocation, used, inventory.unhealthy)
        if allocation.waiting:
            self._store.update(table.replaced([replace(allocation, waiting=False)]))
        return None

    def host_lacks(self, allocation: Allocation) -> str | None:
        """Returns what the host's memory lacks for an allocation to start, or to have its quota; None when nothing."""
        table, gpus = self._store.table, self.inventory.gpus
        lent = {gpu.uuid for gpu in gpus if gpu.host_bytes}
        if not lent.intersection(allocation.promised):
            return None
        used = {
            other.id: self._store.reading(other.id).present()
            for other in table.allocations
            if lent.intersection(other.quota())
        }
        need = host_memory.host_need(table, allocation, used, gpus)
        if need == 0:
            return None
        left = self._host_left()
        if left is None:
            return "/proc/meminfo of the host, which does not say how much memory is left"
        if need <= left:
            return None
        have = f"{units.format_bytes(need)} of host memory, of which {units.format_bytes(left)} are left"
        return f"{have}: what all containers were promised beyond the GPUs' own memory and do not use yet"

    # --- undecided and lost ----------------------------------------------------------------------------------

    def settle(self, allocation: Allocation, requester: Requester | None) -> Settled:
        """Decides an undecided allocation, now that its container is known.

        Its GPUs stay, since the container runtime has been told of them. Everything else is made to agree with the
        options of the pod's annotations.

        Args:
            allocation: An undecided allocation.
            requester: Its container; None where that will never be known.
        """
        table, gpus = self._store.table, self.inventory.gpus
        if requester is None:
            self._store.update(table.replaced([replace(allocation, undecided=False)]))
            return Settled()
        if allocation.whole:
            return self._settle_whole(allocation, requester)
        options = self.chooser.options(requester)
        try:
            assigned = self.chooser.assigned(requester, len(allocation.device_ids))
        except ImpossibleError as error:
            return Settled(str(error), remake=True, refused=isinstance(error, NotExecutableError))
        mistakes = options.mistakes + options.contradictions(len(allocation.device_ids))
        if mistakes:
            return Settled(to_correct(mistakes))
        others = table.without([allocation.id])
        placement = self.chooser.on_held_gpus(others, allocation, requester)
        if placement is None:
            asked = "these ask for others" if assigned is None else f"it was assigned {_named(assigned)}"
            return Settled(
                f"its GPUs were chosen before its annotations could be read or made sense, and {asked}; "
                "delete the pod, so that it is allocated again",
                remake=True,
                refused=assigned is not None,
            )
        changed = replace(
            allocation,
            owner=requester.owner,
            policy=AllocationOptions.of(options),
            holds=self._holds(allocation.device_ids, placement, options, assigned),
            undecided=False,
            waiting=allocation.waiting or assigned is not None,  # it may have more of a GPU than was guessed
            assigned=assigned is not None,
        )
        self._store.remake(host_memory.split(others, changed, gpus))
        self._store.update(with_peak(self._store.table, requester.pod.uid))
        return Settled()

    def _settle_whole(self, allocation: Allocation, requester: Requester) -> Settled:
        try:
            assigned = self.chooser.assigned_whole(requester, len(allocation.device_ids))
        except NotExecutableError as error:
            return Settled(str(error), remake=True, refused=True)
        if assigned is not None and frozenset(assigned) != frozenset(allocation.quota()):
            named = ", ".join(assigned)
            return Settled(
                f"its GPUs were chosen before its annotations could be read, and it was assigned {named}; delete the "
                "pod, so that it is allocated again",
                remake=True,
                refused=True,
            )
        changed = replace(allocation, owner=requester.owner, undecided=False, assigned=assigned is not None)
        self._store.update(with_peak(self._store.table.replaced([changed]), requester.pod.uid))
        return Settled()

    def resource_of(self, allocation: Allocation) -> str:
        """Returns what the container of an allocation requested."""
        return self.chooser.whole_resource if allocation.whole else self.resource

    def settle_known(self, allocation: Allocation, lookup: Lookup) -> None:
        """Settles an allocation that was made up for a running container, where its pod is known."""
        if allocation.undecided and not allocation.foreign:
            requester = owner_of(allocation, lookup, self._store.table, self.resource_of(allocation))
            if requester is not None:
                self.settle(allocation, requester)

    def restore(self, answer: Answered, pods: Mapping[tuple[str, str], Pod]) -> bool:
        """Records a lost allocation again, under its old id and with its old GPUs.

        Args:
            answer: The answer that it was given out by.
            pods: This node's pods, as far as they are known.

        Returns:
            False where the answer does not say which GPU has how much.
        """
        pod = next((one for one in pods.values() if one.uid == answer.pod), None)
        ref = ContainerRef(pod.namespace, pod.name, answer.container) if pod else None
        gpus = self.inventory.gpus
        answer = with_assignment(answer, [pod] if pod else [])
        allocation = from_answer(answer, ref, gpus, self._store.library, round(self._now(), 3))
        if allocation is None:
            return False
        self._store.restore(allocation)
        return True

    # --- parts -----------------------------------------------------------------------------------------------

    def _name(self, lifecycle: Lifecycle) -> None:
        """Records the containers that became known. A disk that is full is reported for the allocation itself."""
        table = self._store.table
        named = tuple(
            replace(allocation, container=lifecycle.named[allocation.id])
            for allocation in table.allocations
            if allocation.id in lifecycle.named and allocation.container is None
        )
        if named:
            with contextlib.suppress(StorageError):
                self._store.apply(Review(table.replaced(named), learned=named))

    def _add(
        self,
        table: AllocationTable,
        device_ids: frozenset[str],
        identified: Identification | None,
        lifecycle: Lifecycle,
    ) -> tuple[AllocationTable, Allocation]:
        """Returns the allocation table with one more allocation, and that allocation."""
        if not device_ids:
            raise ImpossibleError(
                "the kubelet asked for a container without devices; report this with its version"
            )
        requester = identified.requester if identified else None
        pod = requester.pod.uid if requester else ""
        table = without_peak(table, pod)
        assigned = self.chooser.assigned(requester, len(device_ids))
        if assigned is not None:
            lenders = self._lenders(device_ids, requester, lifecycle)
            table = served_by_gpu(table, lenders, device_ids, assigned)
        after, superseded = self._taken_over(table, device_ids, requester, lifecycle)
        node = self.chooser.node(after, requester, len(device_ids))
        demand = self.chooser.demand(node, after, requester, len(device_ids))
        if isinstance(demand, Infeasible):
            raise ImpossibleError(f"{demand.detail} ({plural(len(device_ids), 'slice')} in all)")
        options = demand.options
        choice = (
            self.chooser.choose(node, device_ids, demand.request)
            if assigned is None
            else self.chooser.execute(node, assigned, exclusive=options.exclusive)
        )
        suspects = (str(requester.pod),) if requester else (identified.possible if identified else ())
        allocation = Allocation(
            id=self._new_id(),
            number=after.next_number,
            created=round(self._now(), 3),
            holds=self._holds(device_ids, choice.placement, options, assigned),
            library=self._store.library,
            supersedes=superseded,
            waiting=choice.waiting,
            assigned=assigned is not None,
            owner=requester.owner if requester else None,
            suspects=suspects or None,
            policy=AllocationOptions.of(options),
            undecided=bool(demand.mistakes)
            or (requester is None and (identified is not None or self.executes_assignments)),
        )
        allocation = host_memory.split(after, allocation, self.inventory.gpus)
        return with_peak(after.with_allocation(allocation), pod), allocation

    def _holds(
        self,
        device_ids: frozenset[str],
        placement: Placement,
        options: RequestOptions,
        assigned: Sequence[Share] | None,
    ) -> tuple[Hold, ...]:
        """Returns the holds of an allocation, with the shares of compute that only its assignment says."""
        holds = assign_device_ids(device_ids, placement, self.inventory.gpus)
        cores = {share.gpu: share.cores for share in assigned or () if share.cores != options.cores}
        return tuple(replace(hold, cores=cores[hold.gpu]) if hold.gpu in cores else hold for hold in holds)

    def _lenders(
        self, device_ids: frozenset[str], requester: Requester | None, lifecycle: Lifecycle
    ) -> frozenset[str]:
        """Returns the holders that may be init containers of the pod that gets the device IDs, and so lend them."""
        since = self._now() - _ONE_POD_SECONDS
        pod = requester.pod.uid if requester else ""
        return self._store.table.lenders(device_ids, pod, lifecycle.started, since)

    def _taken_over(
        self,
        table: AllocationTable,
        device_ids: Iterable[str],
        requester: Requester | None,
        lifecycle: Lifecycle,
    ) -> tuple[AllocationTable, tuple[str, ...]]:
        since = self._now() - _ONE_POD_SECONDS
        pod = requester.pod.uid if requester else ""
        return table.taken_over(
            device_ids, pod=pod, over=lifecycle.over, started=lifecycle.started, since=since
        )

    def _present(self, table: AllocationTable, allocation: Allocation) -> Mapping[str, Mapping[str, int]]:
        """Returns what the neighbours on an allocation's GPUs use now, by id and GPU."""
        gpus = set(allocation.quota())
        neighbours = (
            other for other in table.allocations if other.id != allocation.id and gpus & set(other.quota())
        )
        return {other.id: self._store.reading(other.id).present() for other in neighbours}


def _named(shares: Sequence[Share]) -> str:
    return ", ".join(f"{plural(share.slices, 'slice')} of {share.gpu}" for share in shares)


def to_correct(mistakes: Sequence[str]) -> str:
    """Returns the sentence that tells a person which annotations to correct, and how."""
    return f"annotations to be corrected: {'; '.join(mistakes)}; kubectl annotate --overwrite will do, the pod waits"
