"""Measures what the ledgers do not declare: one round every few seconds.

Asking the driver and reading ledgers may block and happen in threads; pages are written from the agent's own thread,
like all state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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

    def look(self, measured: Memory, claimed: Collection[int]) -> Seen:
        """Looks at the processes that were measured, and those that ledgers say are theirs; in the thread that has
        measured."""
        ...

    def named(
        self, readings: Mapping[str, ledgers.Reading], sightings: Seen, claimed: Collection[int]
    ) -> Mapping[str, ledgers.Reading]:
        """READINGS with the PIDs of living owners of slots that no lock names. CLAIMED: PIDs that locks name."""
        ...

    def owners(self, claims: Mapping[int, Collection[str]], sightings: Seen) -> Mapping[int, str]:
        """Whose each process is that holds a slot: grant ids by PID. CLAIMS: those whose ledgers it has slots of."""
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
        self._grew: set[str] = set()  # in the last round
        self._log = get_logger("measurer")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.round()

    async def round(self) -> None:
        """Reads every ledger, and publishes what was measured beyond them."""
        begun = self._store.dirs.recent.begin()
        before = await self._readings(self._store.book.grants)
        measured, seen = await asyncio.to_thread(self._measure, frozenset(_claims(before)))
        grants = [grant for grant in self._store.book.grants if grant.id in before]  # others: next round
        measured_of = _measured_of(before, measured)
        after = {grant.id: before[grant.id] for grant in grants}
        after |= await self._readings([grant for grant in grants if grant.id in measured_of])
        before, after = self._named(before, seen), self._named(after, seen)
        claims = _claims(before, after)
        owners = self._audit.owners(claims, seen) if self._audit is not None else _sole(claims)
        self._learn(claims, owners, measured, {})
        if measured is not None:
            self._store.dirs.recent.end(begun)
        self._store.read_last = after
        grown = self._store.dirs.ledgers.take_grown()
        after = {
            grant.id: replace(self._store.believe(grant, after[grant.id]), grew=grown.get(grant.id, 0))
            for grant in grants
        }
        strangers: Mapping[str, Mapping[str, int]] = {}
        if self._audit is not None:
            strangers = self._audit.judge(measured or {}, seen, owners, after)
        self._store.strangers = strangers
        self._learn(claims, owners, measured, strangers)
        async for grant in with_breaks(grants):
            if self._store.book.find(grant.id) is None:
                continue  # released meanwhile, and its files are going
            self._publish(grant, before[grant.id], after[grant.id], measured, strangers.get(grant.id, {}))
        known = frozenset(grant.id for grant in self._store.book.grants)
        self._store.dirs.recent.forget(known)
        self.last = {
            key: Measured(reading, _memory(key, measured, owners, strangers.get(key, {})))
            for key, reading in after.items()
            if key in known
        }
        self._problems = {grant_id: text for grant_id, text in self._problems.items() if grant_id in known}
        self._grew &= known

    async def _readings(self, grants: Sequence[Grant]) -> dict[str, ledgers.Reading]:
        """Their ledgers, as the containers have them. In a thread: whoever writes one all the time has readers wait."""
        paths = {grant.id: self._store.dirs.path(grant.id) for grant in grants}
        return await asyncio.to_thread(lambda: {key: ledgers.read(path) for key, path in paths.items()})

    def _named(self, readings: dict[str, ledgers.Reading], seen: Any) -> dict[str, ledgers.Reading]:
        if self._audit is None or not any(
            one.nameless for reading in readings.values() for one in reading.processes
        ):
            return readings
        return {**self._audit.named(readings, seen, _claims(readings))}

    def _measure(self, claimed: Collection[int]) -> tuple[Memory | None, Any]:
        measured = self._source.process_memory()
        return measured, self._audit.look(measured or {}, claimed) if self._audit else ()

    def _learn(
        self,
        claims: Mapping[int, Collection[str]],
        owners: Mapping[int, str],
        measured: Memory | None,
        strangers: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Tells the store what bounds the ledgers until the next round."""
        disowned: dict[str, set[int]] = {}
        for pid, keys in claims.items():
            for key in keys:
                if owners.get(pid) != key:
                    disowned.setdefault(key, set()).add(pid)
        found: dict[str, dict[str, int]] = {}
        listed: dict[str, dict[str, int]] = {}
        for grant in self._store.book.grants if measured is not None else ():
            found[grant.id] = {gpu: strangers.get(grant.id, {}).get(gpu, 0) for gpu in measured or {}}
            listed[grant.id] = dict.fromkeys(measured or {}, 0)
        for gpu, processes in (measured or {}).items():
            for pid, count in processes.items():
                key = owners.get(pid, "")
                if key in found:
                    found[key][gpu] += count
                    listed[key][gpu] += 1
        self._store.measured, self._store.listed = found, listed
        self._store.disowned = {key: frozenset(pids) for key, pids in disowned.items()}

    def _publish(
        self,
        grant: Grant,
        before: ledgers.Reading,
        after: ledgers.Reading,
        measured: Memory | None,
        strangers: Mapping[str, int],
    ) -> None:
        if after.grew and grant.id not in self._grew:
            self._log.warning(
                "ledger had grown and was cut back",
                allocation=grant.id,
                container=grant.name,
                bytes=after.grew,
            )
        (self._grew.add if after.grew else self._grew.discard)(grant.id)
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


def _claims(*several: Mapping[str, ledgers.Reading]) -> dict[int, set[str]]:
    """The processes that hold slots, and of whose ledgers: grant ids by PID."""
    claims: dict[int, set[str]] = {}
    for readings in several:
        for key, reading in readings.items():
            for pid in reading.pids:
                claims.setdefault(pid, set()).add(key)
    return claims


def _sole(claims: Mapping[int, Collection[str]]) -> dict[int, str]:
    """Those of whom there is only one opinion."""
    return {pid: next(iter(keys)) for pid, keys in claims.items() if len(keys) == 1}


def _measured_of(before: Mapping[str, ledgers.Reading], measured: Memory | None) -> Collection[str]:
    """Ids of the grants that MEASURED says something about: all, when it has a process that no ledger knew BEFORE.

    That one may have attached itself meanwhile, and only its ledger can tell.
    """
    pids = {pid for processes in (measured or {}).values() for pid in processes if pid > 0}
    claims = _claims(before)
    return {key for pid in pids for key in claims[pid]} if pids <= claims.keys() else before.keys()


def _memory(
    key: str, measured: Memory | None, owners: Mapping[int, str], strangers: Mapping[str, int]
) -> dict[str, int] | None:
    if measured is None:
        return None
    return {
        gpu: strangers.get(gpu, 0) + sum(count for pid, count in processes.items() if owners.get(pid) == key)
        for gpu, processes in measured.items()
    }
