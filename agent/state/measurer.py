"""Measures what the ledgers do not declare, and keeps ledgers at their size: one round every few seconds.

Asking the driver may block and happens in a thread; pages are written from the agent's own thread, like all state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import vcuda
from agent.discovery.source import Source
from agent.state import ledgers
from agent.state.breaks import with_breaks
from agent.state.records import Grant
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["Audit", "Measured", "Measurer"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One allocation after a round. memory: what NVML shows of all its processes by GPU; None where none measures."""

    reading: ledgers.Reading
    memory: Mapping[str, int] | None


Memory = Mapping[str, Mapping[int, int]]
Seen = TypeVar("Seen")


class Audit(Protocol[Seen]):
    """Who finds the containers of processes that no ledger knows."""

    def look(self, measured: Memory) -> Seen:
        """Looks at the processes that were measured; in the thread that has measured."""
        ...

    def judge(
        self,
        measured: Memory,
        sightings: Seen,
        owners: Mapping[int, str],
        readings: Mapping[str, ledgers.Reading],
    ) -> Mapping[str, Mapping[str, int]]:
        """Bytes of such processes by grant id and GPU. OWNERS: grant ids by PID of the processes that ledgers know."""
        ...


class Measurer:
    """Publishes into the limits pages of STORE what SOURCE measures, every INTERVAL seconds."""

    def __init__(
        self, store: Store, source: Source, interval: float, audit: Audit[Any] | None = None
    ) -> None:
        self.last: dict[str, Measured] = {}
        self._store = store
        self._source = source
        self._interval = interval
        self._audit = audit
        self._problems: dict[str, str] = {}
        self._log = get_logger("measurer")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.round()

    async def round(self) -> None:
        """Reads every ledger, cuts back those that grew, and publishes what was measured beyond them."""
        before = await self._readings(self._store.book.grants, trim=True)
        measured, seen = await asyncio.to_thread(self._measure)
        grants = [grant for grant in self._store.book.grants if grant.id in before]  # others: next round
        measured_of = _measured_of(before, measured)
        after = {grant.id: before[grant.id] for grant in grants}
        after |= await self._readings([grant for grant in grants if grant.id in measured_of], trim=False)
        owners = _owners(before) | _owners(after)
        strangers: Mapping[str, Mapping[str, int]] = {}
        if self._audit is not None:
            strangers = self._audit.judge(measured or {}, seen, owners, after)
        self._store.strangers = strangers
        async for grant in with_breaks(grants):
            if self._store.book.find(grant.id) is None:
                continue  # released meanwhile, and its files are going
            self._publish(grant, before[grant.id], after[grant.id], measured, strangers.get(grant.id, {}))
        known = {grant.id for grant in self._store.book.grants}
        self.last = {
            key: Measured(reading, _memory(key, measured, owners, strangers.get(key, {})))
            for key, reading in after.items()
            if key in known
        }
        self._problems = {grant_id: text for grant_id, text in self._problems.items() if grant_id in known}

    async def _readings(self, grants: Sequence[Grant], *, trim: bool) -> dict[str, ledgers.Reading]:
        return {
            grant.id: ledgers.read(self._store.dirs.path(grant.id), trim=trim)
            async for grant in with_breaks(grants)
        }

    def _measure(self) -> tuple[Memory | None, Any]:
        measured = self._source.process_memory()
        return measured, self._audit.look(measured) if self._audit and measured else ()

    def _publish(
        self,
        grant: Grant,
        before: ledgers.Reading,
        after: ledgers.Reading,
        measured: Memory | None,
        strangers: Mapping[str, int],
    ) -> None:
        if before.grew:
            self._log.warning("ledger had grown and was cut back", allocation=grant.id, container=grant.name)
        problem = after.problem
        if problem is None and measured:
            path = self._store.dirs.path(grant.id)
            try:
                changed = ledgers.publish_unhooked(path, grant, before, after, measured, strangers=strangers)
                if changed:
                    self._log.debug("measured", allocation=grant.id, unhooked=dict(changed))
            except vcuda.VcudaError as error:
                problem = str(error)
        self._report(grant.id, grant.name, problem)

    def _report(self, grant_id: str, name: str, problem: str | None) -> None:
        """Logs a problem when it begins, not every round."""
        if problem is None:
            self._problems.pop(grant_id, None)
        elif self._problems.get(grant_id) != problem:
            self._problems[grant_id] = problem
            self._log.error("allocation cannot be read", allocation=grant_id, container=name, detail=problem)


def _owners(readings: Mapping[str, ledgers.Reading]) -> dict[int, str]:
    """Grant ids by PID of the processes that ledgers know."""
    return {
        process.pid: key
        for key, reading in readings.items()
        for process in reading.processes
        if process.pid > 0
    }


def _measured_of(before: Mapping[str, ledgers.Reading], measured: Memory | None) -> Collection[str]:
    """Ids of the grants that MEASURED says something about: all, when it has a process that no ledger knew BEFORE.

    That one may have attached itself meanwhile, and only its ledger can tell.
    """
    pids = {pid for processes in (measured or {}).values() for pid in processes if pid > 0}
    owners = _owners(before)
    return {owners[pid] for pid in pids} if pids <= owners.keys() else before.keys()


def _memory(
    key: str, measured: Memory | None, owners: Mapping[int, str], strangers: Mapping[str, int]
) -> dict[str, int] | None:
    if measured is None:
        return None
    return {
        gpu: strangers.get(gpu, 0) + sum(count for pid, count in processes.items() if owners.get(pid) == key)
        for gpu, processes in measured.items()
    }
