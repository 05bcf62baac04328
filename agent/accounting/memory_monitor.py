# SPDX-License-Identifier: Apache-2.0
"""Measures the memory that the ledgers do not declare, in one round every few seconds.

Calls of the driver and reads of ledgers may block, so they run in threads; pages are written from the agent's own
thread, like all state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import vcuda
from agent.accounting.attribution import Memory, with_found_pids
from agent.accounting.auditor import Auditor
from agent.accounting.processes import ProcessInfo
from agent.inventory.source import Source
from agent.ledgers import usage
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.yielding import with_breaks

__all__ = ["MeasuredAllocation", "MemoryMonitor"]


@dataclass(frozen=True, slots=True)
class MeasuredAllocation:
    """One allocation after a round. memory: its processes' bytes by GPU, from NVML; None without a measurement."""

    reading: usage.Reading
    memory: Mapping[str, int] | None


class MemoryMonitor:
    """Publishes in the limits pages of STORE what SOURCE measures, every INTERVAL seconds.

    AUDITOR finds the containers of processes that have no slot in a ledger.
    """

    def __init__(self, store: Store, source: Source, interval: float, auditor: Auditor) -> None:
        self.last: dict[str, MeasuredAllocation] = {}
        self._store = store
        self._source = source
        self._interval = interval
        self._auditor = auditor
        self._reported = LogOnce()
        self._grew: set[str] = set()  # in the last round
        self._log = get_logger("memory_monitor")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.round()

    async def round(self) -> None:
        """Reads every ledger, and publishes what was measured beyond it."""
        begun = self._store.dirs.recent.begin()
        before = await self._readings(self._store.table.allocations)
        measured, processes = await asyncio.to_thread(self._measure, frozenset(_claims(before)))
        allocations = [
            allocation for allocation in self._store.table.allocations if allocation.id in before
        ]  # others: next round
        measured_of = _measured_of(before, measured)
        after = {allocation.id: before[allocation.id] for allocation in allocations}
        after |= await self._readings(
            [allocation for allocation in allocations if allocation.id in measured_of]
        )
        before, after = (
            with_found_pids(readings, processes, _claims(readings)) for readings in (before, after)
        )
        claims = _claims(before, after)
        owners = self._auditor.owners(claims, processes)
        self._store.pods_seen = _pods_seen(owners, processes)
        self._update_bounds(claims, owners, measured, {})
        if measured is not None:
            self._store.dirs.recent.end(begun)
        self._store.read_last = after
        grown = self._store.dirs.ledgers.take_grown()
        after = {
            allocation.id: replace(
                self._store.believe(allocation, after[allocation.id]), grew=grown.get(allocation.id, 0)
            )
            for allocation in allocations
        }
        without_library = self._auditor.audit(measured or {}, processes, owners, after)
        self._store.without_library = without_library
        self._update_bounds(claims, owners, measured, without_library)
        async for allocation in with_breaks(allocations):
            if self._store.table.find(allocation.id) is None:
                continue  # released meanwhile, and its files are going
            self._publish(
                allocation,
                before[allocation.id],
                after[allocation.id],
                measured,
                without_library.get(allocation.id, {}),
            )
        allocation_ids = frozenset(allocation.id for allocation in self._store.table.allocations)
        self._store.dirs.recent.forget(allocation_ids)
        self.last = {
            key: MeasuredAllocation(reading, _memory(key, measured, owners, without_library.get(key, {})))
            for key, reading in after.items()
            if key in allocation_ids
        }
        self._reported.keep(allocation_ids.__contains__)
        self._grew &= allocation_ids

    async def _readings(self, allocations: Sequence[Allocation]) -> dict[str, usage.Reading]:
        """Reads their ledgers. In a thread: a container that keeps writing its ledger blocks readers."""
        paths = {allocation.id: self._store.dirs.path(allocation.id) for allocation in allocations}
        return await asyncio.to_thread(lambda: {key: usage.read(path) for key, path in paths.items()})

    def _measure(self, claimed: Collection[int]) -> tuple[Memory | None, tuple[ProcessInfo, ...]]:
        measured = self._source.process_memory()
        return measured, self._auditor.read_processes(measured or {}, claimed)

    def _update_bounds(
        self,
        claims: Mapping[int, Collection[str]],
        owners: Mapping[int, str],
        measured: Memory | None,
        without_library: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Updates what bounds the ledgers in the store until the next round."""
        disowned: dict[str, set[int]] = {}
        for pid, keys in claims.items():
            for key in keys:
                if owners.get(pid) != key:
                    disowned.setdefault(key, set()).add(pid)
        held: dict[str, dict[str, int]] = {}
        listed: dict[str, dict[str, int]] = {}
        for allocation in self._store.table.allocations if measured is not None else ():
            held[allocation.id] = {
                gpu: without_library.get(allocation.id, {}).get(gpu, 0) for gpu in measured or {}
            }
            listed[allocation.id] = dict.fromkeys(measured or {}, 0)
        for gpu, by_pid in (measured or {}).items():
            for pid, count in by_pid.items():
                key = owners.get(pid, "")
                if key in held:
                    held[key][gpu] += count
                    listed[key][gpu] += 1
        self._store.measured, self._store.listed = held, listed
        self._store.disowned = {key: frozenset(pids) for key, pids in disowned.items()}

    def _publish(
        self,
        allocation: Allocation,
        before: usage.Reading,
        after: usage.Reading,
        measured: Memory | None,
        without_library: Mapping[str, int],
    ) -> None:
        if after.grew and allocation.id not in self._grew:
            self._log.warning(
                "ledger truncated",
                allocation=allocation.id,
                container=allocation.name,
                bytes=after.grew,
            )
        (self._grew.add if after.grew else self._grew.discard)(allocation.id)
        problem = after.problem
        if problem is None and measured:
            path = self._store.dirs.path(allocation.id)
            try:
                changed = usage.publish_undeclared(
                    path, allocation, before, after, measured, without_library=without_library
                )
                if changed:
                    self._log.debug("measured", allocation=allocation.id, undeclared=dict(changed))
            except vcuda.VcudaError as error:
                problem = str(error)
        self._report(allocation.id, allocation.name, problem)

    def _report(self, allocation_id: str, name: str, problem: str | None) -> None:
        """Logs a problem when it begins, not every round."""
        if problem is None:
            self._reported.over(allocation_id)
        elif self._reported.new(allocation_id, problem):
            self._log.error(
                "allocation cannot be read", allocation=allocation_id, container=name, detail=problem
            )


def _claims(*several: Mapping[str, usage.Reading]) -> dict[int, set[str]]:
    """The processes that hold slots: allocation IDs by PID."""
    claims: dict[int, set[str]] = {}
    for readings in several:
        for key, reading in readings.items():
            for pid in reading.pids:
                claims.setdefault(pid, set()).add(key)
    return claims


def _measured_of(before: Mapping[str, usage.Reading], measured: Memory | None) -> Collection[str]:
    """IDs of the allocations with measured processes; all, when a measured process had no slot BEFORE.

    That process may have attached meanwhile, and only its ledger can tell.
    """
    pids = {pid for processes in (measured or {}).values() for pid in processes if pid > 0}
    claims = _claims(before)
    return {key for pid in pids for key in claims[pid]} if pids <= claims.keys() else before.keys()


def _pods_seen(owners: Mapping[int, str], processes: Sequence[ProcessInfo]) -> dict[str, frozenset[str]]:
    """The pods in which processes of an allocation run, by allocation."""
    pods: dict[str, set[str]] = {}
    for process in processes:
        allocation_id = owners.get(process.pid) or process.mounted
        if allocation_id and process.place is not None:
            pods.setdefault(allocation_id, set()).add(process.place.uid)
    return {allocation_id: frozenset(uids) for allocation_id, uids in pods.items()}


def _memory(
    key: str, measured: Memory | None, owners: Mapping[int, str], without_library: Mapping[str, int]
) -> dict[str, int] | None:
    if measured is None:
        return None
    return {
        gpu: without_library.get(gpu, 0)
        + sum(count for pid, count in processes.items() if owners.get(pid) == key)
        for gpu, processes in measured.items()
    }
