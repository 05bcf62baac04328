# SPDX-License-Identifier: Apache-2.0
"""The allocation service: gives requests their GPUs, records that, decides over starts, and releases.

It takes values and returns allocations, or raises ImpossibleError as its refusal. It knows neither protocol messages
nor who calls it: what an API has to say of its requests comes as an adapter (`agent.allocation.request`). What time can
mend is never refused here: such an allocation is made and waits, since a refused one fails its pod for good.

Every change is on disk before it is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from agent.allocation.choice import GpuChooser
from agent.allocation.request import AllocationRequest, ImpossibleError, RequestAdapter
from agent.inventory.holder import GpusNow
from agent.inventory.lending_source import host_memory_left
from agent.inventory.source import Inventory
from agent.persistence.store import Store
from gigaslice.core import units
from gigaslice.core.allocation import host_memory, start_decision
from gigaslice.core.allocation.table import (
    Allocation,
    AllocationOptions,
    AllocationTable,
    Hold,
    holds_of,
    whole_hold,
    with_given_cores,
)
from gigaslice.core.model import NodeState, Placement, Share
from gigaslice.core.placement import Policy
from gigaslice.runtime.logs import get_logger

__all__ = ["AllocationService", "ImpossibleError"]


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
        slice_bytes: int = 1 << 30,
        host_left: Callable[[], int | None] = host_memory_left,
    ) -> None:
        """Initializes the service.

        Args:
            store: Where allocations are recorded.
            gpus: The node's GPUs.
            policy: How GPUs are chosen.
            now: Returns Unix time in seconds.
            new_id: Returns 32 hex digits.
            slice_bytes: Memory of one slice of a request.
            host_left: Returns how many bytes of memory the host has left, None where it does not say.
        """
        self.chooser = GpuChooser(gpus, policy, slice_bytes)
        self._store = store
        self._gpus = gpus
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

    def age(self, allocation: Allocation) -> float:
        """Returns the seconds since an allocation was made; infinite where that is in the future: the clock was set
        back.
        """
        since = self._now() - allocation.created
        return since if since >= 0 else math.inf

    # --- allocating and releasing ----------------------------------------------------------------------------

    def allocate(
        self, adapters: Sequence[RequestAdapter], table: AllocationTable | None = None
    ) -> tuple[Allocation, ...]:
        """Makes and records one allocation per request, each with its directory. All or none.

        A request whose key an allocation has already is answered with that allocation, its files in order.

        Args:
            adapters: The requests.
            table: The allocation table to begin with; None: as it is recorded.

        Raises:
            ImpossibleError: This node can never serve a request.
            StorageError: The allocations cannot be recorded.
        """
        table = self._store.table if table is None else table
        answers: list[str] = []
        fresh: list[str] = []
        for adapter in adapters:
            before = table.of_key(adapter.key)
            if before is None:
                table, before = self._add(table, adapter)
                fresh.append(before.id)
            else:
                self._store.ensure(before)
            answers.append(before.id)
        recorded = {allocation.id: allocation for allocation in table.allocations}
        if fresh:
            self._store.commit(table, [recorded[allocation_id] for allocation_id in fresh])
        for allocation_id in fresh:
            self._report(recorded[allocation_id])
        return tuple(recorded[allocation_id] for allocation_id in answers)

    def release(self, ids: Collection[str], table: AllocationTable | None = None) -> tuple[Allocation, ...]:
        """Gives allocations up with their directories, whose consumers are over. Returns those that are gone.

        What processes still hold counts until they have ended: such an allocation is only marked as ended, and the next
        call that names it finishes.

        Args:
            ids: The allocations. One that there is no record of is released already.
            table: The allocation table to begin with; None: as it is recorded.

        Raises:
            StorageError: That cannot be recorded.
        """
        table = (self._store.table if table is None else table).with_ended(ids)
        released = [
            allocation
            for allocation in table.allocations
            if allocation.id in ids and not self._store.reading(allocation.id).alive
        ]
        self._store.release(table.without(allocation.id for allocation in released), released)
        return tuple(released)

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

    # --- parts -----------------------------------------------------------------------------------------------

    def holds(self, request: AllocationRequest, placement: Placement) -> tuple[Hold, ...]:
        """Returns what an allocation has of the GPUs of its placement, with the shares of compute that only its
        assignment says.
        """
        gpus = self.inventory.gpus
        if request.whole:
            by_uuid = {gpu.uuid: gpu for gpu in gpus}
            return tuple(whole_hold(by_uuid[share.gpu]) for share in placement.shares)
        cores = _assigned_cores(request.assigned or (), request.options.cores)
        return tuple(
            replace(hold, cores=cores[hold.gpu]) if hold.gpu in cores else hold
            for hold in holds_of(placement, gpus)
        )

    def _add(self, table: AllocationTable, adapter: RequestAdapter) -> tuple[AllocationTable, Allocation]:
        """Returns the allocation table with one more allocation, and that allocation."""
        request = adapter.request
        table = adapter.before(table)
        try:
            choice = self.chooser.choose(table, request)
        except ImpossibleError as error:
            raise ImpossibleError(adapter.refusal(str(error))) from error
        allocation = Allocation(
            id=self._new_id(),
            number=table.next_number,
            created=round(self._now(), 3),
            holds=self.holds(request, choice.placement),
            library=self._store.library,
            origin=adapter.origin(choice.placement),
            policy=AllocationOptions.of(request.options),
            whole=request.whole,
            waiting=choice.waiting,
            assigned=request.assigned is not None,
        )
        if not allocation.origin.may_grow:
            allocation = with_given_cores(allocation)
        allocation = host_memory.split(table, allocation, self.inventory.gpus)
        return adapter.after(table.with_allocation(allocation)), allocation

    def _present(self, table: AllocationTable, allocation: Allocation) -> Mapping[str, Mapping[str, int]]:
        """Returns what the neighbours on an allocation's GPUs use now, by id and GPU."""
        gpus = set(allocation.quota())
        neighbours = (
            other for other in table.allocations if other.id != allocation.id and gpus & set(other.quota())
        )
        return {other.id: self._store.reading(other.id).present() for other in neighbours}

    def _report(self, allocation: Allocation) -> None:
        self._log.info(
            "allocated",
            allocation=allocation.id,
            container=allocation.name,
            whole=allocation.whole,
            bytes=allocation.quota(),
            supersedes=list(allocation.origin.supersedes),
            waiting=allocation.waiting,
            undecided=allocation.origin.undecided,
        )


def _assigned_cores(assigned: Sequence[Share], cores: int) -> dict[str, int]:
    return {share.gpu: share.cores for share in assigned if share.cores != cores}
